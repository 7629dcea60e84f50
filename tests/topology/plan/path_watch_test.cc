// The watch of the first switch's next hops, with an emulated switch.
#include "topology/plan/path_watch.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::topology {
namespace {

constexpr int kSpines = 4;
const IpAddress kOwn = *IpAddress::Parse("10.1.0.1");

// `more`: lines behind all others.
ConnectionPlanText MakeText(const std::string& hash, const std::string& more) {
  std::string text =
      absl::StrCat("weft-paths 1\nranks 3\nhost h0 10.1.0.1 leaf0\n",
                   "host h1 10.1.1.1 leaf1\nhost h2 10.1.2.1 leaf2\n", "hash leaf0 ", hash, "\n");
  for (int spine = 0; spine < kSpines; ++spine) {
    absl::StrAppend(&text, "router 10.2.0.", spine, " spine", spine, "\n");
  }
  absl::StrAppend(&text, "flow 0 1 h0:0 h1:0 0.5 leaf0:1/4>spine1\n");
  for (const char* leaf : {"leaf1", "leaf2"}) {
    for (int spine = 0; spine < kSpines; ++spine) {
      absl::StrAppend(&text, "spare leaf0 ", leaf, " 0.1 leaf0:", spine, "/4>spine", spine, "\n");
    }
  }
  return *ParseConnectionPlan(text + more, "plan");
}

// leaf0: hashes over the spines that it has.
struct EmulatedLeaf {
  explicit EmulatedLeaf(const std::string& hash, const std::string& more = "")
      : plan(MakeText(hash, more), "plan"),
        watch(
            plan, kOwn,
            [this](const auto& source, const auto& target, auto ports) {
              return Answer(source, target, ports);
            },
            1) {}

  std::vector<std::string> Answer(const IpAddress& source, const IpAddress& target,
                                  absl::Span<const uint16_t> ports) {
    std::vector<std::string> names;
    bool alive[kSpines];
    for (int i = 0; i < kSpines; ++i) {
      alive[i] = gone.count(i) == 0 && (gone_for != target.ToString() || i != 3);
    }
    for (uint16_t port : ports) {
      ++asked;
      const size_t spine = plan.text().hashes.at("leaf0").SelectAlive(
          {source, target, port, kRoceTargetPort, kProtocolUdp, 0}, absl::MakeConstSpan(alive));
      const bool is_silent = silent.count(static_cast<int>(spine)) > 0 || asked % silent_each == 0;
      names.push_back(is_silent ? "" : absl::StrCat("10.2.0.", spine));
    }
    return names;
  }
  void LookOften() {
    for (int i = 0; i < 40; ++i) watch.Look();
  }
  bool HasLeft(int spine) const { return plan.HasLeft("leaf0", absl::StrCat("spine", spine)); }

  ConnectionPlan plan;
  std::set<int> gone, silent;
  std::string gone_for = "nobody";
  int asked = 0, silent_each = 1 << 30;
  PathWatch watch;
};

class PathWatchTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PathWatchTest, ANextHopThatIsGoneIsReportedAndThatItIsBack) {
  EmulatedLeaf leaf(GetParam());
  ASSERT_TRUE(leaf.watch.CanSee());
  leaf.LookOften();
  EXPECT_EQ(leaf.plan.reports_version(), 0u);
  leaf.gone = {2};
  leaf.LookOften();
  EXPECT_TRUE(leaf.HasLeft(2));
  EXPECT_FALSE(leaf.HasLeft(0) || leaf.HasLeft(1) || leaf.HasLeft(3));
  leaf.gone = {2, 0};
  leaf.LookOften();
  EXPECT_TRUE(leaf.HasLeft(2) && leaf.HasLeft(0));
  leaf.gone = {};
  leaf.LookOften();
  EXPECT_FALSE(leaf.HasLeft(2) || leaf.HasLeft(0));
}

TEST_P(PathWatchTest, OneThatIsGoneForSomeTargetsOnlyIsNotReported) {
  EmulatedLeaf leaf(GetParam());
  leaf.gone_for = "10.1.2.1";
  leaf.LookOften();
  EXPECT_EQ(leaf.plan.reports_version(), 0u);
}

TEST_P(PathWatchTest, AWayThatChoosesAmongFewerThanTheOthersIsNoneOfThem) {
  EmulatedLeaf leaf(GetParam(), "spare leaf0 leaf1 0.1 leaf0:0/2>spine0\n");
  leaf.gone = {2};
  leaf.LookOften();
  EXPECT_TRUE(leaf.HasLeft(2));
  EXPECT_FALSE(leaf.HasLeft(0) || leaf.HasLeft(1) || leaf.HasLeft(3));
}

TEST_P(PathWatchTest, SilenceSaysNothing) {
  EmulatedLeaf leaf(GetParam());
  leaf.silent = {0, 1, 2, 3};
  leaf.gone = {1};
  leaf.LookOften();
  EXPECT_EQ(leaf.plan.reports_version(), 0u);
  leaf.silent = {};
  leaf.silent_each = 5;  // answers are lost
  leaf.LookOften();
  EXPECT_TRUE(leaf.HasLeft(1));
}

INSTANTIATE_TEST_SUITE_P(Hashes, PathWatchTest,
                         ::testing::Values("linux:seed=1000", "crc32:seed=7",
                                           "crc32c:select=resilient,buckets=256,seed=5"));

TEST(PathWatch, ASwitchThatHashesOtherwiseAltogetherIsNotReported) {
  EmulatedLeaf leaf("linux:seed=1000"), other("linux:seed=2000");
  PathWatch watch(
      leaf.plan, kOwn,
      [&](const auto& source, const auto& target, auto ports) {
        return other.Answer(source, target, ports);
      },
      2);
  for (int i = 0; i < 40; ++i) watch.Look();
  EXPECT_EQ(leaf.plan.reports_version(), 0u);
}

// Two cables to each of two spines, which answer from an address of each cable.
TEST(PathWatch, ASwitchBehindSeveralNextHopsThatIsGoneIsReported) {
  std::string text =
      "weft-paths 1\nranks 2\nhost h0 10.1.0.1 leaf0\nhost h1 10.1.1.1 leaf1\n"
      "hash leaf0 linux:seed=1000\n";
  for (int member = 0; member < 4; ++member) {
    absl::StrAppend(&text, "router 10.2.0.", member, " spine", member / 2, "\n");
    absl::StrAppend(&text, "spare leaf0 leaf1 0.1 leaf0:", member, "/4>spine", member / 2, "\n");
  }
  ConnectionPlan plan(*ParseConnectionPlan(text, "plan"), "plan");
  bool is_gone = false;
  PathWatch watch(
      plan, kOwn,
      [&](const IpAddress& source, const IpAddress& target, absl::Span<const uint16_t> ports) {
        const bool alive[] = {true, true, !is_gone, !is_gone};
        std::vector<std::string> names;
        for (uint16_t port : ports) {
          const FiveTuple tuple{source, target, port, kRoceTargetPort, kProtocolUdp, 0};
          names.push_back(absl::StrCat("10.2.0.", plan.text().hashes.at("leaf0").SelectAlive(
                                                      tuple, absl::MakeConstSpan(alive))));
        }
        return names;
      },
      1);
  const auto look_often = [&] {
    for (int i = 0; i < 40; ++i) watch.Look();
  };
  look_often();
  EXPECT_EQ(plan.reports_version(), 0u);
  is_gone = true;
  look_often();
  EXPECT_TRUE(plan.HasLeft("leaf0", "spine1"));
  EXPECT_FALSE(plan.HasLeft("leaf0", "spine0"));
  is_gone = false;
  look_often();
  EXPECT_FALSE(plan.HasLeft("leaf0", "spine1"));
}

TEST(PathWatch, ManyRanksUnderASwitchAskLessOftenEach) {
  EmulatedLeaf leaf("linux:seed=1000");
  EXPECT_EQ(leaf.watch.Interval(absl::Milliseconds(200)), absl::Milliseconds(200));
  EXPECT_EQ(leaf.watch.Interval(absl::Milliseconds(1)), absl::Milliseconds(25));
}

}  // namespace
}  // namespace weft::topology
