// Ranks that call different collectives, or call one late or never: the difference is named, on
// every rank, and soon; nothing hangs, and nobody who is merely ahead is blamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/failure.h"
#include "collectives/communicator.h"
#include "tests/collectives/failing_groups.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(60);  // a bound on hangs

struct Difference {
  const char* name;
  std::function<WorkPtr(Communicator&, float*)> usual, other;
  const char* usual_text;
  const char* other_text;
};

const std::vector<Difference>& Differences() {
  static const std::vector<Difference> kDifferences = {
      {"count",
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 100, DataType::kFloat32, ReduceOp::kSum);
       },
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 96, DataType::kFloat32, ReduceOp::kSum);
       },
       "all_reduce(float, sum, count 100, ", "all_reduce(float, sum, count 96, "},
      {"large count",
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 50000, DataType::kFloat32, ReduceOp::kSum);
       },
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 60000, DataType::kFloat32, ReduceOp::kSum);
       },
       "count 50000, ", "count 60000, "},
      {"small and large count",  // within a host by rings, and by links
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 10, DataType::kFloat32, ReduceOp::kSum);
       },
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 60000, DataType::kFloat32, ReduceOp::kSum);
       },
       "count 10, ", "count 60000, "},
      {"operator",
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 10, DataType::kFloat32, ReduceOp::kSum);
       },
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 10, DataType::kFloat32, ReduceOp::kMax);
       },
       "all_reduce(float, sum,", "all_reduce(float, max,"},
      {"type",
       [](Communicator& c, float* d) { return c.AllGather(d, d + 1000, 10, DataType::kFloat32); },
       [](Communicator& c, float* d) { return c.AllGather(d, d + 1000, 10, DataType::kInt32); },
       "all_gather(float,", "all_gather(int32,"},
      {"kind",
       [](Communicator& c, float* d) {
         return c.AllReduce(d, d, 10, DataType::kFloat32, ReduceOp::kSum);
       },
       [](Communicator& c, float*) { return c.Barrier(); }, "all_reduce(float, sum, count 10, ",
       "barrier("},
      {"root",
       [](Communicator& c, float* d) {
         return c.Broadcast(d, d, 10, DataType::kFloat32, GroupRank(0));
       },
       [](Communicator& c, float* d) {
         return c.Broadcast(d, d, 10, DataType::kFloat32, GroupRank(2));
       },
       "root 0", "root 2"},
      {"counts",
       [](Communicator& c, float* d) {
         return c.AllGatherV(d, d + 1000, {5, 5, 5, 5}, {0, 5, 10, 15}, DataType::kFloat32);
       },
       [](Communicator& c, float* d) {
         return c.AllGatherV(d, d + 1000, {4, 6, 5, 5}, {0, 5, 11, 16}, DataType::kFloat32);
       },
       "all_gather_v(float, counts of sum 20", "all_gather_v(float, counts of sum 20"},
      {"typical count",
       [](Communicator& c, float* d) {
         return c.AllToAllV(d, {1, 1, 1, 1}, {0, 1, 2, 3}, d + 1000, {1, 1, 1, 1}, {0, 1, 2, 3},
                            DataType::kFloat32, 7);
       },
       [](Communicator& c, float* d) {
         return c.AllToAllV(d, {1, 1, 1, 1}, {0, 1, 2, 3}, d + 1000, {1, 1, 1, 1}, {0, 1, 2, 3},
                            DataType::kFloat32, 8);
       },
       "all_to_all_v(float, typical count 7, ", "all_to_all_v(float, typical count 8, "},
  };
  return kDifferences;
}

class MismatchTest : public FailingGroups {};
INSTANTIATE_TEST_SUITE_P(Transports, MismatchTest, kTransportsOfAHost, TransportName);

TEST_P(MismatchTest, EveryKindOfMismatchIsToldToEveryRankNamingTheOneThatDiffers) {
  for (const Difference& difference : Differences()) {
    std::atomic<int> failed{0};
    RunWorld(4, With(), [&](Communicator& world) {
      std::vector<float> data(200000, 1);
      ASSERT_TRUE(world.Barrier()->Wait().ok());
      const bool differs = world.rank() == GroupRank(2);
      WorkPtr work = (differs ? difference.other : difference.usual)(world, data.data());
      // Ranks that need nothing from anybody may succeed; their next call may not.
      absl::Status status = work->Wait(kPatience);
      if (status.ok()) status = world.Barrier()->Wait(kPatience);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition)
          << difference.name << " rank " << world.rank().value() << ": " << status;
      EXPECT_THAT(Text(status),
                  AllOf(HasSubstr("communicator \"world\": collective #1: rank 2 called "),
                        HasSubstr(difference.other_text), HasSubstr("ranks 0, 1 and 3 called"),
                        HasSubstr(difference.usual_text)))
          << difference.name << " rank " << world.rank().value();
      const Failure concerned{.scope = FailureScope::kRequest, .rank = 2};
      EXPECT_EQ(FailureOf(status), concerned) << ToText(FailureOf(status));
      // What has failed stays so.
      EXPECT_EQ(world.Barrier()->Wait(), world.status());
      ++failed;
    });
    EXPECT_EQ(failed, 4) << difference.name;
  }
}

// Each takes itself for the only one that has anything, so that neither expects a message.
TEST_P(MismatchTest, RanksThatDisagreeWhoHasTheOnlyPartAreTold) {
  RunWorld(2, With(), [](Communicator& world) {
    float mine = 1, all[2] = {};
    ASSERT_TRUE(world.Barrier()->Wait().ok());
    std::vector<size_t> counts(2, 0);
    counts[world.rank().index()] = 1;
    const absl::Status status =
        world.AllGatherV(&mine, all, counts, {0, 1}, DataType::kFloat32)->Wait(kPatience);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(Text(status), HasSubstr("rank 1 called all_gather_v(float, counts of sum 1"));
  });
}

TEST_P(MismatchTest, UnequalCountsOfAllToAllVAreFound) {
  RunWorld(2, With(), [](Communicator& world) {
    std::vector<float> in(100), out(100);
    const size_t expected = world.rank() == GroupRank(0) ? 5 : 4;  // from the other, who sends 4
    const size_t own = world.rank().index();
    std::vector<size_t> in_counts(2, 4), out_counts(2, expected);
    in_counts[own] = out_counts[own] = 1;
    WorkPtr work = world.AllToAllV(in.data(), in_counts, {0, 50}, out.data(), out_counts, {0, 50},
                                   DataType::kFloat32);
    absl::Status status = work->Wait(kPatience);
    if (status.ok()) status = world.Barrier()->Wait(kPatience);
    EXPECT_THAT(Text(status), HasSubstr("16 bytes where 20 were expected"));
  });
}

TEST_P(MismatchTest, AMissingRankIsNamedAfterTheTimeout) {
  // The calls before it, which make the links, are to end well within the same time.
  RunRanks(3, With({"collective.timeout=3s"}), [](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    auto side = *Communicator::Create(endpoint, "side", AllRanks(3));
    float data[8] = {};
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(world->AllReduce(data, data, 8, DataType::kFloat32, ReduceOp::kSum)->Wait().ok());
    }
    if (endpoint->rank() != Rank(1)) {
      const absl::Status status =
          world->AllReduce(data, data, 8, DataType::kFloat32, ReduceOp::kSum)->Wait();
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(Text(status), HasSubstr("rank 1 has not called it: its next is #2"));
      EXPECT_EQ(FailureOf(status).scope, FailureScope::kRequest);
      EXPECT_EQ(FailureOf(status).rank, 1);
    } else {
      // Idle, and told nevertheless.
      const absl::Time limit = absl::Now() + kPatience;
      while (world->status().ok() && absl::Now() < limit) std::this_thread::yield();
      EXPECT_EQ(world->status().code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(FailureOf(world->status()).rank, 1);  // as data, from another rank
    }
  });
}

// A start of many ranks on few cores waits longer than a stall; questions to everybody would then
// open a link from each rank to each other.
TEST_P(MismatchTest, RanksThatWaitForALateOneOpenNoLinksToOthers) {
  constexpr int kRanks = 8, kLate = 3;
  RunRanks(kRanks, With({"collective.algorithm=ring"}), [&](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(endpoint, "world", AllRanks(kRanks));
    if (me == kLate) absl::SleepFor(absl::Milliseconds(700));
    EXPECT_TRUE(SumOfOnes(*world, 1000).ok());
    for (const Endpoint::LinkCounters& link : endpoint->Counters()) {
      const int distance = (link.peer.value() - me + kRanks) % kRanks;
      EXPECT_TRUE(distance == 1 || distance == kRanks - 1)
          << "rank " << me << " has a link with rank " << link.peer.value();
    }
  });
}

// A rank may make more calls at once than it remembers; another makes them one by one.
TEST_P(MismatchTest, CallsFarAheadOfAnotherRankAreNotTakenForCallsThatDiffer) {
  constexpr size_t kCalls = 100;
  RunRanks(3, With(), [&](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(3));
    if (me == 2) absl::SleepFor(absl::Milliseconds(1200));
    std::vector<float> data(kCalls * kCalls);
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < kCalls; ++i) {
      works.push_back(world->AllReduce(&data[i * kCalls], &data[i * kCalls], i + 1,
                                       DataType::kFloat32, ReduceOp::kSum));
      if (me != 0) {
        ASSERT_TRUE(works.back()->Wait().ok()) << works.back()->status();
      }
    }
    for (const WorkPtr& work : works) ASSERT_TRUE(work->Wait().ok()) << work->status();
  });
}

// Rank 0 has made more calls than it remembers when rank 1, whose time runs out first, asks it.
TEST_P(MismatchTest, ARankThatIsFarAheadIsNotBlamedForOneThatIsMissing) {
  constexpr int kCalls = 100;
  std::atomic<bool> called = false, failed = false;
  RunRanks(3, With({"collective.timeout=3s"}), [&](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(3));
    float data[3] = {};
    std::vector<WorkPtr> works;
    const absl::Time called_limit = absl::Now() + kPatience;
    while (me == 0 && !called && absl::Now() < called_limit) std::this_thread::yield();
    if (me == 0) absl::SleepFor(absl::Milliseconds(300));
    for (int i = 0; i < (me == 0 ? kCalls : me == 1 ? 1 : 0); ++i) {
      works.push_back(world->AllReduce(data, data, 3, DataType::kFloat32, ReduceOp::kSum));
    }
    if (me == 1) called = true;
    for (const WorkPtr& work : works) {
      const absl::Status status = work->Wait();
      EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 2 has not called it"),
                                      Not(HasSubstr("no such communicator"))));
      EXPECT_EQ(FailureOf(status).rank, 2) << status;
    }
    if (me != 2) failed = true;
    const absl::Time limit = absl::Now() + kPatience;
    while (!failed && absl::Now() < limit) std::this_thread::yield();
  });
}

}  // namespace
}  // namespace weft::collectives
