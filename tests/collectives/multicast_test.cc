// Small collectives of ranks that share memory: which go by rings, that they give what links give,
// how far calls run ahead, and what becomes of ranks that cannot map a ring.
#include "collectives/multicast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/planner/planner.h"
#include "tests/collectives/job.h"
#include "tests/collectives/naive.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

// Bytes that the links of an endpoint have carried as messages.
uint64_t BytesByLinks(const Endpoint& endpoint) {
  uint64_t bytes = 0;
  for (const auto& link : endpoint.Counters()) bytes += link.counters.bytes_transmitted;
  return bytes;
}

WorkPtr Sum(Communicator& group, std::vector<float>& data) {
  return group.AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
}

TEST(MulticastTest, SmallCallsGoByRingsOnceTheseAreOpen) {
  RunRanks(3, {}, [](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    std::vector<float> small(64, 1), large(100000, 1);
    const WorkPtr first = Sum(*world, small);
    ASSERT_DONE(first);
    EXPECT_EQ(first->algorithm(), "multicast");
    const uint64_t opened = BytesByLinks(*endpoint);
    EXPECT_GT(opened, 0);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(SumOfOnes(*world, 256).ok());
    EXPECT_EQ(BytesByLinks(*endpoint), opened);
    const WorkPtr other = Sum(*world, large);
    ASSERT_DONE(other);
    EXPECT_NE(other->algorithm(), "multicast");
    EXPECT_GT(BytesByLinks(*endpoint), opened);
    ASSERT_DONE(world->Barrier());
  });
}

TEST(MulticastTest, AllKindsGiveTheNaiveResult) {
  for (int size : {2, 3, 5, 8}) {
    RunRanks(size, {"collective.algorithm=multicast", "shm.multicast_max=64KiB"},
             [size](std::shared_ptr<Endpoint> endpoint) {
               auto world = *Communicator::Create(endpoint, "world", AllRanks(size));
               for (size_t count : {1, 3, 63, 500}) {
                 CheckAll(*world, DataType::kFloat32, ReduceOp::kSum, count);
                 CheckAll(*world, DataType::kInt8, ReduceOp::kMax, count);
                 CheckAll(*world, DataType::kFloat64, ReduceOp::kProduct, count);
                 if (testing::Test::HasFailure()) return;
               }
             });
  }
}

TEST(MulticastTest, ResultsAreThoseOfOneshotToTheBit) {
  constexpr size_t kCount = 777;
  std::vector<std::vector<float>> results;
  for (const char* algorithm : {"multicast", "oneshot"}) {
    std::vector<float> result;
    RunRanks(4, {absl::StrCat("collective.algorithm=", algorithm)},
             [&](std::shared_ptr<Endpoint> endpoint) {
               auto world = *Communicator::Create(endpoint, "world", AllRanks(4));
               std::vector<float> data(kCount);
               for (size_t i = 0; i < kCount; ++i) {
                 data[i] = 1.0f / static_cast<float>(1 + i * 7 + endpoint->rank().index() * 1001);
               }
               ASSERT_DONE(world->AllReduce(data.data(), data.data(), kCount, DataType::kFloat32,
                                            ReduceOp::kAverage));
               if (endpoint->rank() == Rank(2)) result = data;
             });
    results.push_back(result);
  }
  EXPECT_EQ(results[0], results[1]);
}

// Many more calls under way than a ring has entries, and a rank that comes late.
TEST(MulticastTest, CallsRunAheadAndWaitForEntries) {
  RunWorld(3, {}, [](Communicator& world) {
    constexpr int kCalls = 200;
    std::vector<std::vector<float>> data(kCalls);
    std::vector<WorkPtr> works;
    if (world.rank() == GroupRank(1)) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (int i = 0; i < kCalls; ++i) {
      data[i].assign(10, static_cast<float>(i));
      works.push_back(Sum(world, data[i]));
    }
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_DONE(works[i]);
      EXPECT_EQ(data[i], std::vector<float>(10, 3.0f * static_cast<float>(i)));
    }
  });
}

// Ranks that wait for entries sleep; they are given back by a rank that calls nothing more until
// the call that waits is done.
TEST(MulticastTest, WhoWaitsForAnEntryGoesOnWhenItsReadersHaveFinished) {
  std::atomic<int> done{0};
  RunWorld(3, {"wait.spin=0s", "wait.yield=0s"}, [&](Communicator& world) {
    constexpr int kEntries = net::shm::MulticastRing::kEntries;
    ASSERT_DONE(world.Barrier());
    for (int round = 1; round <= 5; ++round) {
      std::vector<float> data(kEntries + 1, 1);
      std::vector<WorkPtr> works;
      const auto call = [&](int i) {
        works.push_back(world.Broadcast(&data[i], &data[i], 1, DataType::kFloat32, GroupRank(0)));
      };
      const bool is_late = world.rank() == GroupRank(2);
      if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int i = 0; i < kEntries; ++i) call(i);
      if (!is_late) call(kEntries);
      for (int i = 0; i < kEntries; ++i) ASSERT_DONE(works[i]);
      if (is_late) {
        while (done < round) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        call(kEntries);
      }
      ASSERT_DONE(works.back());  // of rank 1: needs the root alone
      if (world.rank() == GroupRank(1)) ++done;
    }
  });
}

TEST(MulticastTest, ALeafOfABroadcastWaitsForItsRootAlone) {
  std::atomic<bool> is_done{false};
  RunWorld(3, {}, [&](Communicator& world) {
    ASSERT_DONE(world.Barrier());
    float value = world.rank() == GroupRank(0) ? 5 : 0;
    if (world.rank() == GroupRank(2)) {
      while (!is_done) std::this_thread::yield();
    }
    const WorkPtr work = world.Broadcast(&value, &value, 1, DataType::kFloat32, GroupRank(0));
    ASSERT_DONE(work);
    EXPECT_EQ(value, 5);
    if (world.rank() == GroupRank(1)) is_done = true;
  });
}

// Where all parts of an all-gather-v are empty, no rank needs another one, nor open rings.
TEST(MulticastTest, CallsWithoutMessagesWaitForNobody) {
  std::atomic<bool> is_done{false};
  RunWorld(3, {}, [&](Communicator& world) {
    float value = 1;
    if (world.rank() != GroupRank(0)) {
      while (!is_done) std::this_thread::yield();
    }
    ASSERT_DONE(world.AllGatherV(&value, &value, {0, 0, 0}, {0, 0, 0}, DataType::kFloat32));
    is_done = true;
    ASSERT_TRUE(SumOfOnes(world, 3).ok());
  });
}

TEST(MulticastTest, GroupsThatComeAndGoHaveRingsOfTheirOwn) {
  RunRanks(3, {}, [](std::shared_ptr<Endpoint> endpoint) {
    for (int life = 0; life < 30; ++life) {
      auto all = *Communicator::Create(endpoint, absl::StrCat("all ", life), AllRanks(3));
      auto same = *Communicator::Create(endpoint, absl::StrCat("others ", life), AllRanks(3));
      // In every third life the first group has no call at all.
      ASSERT_TRUE(life % 3 == 0 || SumOfOnes(*all, 5).ok());
      ASSERT_TRUE(SumOfOnes(*same, 7).ok());
      ASSERT_TRUE(SumOfOnes(*same, 7).ok());
      ASSERT_TRUE(life % 3 == 0 || SumOfOnes(*all, 5).ok());
    }
  });
}

// Threads that wait for calls of their own groups hand the role of driver to one another; some take
// it before their call has begun.
TEST(MulticastTest, ThreadsWaitForCallsOfSeveralGroups) {
  RunRanks(2, {}, [](std::shared_ptr<Endpoint> endpoint) {
    constexpr int kThreads = 3;
    for (int life = 0; life < 50; ++life) {
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int i = 0; i < kThreads; ++i) {
        groups.push_back(
            *Communicator::Create(endpoint, absl::StrCat(life, " of ", i), AllRanks(2)));
      }
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          for (int call = 0; call < 10; ++call) EXPECT_TRUE(SumOfOnes(*groups[i], 9).ok());
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  });
}

TEST(MulticastTest, TheSettingEndsThem) {
  RunWorld(2, {"shm.multicast_max=0"}, [](Communicator& world) {
    std::vector<float> data(4, 1);
    const WorkPtr work = Sum(world, data);
    ASSERT_DONE(work);
    EXPECT_NE(work->algorithm(), "multicast");
  });
}

// Where one rank has no memory for a ring, links run the same schedule on all.
TEST(MulticastTest, WithoutDescriptorsForRingsLinksDoIt) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 60;  // half of them are for rings: the endpoints of this process have more
  RunRanks(3, {}, [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    ASSERT_TRUE(SumOfOnes(*world, 100000).ok());  // links are there
    ASSERT_DONE(world->Barrier());
    auto scarce = *Communicator::Create(endpoint, "scarce", AllRanks(3));
    const bool limits = endpoint->rank() == Rank(0);
    ASSERT_TRUE(!limits || setrlimit(RLIMIT_NOFILE, &few) == 0);
    ASSERT_TRUE(SumOfOnes(*world, 3).ok());
    const uint64_t bytes = BytesByLinks(*endpoint);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(SumOfOnes(*scarce, 3).ok());
    EXPECT_GT(BytesByLinks(*endpoint), bytes + 5 * 3 * sizeof(float));
    ASSERT_DONE(world->Barrier());
    ASSERT_TRUE(!limits || setrlimit(RLIMIT_NOFILE, &before) == 0);
    ASSERT_DONE(world->Barrier());
  });
}

TEST(MulticastTest, RefusedRingsGiveTheirMemoryBack) {
  MulticastRings rings(2, 0, 1000), theirs(2, 1, 1000);
  ASSERT_TRUE(rings.Create() && theirs.Create());
  const std::weak_ptr<std::byte> mapped = [&] {
    const net::shm::SharedMemory& memory = *theirs.memory();
    const std::shared_ptr<std::byte> data(memory.data(), [](std::byte*) {});
    EXPECT_TRUE(rings.Add(1, {data, memory.bytes()}));
    return data;
  }();
  EXPECT_FALSE(mapped.expired());
  rings.Settle(false);
  EXPECT_EQ(rings.state(), MulticastRings::State::kRefused);
  EXPECT_EQ(rings.memory(), nullptr);
  EXPECT_TRUE(mapped.expired());
}

TEST(MulticastTest, ARankSeesThatAnotherHasJustWaitedOnACpu) {
  MulticastRings rings(2, 0, 1000), theirs(2, 1, 1000);
  ASSERT_TRUE(rings.Create() && theirs.Create());
  const net::shm::SharedMemory& memory = *theirs.memory();
  const std::shared_ptr<std::byte> data(memory.data(), [](std::byte*) {});
  ASSERT_TRUE(rings.Add(1, {data, memory.bytes()}));
  rings.Settle(true);
  EXPECT_FALSE(rings.HasWaitedOn(1, 0, 3));
  theirs.TellWait(20, 3);
  EXPECT_TRUE(rings.HasWaitedOn(1, 19, 3));
  EXPECT_TRUE(rings.HasWaitedOn(1, 36, 3));
  EXPECT_FALSE(rings.HasWaitedOn(1, 37, 3));  // long ago
  EXPECT_FALSE(rings.HasWaitedOn(1, 20, 2));
}

// Two ranks whose settings differ: rank 1 has `own`.
void RunUnlike(const SettingPairs& both, const std::string& own,
               const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      SettingPairs pairs = both;
      if (rank == 1) pairs.push_back(own);
      EndpointOptions options;
      options.rank = Rank(rank);
      options.world_size = 2;
      options.store = &store;
      options.settings = SettingsOf(pairs);
      auto endpoint = Endpoint::Create(std::move(options));
      ASSERT_TRUE(endpoint.ok()) << endpoint.status();
      body(**Communicator::Create(*endpoint, "world", AllRanks(2)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Both choose the algorithm, and one has no rings: what the other tells of its ring must not be
// taken for the data.
TEST(MulticastTest, ARankWithoutRingsIsNamed) {
  RunUnlike({"collective.algorithm=multicast", "collective.timeout=60s"}, "shm.multicast_max=0",
            [](Communicator& world) {
              std::vector<float> data(2, 1);  // as long as the number of a ring
              const absl::Status status = Sum(world, data)->Wait();
              EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
              const std::string text(status.message());
              EXPECT_THAT(text, HasSubstr("rank 1 called all_reduce(float, sum, count 2, "
                                          "multicast)"));
              EXPECT_THAT(text, HasSubstr("multicast by rings)"));
            });
}

// No message meets another, as one rank reads a ring and the other its link.
TEST(MulticastTest, ACallByRingsAndOneByLinksAreToldApart) {
  RunUnlike({"collective.timeout=60s"}, "collective.algorithm_by_kind=barrier=direct",
            [](Communicator& world) {
              ASSERT_TRUE(SumOfOnes(world, 3).ok());  // the rings are open
              const absl::Status status = world.Barrier()->Wait();
              EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
              EXPECT_THAT(std::string(status.message()),
                          HasSubstr("rank 1 called barrier(direct), but rank 0 called "
                                    "barrier(multicast by rings)"));
            });
}

// ---- Choice

CollectiveSpec Spec(CollectiveKind kind, int size, uint64_t count) {
  return {.kind = kind, .size = size, .count = count, .chunk = 65536, .multicast_bytes = 4096};
}

TEST(MulticastChoice, FitsWhatAPayloadHolds) {
  const auto fits = [](const CollectiveSpec& spec, size_t element) {
    return kMulticast.fits(spec, element);
  };
  EXPECT_TRUE(fits(Spec(CollectiveKind::kAllReduce, 4, 1024), 4));
  EXPECT_FALSE(fits(Spec(CollectiveKind::kAllReduce, 4, 1025), 4));
  EXPECT_TRUE(fits(Spec(CollectiveKind::kBarrier, 8, 0), 1));
  EXPECT_FALSE(fits(Spec(CollectiveKind::kBarrier, 9, 0), 1));
  EXPECT_FALSE(fits(Spec(CollectiveKind::kBarrier, 1, 0), 1));
  // Parts of their own for three others, each from a multiple of 16 bytes on.
  EXPECT_TRUE(fits(Spec(CollectiveKind::kAllToAll, 4, 340), 4));
  EXPECT_FALSE(fits(Spec(CollectiveKind::kAllToAll, 4, 341), 4));
  EXPECT_FALSE(fits(Spec(CollectiveKind::kAllReduce, 4, UINT64_MAX / 2), 4));
  CollectiveSpec uneven = Spec(CollectiveKind::kAllGatherV, 2, 0);
  uneven.output_counts = {1, 4096}, uneven.output_offsets = {0, 1};
  EXPECT_TRUE(fits(uneven, 1));
  uneven.output_counts = {1, 4097};
  EXPECT_FALSE(fits(uneven, 1));
  CollectiveSpec none = Spec(CollectiveKind::kAllReduce, 4, 1);
  none.multicast_bytes = 0;
  EXPECT_FALSE(fits(none, 4));
}

TEST(MulticastChoice, IsMadeWhereverItFits) {
  const planner::CostTable table =
      planner::TableFor(planner::DefaultCalibration(), Settings(LibrarySettings()), 2);
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    if (!kMulticast.has(kind) || kind == CollectiveKind::kAllGatherV ||
        kind == CollectiveKind::kSendReceive) {
      continue;
    }
    for (int size : {2, 4, 8}) {
      for (uint64_t count : {1, 16, 100}) {
        const CollectiveSpec spec = Spec(kind, size, kind == CollectiveKind::kBarrier ? 0 : count);
        EXPECT_EQ(planner::ChoosePlan(spec, 4, table, "").algorithm, &kMulticast)
            << ToString(kind) << " " << size << " " << count;
      }
    }
  }
}

}  // namespace
}  // namespace weft::collectives
