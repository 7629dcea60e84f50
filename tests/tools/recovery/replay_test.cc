#include "tools/recovery/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::recovery {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Hosts(int count) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back(absl::StrCat("h", i));
  return hosts;
}

// Both phases, as `bad` hosts make their groups wrong; each time in another way where `random`.
std::vector<ReplayGroup> Replayed(int hosts, int size, const std::set<std::string>& bad,
                                  bool random = true) {
  std::vector<ReplayGroup> all;
  int flips = 0;
  for (int phase = 0; phase < kReplayPhases; ++phase) {
    for (ReplayGroup& group : ReplayGroups(Hosts(hosts), size, phase)) {
      bool is_bad = false;
      for (const std::string& host : group.hosts) is_bad = is_bad || bad.count(host) > 0;
      const std::string result = is_bad ? absl::StrCat("bad", random ? ++flips : 0) : "right";
      for (const std::string& host : group.hosts) group.results[host] = result;
      all.push_back(std::move(group));
    }
  }
  return all;
}

TEST(ReplayTest, GroupsHoldEveryHostOnceAndNoTwoMeetInBothPhases) {
  for (int size = 1; size <= 8; ++size) {
    for (int count = 2 * size; count <= 40; ++count) {
      SCOPED_TRACE(absl::StrCat(count, " hosts in groups of ", size));
      std::set<std::pair<std::string, std::string>> met;
      for (int phase = 0; phase < kReplayPhases; ++phase) {
        std::set<std::string> there;
        for (const ReplayGroup& group : ReplayGroups(Hosts(count), size, phase)) {
          EXPECT_EQ(group.hosts.size(), static_cast<size_t>(size));
          const std::set<std::string> members(group.hosts.begin(), group.hosts.end());
          EXPECT_EQ(members.size(), group.hosts.size()) << "a host is twice in its group";
          there.insert(members.begin(), members.end());
          if (count % size != 0 || count / size < size) continue;
          for (const std::string& one : members) {
            for (const std::string& other : members) {
              if (one >= other) continue;
              EXPECT_TRUE(met.emplace(one, other).second);
            }
          }
        }
        EXPECT_EQ(there.size(), static_cast<size_t>(count));
      }
    }
  }
  EXPECT_THAT(ReplayGroups(Hosts(3), 2, 0), IsEmpty());
}

TEST(ReplayTest, TheHostThatWrongGroupsHaveInCommonIsNamed) {
  for (const bool random : {true, false}) {
    for (const auto& [hosts, size] :
         {std::pair(3, 1), std::pair(6, 2), std::pair(9, 3), std::pair(9, 2), std::pair(16, 4)}) {
      for (const std::string& bad : Hosts(hosts)) {
        SCOPED_TRACE(absl::StrCat(bad, " of ", hosts, " in groups of ", size));
        EXPECT_THAT(JudgeReplay(Replayed(hosts, size, {bad}, random)).named, ElementsAre(bad));
      }
    }
  }
}

TEST(ReplayTest, ResultsThatAreAllAlikeNameNobody) {
  const ReplayVerdict verdict = JudgeReplay(Replayed(6, 2, {}));
  EXPECT_THAT(verdict.named, IsEmpty());
  EXPECT_THAT(verdict.text, HasSubstr("no host computes otherwise"));
}

TEST(ReplayTest, WithoutAMajorityNobodyIsNamed) {
  // Two hosts, each of which repeats a result of its own: no majority.
  EXPECT_THAT(JudgeReplay(Replayed(2, 1, {"h0"}, /*random=*/false)).named, IsEmpty());
  // A host that comes to another result each time is named.
  EXPECT_THAT(JudgeReplay(Replayed(2, 1, {"h0"})).named, ElementsAre("h0"));
}

TEST(ReplayTest, AGroupThatFailsIsWrongAndOneWithALostHostSaysNothing) {
  std::vector<ReplayGroup> groups = Replayed(6, 2, {});
  for (ReplayGroup& group : groups) {
    for (auto& [host, result] : group.results) {
      if (host == "h3") result.clear();
    }
  }
  EXPECT_THAT(JudgeReplay(groups).named, ElementsAre("h3"));
  for (ReplayGroup& group : groups) group.results.erase("h3");
  EXPECT_THAT(JudgeReplay(groups).named, IsEmpty());
}

}  // namespace
}  // namespace weft::recovery
