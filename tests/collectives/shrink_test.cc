// Groups made anew without the ranks that are left out, after a failure or before one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "tests/collectives/failing_groups.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

class ShrinkTest : public FailingGroups {};
INSTANTIATE_TEST_SUITE_P(Transports, ShrinkTest, kTransportsOfAHost, TransportName);

// The ranks wait for each other outside of their communicators; it counts those that have come.
void Meet(std::atomic<int>& here, int ranks) {
  ++here;
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (here < ranks && absl::Now() < limit) std::this_thread::yield();
}

// Until it fails; how often it was right before that.
int SumsBeforeFailure(Communicator& group, size_t count, absl::Status& status) {
  for (int sums = 0;; ++sums) {
    status = SumOfOnes(group, count);
    if (!status.ok()) return sums;
  }
}

// Rank 2 leaves in the middle of collectives; the others fail, shrink, and go on; then rank 0.
TEST_P(ShrinkTest, SurvivorsShrinkAndTheirNextCollectiveIsRight) {
  constexpr int kSums = 10;  // of who leaves then: it has heard of all others' calls of the last
  for (const size_t count : {100, 300000}) {
    RunRanks(4, With({"store.timeout=30s"}), [&](std::shared_ptr<Endpoint> endpoint) {
      const int me = endpoint->rank().value();
      auto group = *Communicator::Create(endpoint, "world", AllRanks(4));
      for (const int leaver : {2, 0}) {
        if (me == leaver) {
          for (int i = 0; i < kSums; ++i) EXPECT_TRUE(SumOfOnes(*group, count).ok());
          group.reset();
          endpoint.reset();
          return;
        }
        absl::Status status;
        EXPECT_GE(SumsBeforeFailure(*group, count, status), kSums - 1) << status;
        EXPECT_THAT(Text(status), HasSubstr(absl::StrCat("rank ", leaver, " is gone")));
        EXPECT_EQ(group->Shrink({group->rank()}).status().code(),
                  absl::StatusCode::kInvalidArgument);
        auto shrunk = group->Shrink({GroupRank(leaver)});
        ASSERT_TRUE(shrunk.ok()) << shrunk.status();
        EXPECT_EQ((*shrunk)->size(), group->size() - 1);
        EXPECT_FALSE(group->status().ok());
        group = *std::move(shrunk);
      }
      EXPECT_EQ(group->rank().value(), me == 3 ? 1 : 0);
      const absl::Status status = SumOfOnes(*group, count);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(group->Barrier()->Wait().ok());
    });
  }
}

// After a failure that nobody died of, everybody is a survivor.
TEST_P(ShrinkTest, AnAbortedCommunicatorIsMadeAnew) {
  RunRanks(3, With({"store.timeout=30s"}), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    EXPECT_TRUE(SumOfOnes(*world, 1000).ok() || world->rank() != GroupRank(1));
    if (world->rank() == GroupRank(1)) world->Abort(absl::AbortedError("by the test"));
    absl::Status status;
    while (status.ok()) status = SumOfOnes(*world, 100000);
    EXPECT_THAT(Text(status), HasSubstr("by the test"));
    auto anew = world->Shrink({}, "anew");
    ASSERT_TRUE(anew.ok()) << anew.status();
    EXPECT_EQ((*anew)->name(), "anew");
    status = SumOfOnes(**anew, 100000);
    EXPECT_TRUE(status.ok()) << status;
    ASSERT_TRUE((*anew)->Barrier()->Wait().ok());
  });
}

// Right after the failure, as buffers of works that are done are the caller's again.
TEST_P(ShrinkTest, WorksHaveEndedWhenShrinkReturns) {
  std::atomic<int> linked = 0;
  RunRanks(3, With({"store.timeout=30s"}), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    EXPECT_TRUE(SumOfOnes(*world, 100000).ok());
    Meet(linked, 3);
    std::vector<float> data(100000, 1);
    WorkPtr work;
    if (world->rank() != GroupRank(1)) {
      work = world->AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32,
                              ReduceOp::kSum);
    }
    world->Abort(absl::AbortedError("by the test"));
    auto anew = world->Shrink({}, "anew");
    EXPECT_TRUE(work == nullptr || work->done());
    ASSERT_TRUE(anew.ok()) << anew.status();
    EXPECT_TRUE(SumOfOnes(**anew, 1000).ok());
    ASSERT_TRUE((*anew)->Barrier()->Wait().ok());
  });
}

// The one that is left out lives, and holds up a work of the others.
TEST_P(ShrinkTest, WorksWithARankThatIsLeftOutHaveEndedWhenShrinkReturns) {
  std::atomic<int> linked = 0, shrunk = 0;
  RunRanks(3, With({"store.timeout=30s"}), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    int token = 0;
    if (world->rank() == GroupRank(2)) {
      for (const int other : {0, 1}) {
        EXPECT_TRUE(world->Send(&token, sizeof(token), GroupRank(other), 2)->Wait().ok());
      }
      Meet(linked, 3);
      Meet(shrunk, 3);
      return;
    }
    EXPECT_TRUE(world->Receive(&token, sizeof(token), GroupRank(2), 2)->Wait().ok());
    Meet(linked, 3);
    std::vector<float> data(100000, 1);
    WorkPtr receive = world->Receive(data.data(), data.size() * sizeof(float), GroupRank(2), 1);
    world->Abort(absl::AbortedError("by the test"));
    auto two = world->Shrink({GroupRank(2)});
    EXPECT_TRUE(receive->done());
    Meet(shrunk, 3);
    ASSERT_TRUE(two.ok()) << two.status();
    EXPECT_TRUE(SumOfOnes(**two, 1000).ok());
    ASSERT_TRUE((*two)->Barrier()->Wait().ok());
  });
}

// Names grow with the ranks that are left out, and keys of the store are bounded.
TEST_P(ShrinkTest, GroupsOfLongNamesShrinkAndAreToldApart) {
  std::atomic<int> paired = 0;
  RunRanks(3, With({"store.timeout=30s"}), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, std::string(3000, 'n'), AllRanks(3));
    std::vector<std::unique_ptr<Communicator>> pairs;
    for (const int leaver : {1, 2}) {
      if (endpoint->rank() == Rank(leaver)) continue;
      auto pair = world->Shrink({GroupRank(leaver)});
      ASSERT_TRUE(pair.ok()) << pair.status();
      EXPECT_TRUE(absl::StartsWith((*pair)->name(), "nnnn"));
      EXPECT_LE((*pair)->name().size(), 200u);
      EXPECT_TRUE(SumOfOnes(**pair, 1000).ok());
      pairs.push_back(*std::move(pair));
    }
    Meet(paired, 3);
    world->Abort(absl::AbortedError("by the test"));
    auto anew = world->Shrink({}, std::string(3000, 'a'));
    ASSERT_TRUE(anew.ok()) << anew.status();
    EXPECT_EQ((*anew)->name(), std::string(3000, 'a'));
    EXPECT_TRUE(SumOfOnes(**anew, 1000).ok());
    ASSERT_TRUE((*anew)->Barrier()->Wait().ok());
  });
}

// A healthy group goes on beside the one that was made of it.
TEST_P(ShrinkTest, ShrinkingAHealthyGroupLeavesItAsItIs) {
  RunRanks(3, With(), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    ASSERT_TRUE(SumOfOnes(*world, 1000).ok());
    if (world->rank() != GroupRank(0)) {
      auto two = world->Shrink({GroupRank(0)});
      ASSERT_TRUE(two.ok()) << two.status();
      EXPECT_EQ((*two)->name(), "world without 0");
      EXPECT_TRUE(SumOfOnes(**two, 1000).ok());
    }
    EXPECT_TRUE(SumOfOnes(*world, 1000).ok());
    ASSERT_TRUE(world->Barrier()->Wait().ok());
  });
}

TEST_P(ShrinkTest, SurvivorsThatDisagreeOrDoNotComeAreNamed) {
  RunRanks(4, With({"store.timeout=2s"}), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(4));
    ASSERT_TRUE(SumOfOnes(*world, 10).ok());
    const int me = world->rank().value();
    // Ranks 1 and 2 exclude each other's friends under one name.
    if (me == 1 || me == 2) {
      const auto shrunk = world->Shrink({GroupRank(me == 1 ? 0 : 3)}, "few");
      EXPECT_FALSE(shrunk.ok());
    }
    if (me == 3) {
      EXPECT_EQ(world->Shrink({GroupRank(0)}, "alone").status().code(),
                absl::StatusCode::kDeadlineExceeded);
    }
    ASSERT_TRUE(world->Barrier()->Wait().ok());
  });
}

}  // namespace
}  // namespace weft::collectives
