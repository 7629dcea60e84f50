// Groups that a rank aborts or destroys, and waits that end before their work: what they do to
// works under way, to their buffers, and to links that other groups use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "net/eager.h"
#include "tests/collectives/failing_groups.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

class AbortTest : public FailingGroups {};
INSTANTIATE_TEST_SUITE_P(Transports, AbortTest, kTransportsOfAHost, TransportName);

TEST_P(AbortTest, AWaitMayEndEarlierThanItsWork) {
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

TEST_P(AbortTest, AbortFailsEveryRanksWorksWithItsReason) {
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

TEST_P(AbortTest, AnAbortWithoutAReasonFailsEveryRanksWorksAsWell) {
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

TEST_P(AbortTest, DestroyingACommunicatorCancelsItsWorksAndFreesTheirBuffers) {
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

}  // namespace
}  // namespace weft::collectives
