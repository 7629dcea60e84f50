// Ranks that leave when they have what they wait for: the others go on, until they need them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "tests/collectives/failing_groups.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

class LeavingTest : public FailingGroups {};
INSTANTIATE_TEST_SUITE_P(Transports, LeavingTest, kTransportsOfAHost, TransportName);

TEST_P(LeavingTest, ARankThatLeavesAfterItsLastCallDisturbsNobody) {
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
TEST_P(LeavingTest, ARankThatLeavesStopsNoMessageBetweenTheOthers) {
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
TEST_P(LeavingTest, ARankThatHasFinishedACollectiveMayLeaveBeforeOthersCallIt) {
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
TEST(LeavingOverShmTest, WhatARankSentAheadIsReceivedHoweverLate) {
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
TEST(LeavingOverShmTest, AReceiveFromAnyRankFailsWhenAllHaveLeft) {
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

}  // namespace
}  // namespace weft::collectives
