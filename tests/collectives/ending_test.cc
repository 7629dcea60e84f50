// Groups that a rank aborts or destroys, waits that end before their work, and ranks that leave
// when they have what they wait for: what that does to works under way, to their buffers, to links
// that other groups use, and to ranks that go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "net/eager.h"
#include "tests/collectives/failing_groups.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);  // a bound on hangs

class EndingTest : public FailingGroups {};
INSTANTIATE_TEST_SUITE_P(Transports, EndingTest, kTransportsOfAHost, TransportName);

// ---- Groups, and waits

TEST_P(EndingTest, AWaitMayEndEarlierThanItsWork) {
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

TEST_P(EndingTest, AbortFailsEveryRanksWorksWithItsReason) {
  RunWorld(3, With(), [](Communicator& world) {
    std::vector<float> data(100000);
    if (world.rank() == GroupRank(2)) {
      world.Abort(absl::AbortedError("the loss is not a number"));
      EXPECT_THAT(Text(world.Barrier()->Wait()), HasSubstr("the loss is not a number"));
      return;
    }
    WorkPtr work =
        world.AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
    const absl::Status status = work->Wait(kPatience);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(Text(status), HasSubstr("the loss is not a number"));
  });
}

TEST_P(EndingTest, AnAbortWithoutAReasonFailsEveryRanksWorksAsWell) {
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
    const absl::Status status = work->Wait(kPatience);
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("aborted without a reason"));
  });
}

TEST_P(EndingTest, DestroyingACommunicatorCancelsItsWorksAndFreesTheirBuffers) {
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
      const absl::Status status = work->Wait(kPatience);
      EXPECT_THAT(Text(status), HasSubstr("rank 0"));
    }
  });
}

// Over shm a link holds a window of small messages that came ahead of their receives.
TEST(EndingOverShmTest, SmallMessagesThatWillNotBeReceivedTakeNoPlaceOfOthers) {
  std::atomic<bool> went{false};
  RunRanks(2, {"transport=shm", "log.level=off"}, [&](std::shared_ptr<Endpoint> endpoint) {
    auto side = *Communicator::Create(endpoint, "side", AllRanks(2));
    auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
    const absl::Time limit = absl::Now() + kPatience;
    float value = 1;
    const auto send = [&](Communicator& to, uint32_t tag) {
      return to.Send(&value, sizeof value, GroupRank(1), tag)->Wait(kPatience);
    };
    const auto receive = [&](uint32_t tag) {
      return world->Receive(&value, sizeof value, GroupRank(0), tag)->Wait(kPatience);
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

// ---- Ranks

TEST_P(EndingTest, ARankThatLeavesAfterItsLastCallDisturbsNobody) {
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
TEST_P(EndingTest, ARankThatLeavesStopsNoMessageBetweenTheOthers) {
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
TEST_P(EndingTest, ARankThatHasFinishedACollectiveMayLeaveBeforeOthersCallIt) {
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
    const absl::Time until = absl::Now() + kPatience;
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
TEST(EndingOverShmTest, WhatARankSentAheadIsReceivedHoweverLate) {
  RunRanks(2, {"transport=shm", "log.level=off"}, [](std::shared_ptr<Endpoint> endpoint) {
    const bool leaves = endpoint->rank() == Rank(0);
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(2));
    int data = leaves ? 7 : 0;
    ASSERT_TRUE(world->Barrier()->Wait().ok());
    if (leaves) {
      EXPECT_TRUE(world->Send(&data, sizeof(data), GroupRank(1), 1)->Wait().ok());
      return;
    }
    const absl::Time limit = absl::Now() + kPatience;
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
TEST(EndingOverShmTest, AReceiveFromAnyRankFailsWhenAllHaveLeft) {
  std::atomic<bool> receives{false};
  RunRanks(2, {"transport=shm", "log.level=off"}, [&](std::shared_ptr<Endpoint> endpoint) {
    const bool leaves = endpoint->rank() == Rank(0);
    auto world = *Communicator::Create(std::move(endpoint), "world", AllRanks(2));
    int data = 7;
    ASSERT_TRUE(world->Barrier()->Wait().ok());
    if (leaves) {
      const absl::Time limit = absl::Now() + kPatience;
      while (!receives && absl::Now() < limit) std::this_thread::yield();
      EXPECT_TRUE(world->Send(&data, sizeof(data), GroupRank(1), 1)->Wait().ok());
      return;
    }
    WorkPtr work = world->ReceiveAny(&data, sizeof(data), 2);
    receives = true;
    EXPECT_THAT(Text(work->Wait(kPatience)), HasSubstr("rank 0 is gone"));
  });
}

}  // namespace
}  // namespace weft::collectives
