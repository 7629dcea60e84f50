// What goes wrong must be named, on every rank, and soon; nothing may hang.
#include "base/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "net/eager.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

// ---- Calls that differ

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

class FailureTest : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With(SettingPairs more = {}) const {
    more.push_back(absl::StrCat("transport=", GetParam()));
    more.emplace_back("log.level=off");
    return more;
  }
};

TEST_P(FailureTest, EveryKindOfMismatchIsToldToEveryRankNamingTheOneThatDiffers) {
  for (const Difference& difference : Differences()) {
    std::atomic<int> failed{0};
    RunWorld(4, With(), [&](Communicator& world) {
      std::vector<float> data(200000, 1);
      ASSERT_TRUE(world.Barrier()->Wait().ok());
      const bool differs = world.rank() == GroupRank(2);
      WorkPtr work = (differs ? difference.other : difference.usual)(world, data.data());
      // Ranks that need nothing from anybody may succeed; their next call may not.
      absl::Status status = work->Wait(absl::Seconds(10));
      if (status.ok()) status = world.Barrier()->Wait(absl::Seconds(10));
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
TEST_P(FailureTest, RanksThatDisagreeWhoHasTheOnlyPartAreTold) {
  RunWorld(2, With(), [](Communicator& world) {
    float mine = 1, all[2] = {};
    ASSERT_TRUE(world.Barrier()->Wait().ok());
    std::vector<size_t> counts(2, 0);
    counts[world.rank().index()] = 1;
    const absl::Status status =
        world.AllGatherV(&mine, all, counts, {0, 1}, DataType::kFloat32)->Wait(absl::Seconds(10));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(Text(status), HasSubstr("rank 1 called all_gather_v(float, counts of sum 1"));
  });
}

TEST_P(FailureTest, UnequalCountsOfAllToAllVAreFound) {
  RunWorld(2, With(), [](Communicator& world) {
    std::vector<float> in(100), out(100);
    const size_t expected = world.rank() == GroupRank(0) ? 5 : 4;  // from the other, who sends 4
    const size_t own = world.rank().index();
    std::vector<size_t> in_counts(2, 4), out_counts(2, expected);
    in_counts[own] = out_counts[own] = 1;
    WorkPtr work = world.AllToAllV(in.data(), in_counts, {0, 50}, out.data(), out_counts, {0, 50},
                                   DataType::kFloat32);
    absl::Status status = work->Wait(absl::Seconds(10));
    if (status.ok()) status = world.Barrier()->Wait(absl::Seconds(10));
    EXPECT_THAT(Text(status), HasSubstr("16 bytes where 20 were expected"));
  });
}

TEST_P(FailureTest, AMissingRankIsNamedAfterTheTimeout) {
  RunRanks(3, With({"collective.timeout=800ms"}), [](std::shared_ptr<Endpoint> endpoint) {
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
      const absl::Time limit = absl::Now() + absl::Seconds(20);
      while (world->status().ok() && absl::Now() < limit) std::this_thread::yield();
      EXPECT_EQ(world->status().code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(FailureOf(world->status()).rank, 1);  // as data, from another rank
    }
  });
}

// A start of many ranks on few cores waits longer than a stall; questions to everybody would then
// open a link from each rank to each other.
TEST_P(FailureTest, RanksThatWaitForALateOneOpenNoLinksToOthers) {
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
TEST_P(FailureTest, CallsFarAheadOfAnotherRankAreNotTakenForCallsThatDiffer) {
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
TEST_P(FailureTest, ARankThatIsFarAheadIsNotBlamedForOneThatIsMissing) {
  constexpr int kCalls = 100;
  std::atomic<bool> failed = false;
  RunRanks(3, With({"collective.timeout=1500ms"}), [&](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(3));
    float data[3] = {};
    std::vector<WorkPtr> works;
    if (me == 0) absl::SleepFor(absl::Milliseconds(300));
    for (int i = 0; i < (me == 0 ? kCalls : me == 1 ? 1 : 0); ++i) {
      works.push_back(world->AllReduce(data, data, 3, DataType::kFloat32, ReduceOp::kSum));
    }
    for (const WorkPtr& work : works) {
      const absl::Status status = work->Wait();
      EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 2 has not called it"),
                                      Not(HasSubstr("no such communicator"))));
      EXPECT_EQ(FailureOf(status).rank, 2) << status;
    }
    if (me != 2) failed = true;
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    while (!failed && absl::Now() < limit) std::this_thread::yield();
  });
}

TEST_P(FailureTest, AWaitMayEndEarlierThanItsWork) {
  RunWorld(2, With(), [](Communicator& world) {
    int value = world.rank().value(), signal = 0;
    if (world.rank() == GroupRank(0)) {
      WorkPtr work = world.Receive(&value, sizeof(value), GroupRank(1), 5);
      EXPECT_EQ(work->Wait(absl::Milliseconds(10)).code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_FALSE(work->done());
      ASSERT_TRUE(world.Send(&signal, sizeof(signal), GroupRank(1), 6)->Wait().ok());
      EXPECT_TRUE(work->Wait().ok());
      EXPECT_EQ(value, 1);
    } else {
      ASSERT_TRUE(world.Receive(&signal, sizeof(signal), GroupRank(0), 6)->Wait().ok());
      ASSERT_TRUE(world.Send(&value, sizeof(value), GroupRank(0), 5)->Wait().ok());
    }
  });
}

TEST_P(FailureTest, AbortFailsEveryRanksWorksWithItsReason) {
  RunWorld(3, With(), [](Communicator& world) {
    std::vector<float> data(100000);
    if (world.rank() == GroupRank(2)) {
      world.Abort(absl::AbortedError("the loss is not a number"));
      EXPECT_THAT(Text(world.Barrier()->Wait()), HasSubstr("the loss is not a number"));
      return;
    }
    WorkPtr work =
        world.AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
    const absl::Status status = work->Wait(absl::Seconds(10));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(Text(status), HasSubstr("the loss is not a number"));
  });
}

TEST_P(FailureTest, AnAbortWithoutAReasonFailsEveryRanksWorksAsWell) {
  RunWorld(3, With(), [](Communicator& world) {
    std::vector<float> data(100000);
    WorkPtr work;
    if (world.rank() == GroupRank(2)) {
      world.Abort(absl::OkStatus());
      work = world.Barrier();
    } else {
      work = world.AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32,
                             ReduceOp::kSum);
    }
    const absl::Status status = work->Wait(absl::Seconds(30));
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("aborted without a reason"));
  });
}

TEST_P(FailureTest, DestroyingACommunicatorCancelsItsWorksAndFreesTheirBuffers) {
  RunRanks(2, With(), [](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
    auto data = std::make_unique<std::vector<float>>(500000, 1.0f);
    WorkPtr work;
    if (endpoint->rank() == Rank(0)) {
      work = world->AllReduce(data->data(), data->data(), data->size(), DataType::kFloat32,
                              ReduceOp::kSum);
      world.reset();
      data.reset();  // a later write would be seen by AddressSanitizer
      ASSERT_TRUE(work->done());
      EXPECT_EQ(work->Wait().code(), absl::StatusCode::kCancelled);
    } else {
      work = world->AllReduce(data->data(), data->data(), data->size(), DataType::kFloat32,
                              ReduceOp::kSum);
      const absl::Status status = work->Wait(absl::Seconds(10));
      EXPECT_THAT(Text(status), HasSubstr("rank 0"));
    }
  });
}

TEST_P(FailureTest, ARankThatLeavesAfterItsLastCallDisturbsNobody) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    RunWorld(4, With(), [](Communicator& world) {
      std::vector<float> data(1000 * (1 + world.rank().index()), 1);
      data.resize(20000);
      const absl::Status status =
          world
              .AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum)
              ->Wait();
      EXPECT_TRUE(status.ok()) << status;
    });
  }
}

// Rank 1 gets what it waits for and leaves; the other two go on without it.
TEST_P(FailureTest, ARankThatLeavesStopsNoMessageBetweenTheOthers) {
  constexpr int kRounds = 300;  // its end is noticed during one of them
  std::atomic<bool> left = false;
  RunRanks(3, With(), [&](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(3));
    int data = me, got = -1;
    const auto send = [&](int peer) {
      return world->Send(&data, sizeof(data), GroupRank(peer), 1)->Wait();
    };
    const auto receive = [&](int peer) {
      return world->Receive(&got, sizeof(got), GroupRank(peer), 1)->Wait();
    };
    if (me == 1) {
      EXPECT_TRUE(receive(0).ok());
      world.reset();  // and the endpoint
      left = true;
      return;
    }
    if (me == 0) {
      EXPECT_TRUE(send(1).ok());
      while (!left) std::this_thread::yield();
    }
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE((me == 0 ? send(2) : receive(0)).ok()) << world->status();
      ASSERT_TRUE((me == 0 ? receive(2) : send(0)).ok()) << world->status();
    }
    if (me == 0) {
      EXPECT_THAT(Text(send(1)), HasSubstr("rank 1 is gone"));
    }
  });
}

// Nothing is in rank 0's messages, so that the others may call when it has left already.
TEST_P(FailureTest, ARankThatHasFinishedACollectiveMayLeaveBeforeOthersCallIt) {
  std::atomic<bool> left = false;
  RunRanks(3, With(), [&](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(3));
    float one = 1, all[3] = {};
    ASSERT_TRUE(world->AllGather(&one, all, 1, DataType::kFloat32)->Wait().ok());
    if (me == 0) {
      ASSERT_TRUE(
          world->AllGatherV(&one, all, {0, 0, 0}, {0, 0, 0}, DataType::kFloat32)->Wait().ok());
      world.reset();  // and the endpoint
      left = true;
      return;
    }
    while (!left) std::this_thread::yield();
    // Until its end is noticed.
    const absl::Time until = absl::Now() + absl::Seconds(20);
    int data = 0;
    const auto message = [&] {
      return me == 1 ? world->Send(&data, sizeof(data), GroupRank(2), 1)->Wait()
                     : world->Receive(&data, sizeof(data), GroupRank(1), 1)->Wait();
    };
    for (int round = 0; round < 200 && absl::Now() < until; ++round) {
      ASSERT_TRUE(message().ok()) << world->status();
    }
    const absl::Status status =
        world->AllGatherV(&one, all, {0, 0, 0}, {0, 0, 0}, DataType::kFloat32)->Wait();
    EXPECT_TRUE(status.ok()) << status;
    // The one after that needs a rank that is not there. Only one calls it, when the other is done.
    int token = 0;
    if (me == 2) {
      world->Send(&token, sizeof(token), GroupRank(1), 2)->Wait().IgnoreError();
      return;
    }
    ASSERT_TRUE(world->Receive(&token, sizeof(token), GroupRank(2), 2)->Wait().ok());
    EXPECT_THAT(Text(world->AllGather(&one, all, 1, DataType::kFloat32)->Wait()),
                HasSubstr("is gone"));
  });
}

// Rank 0 leaves when its message is sent, and its end is noticed before the other one receives.
TEST(LeavingTest, WhatARankSentAheadIsReceivedHoweverLate) {
  RunRanks(2, {"transport=shm", "log.level=off"}, [](std::shared_ptr<Endpoint> endpoint) {
    const bool leaves = endpoint->rank() == Rank(0);
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(2));
    int data = leaves ? 7 : 0;
    ASSERT_TRUE(world->Barrier()->Wait().ok());
    if (leaves) {
      EXPECT_TRUE(world->Send(&data, sizeof(data), GroupRank(1), 1)->Wait().ok());
      return;
    }
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    while (world->health().ok() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_THAT(Text(world->health()), HasSubstr("rank 0 is gone"));
    const auto receive = [&] {
      return world->Receive(&data, sizeof(data), GroupRank(0), 1)->Wait();
    };
    EXPECT_EQ(receive(), absl::OkStatus());
    EXPECT_EQ(data, 7);
    EXPECT_THAT(Text(receive()), HasSubstr("rank 0 is gone"));
  });
}

// What rank 0 sent ahead keeps its link, but nobody receives that.
TEST(LeavingTest, AReceiveFromAnyRankFailsWhenAllHaveLeft) {
  std::atomic<bool> receives{false};
  RunRanks(2, {"transport=shm", "log.level=off"}, [&](std::shared_ptr<Endpoint> endpoint) {
    const bool leaves = endpoint->rank() == Rank(0);
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(2));
    int data = 7;
    ASSERT_TRUE(world->Barrier()->Wait().ok());
    if (leaves) {
      const absl::Time limit = absl::Now() + absl::Seconds(20);
      while (!receives && absl::Now() < limit) std::this_thread::yield();
      EXPECT_TRUE(world->Send(&data, sizeof(data), GroupRank(1), 1)->Wait().ok());
      return;
    }
    WorkPtr work = world->ReceiveAny(&data, sizeof(data), 2);
    receives = true;
    EXPECT_THAT(Text(work->Wait(absl::Seconds(20))), HasSubstr("rank 0 is gone"));
  });
}

// ---- Shrinking

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
TEST_P(FailureTest, SurvivorsShrinkAndTheirNextCollectiveIsRight) {
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
TEST_P(FailureTest, AnAbortedCommunicatorIsMadeAnew) {
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
TEST_P(FailureTest, WorksHaveEndedWhenShrinkReturns) {
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
TEST_P(FailureTest, WorksWithARankThatIsLeftOutHaveEndedWhenShrinkReturns) {
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
TEST_P(FailureTest, GroupsOfLongNamesShrinkAndAreToldApart) {
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
TEST_P(FailureTest, ShrinkingAHealthyGroupLeavesItAsItIs) {
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

TEST_P(FailureTest, SurvivorsThatDisagreeOrDoNotComeAreNamed) {
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

// ---- What a failed group leaves at links

// Over shm a link holds a window of small messages that came ahead of their receives.
TEST(FailedGroups, SmallMessagesThatWillNotBeReceivedTakeNoPlaceOfOthers) {
  std::atomic<bool> went{false};
  RunRanks(2, {"transport=shm", "log.level=off"}, [&](std::shared_ptr<Endpoint> endpoint) {
    auto side = *Communicator::Create(endpoint, "side", AllRanks(2));
    auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    float value = 1;
    const auto send = [&](Communicator& to, uint32_t tag) {
      return to.Send(&value, sizeof value, GroupRank(1), tag)->Wait(absl::Seconds(10));
    };
    const auto receive = [&](uint32_t tag) {
      return world->Receive(&value, sizeof value, GroupRank(0), tag)->Wait(absl::Seconds(10));
    };
    if (endpoint->rank() == Rank(0)) {
      ASSERT_TRUE(send(*world, 1).ok());  // the link stands
      for (uint32_t i = 0; i + 1 < net::EagerRecord::kWindow; ++i) {
        ASSERT_TRUE(send(*side, i).ok()) << i;
      }
      ASSERT_TRUE(send(*world, 2).ok());  // the last place
      while (side->status().ok() && absl::Now() < limit) std::this_thread::yield();
      ASSERT_FALSE(side->status().ok());
      const absl::Status status = send(*world, 3);
      EXPECT_TRUE(status.ok()) << "its receive is posted later: " << status;
      went = true;
    } else {
      ASSERT_TRUE(receive(1).ok() && receive(2).ok());
      side->Abort(absl::AbortedError("by the test"));
      while (!went && absl::Now() < limit) std::this_thread::yield();
      ASSERT_TRUE(went);
      EXPECT_TRUE(receive(3).ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, FailureTest, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weft::collectives
