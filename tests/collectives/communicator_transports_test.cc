// Every collective and message, over every transport, against results computed naively; many at
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/communicator.h"
#include "tests/collectives/job.h"
#include "tests/collectives/naive.h"

namespace weft::collectives {
namespace {

class TransportTest : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With(SettingPairs more) const {
    more.push_back(absl::StrCat("transport=", GetParam()));
    more.emplace_back("verify.schedules=true");
    more.emplace_back("collective.timeout=60s");
    return more;
  }
};

TEST_P(TransportTest, EveryCollectiveGivesTheNaiveResult) {
  for (const char* algorithm : {"auto", "direct", "ring"}) {
    for (int n = 1; n <= 5; ++n) {
      RunWorld(
          n,
          With({absl::StrCat("collective.algorithm=", algorithm), "collective.chunk_bytes=4KiB"}),
          [](Communicator& world) {
            for (size_t count : {0, 1, 3, 1000, 20011}) {
              CheckAll(world, DataType::kFloat32, ReduceOp::kSum, count);
              if (testing::Test::HasFatalFailure()) return;
            }
          });
    }
  }
}

TEST_P(TransportTest, EveryCollectiveOnCopiesOfItsBuffersGivesTheNaiveResult) {
  for (int n : {1, 3}) {
    RunWorld(n, With({"verify.buffers=true"}), [](Communicator& world) {
      for (size_t count : {0, 3, 20011}) {
        CheckAll(world, DataType::kFloat32, ReduceOp::kSum, count);
        if (testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

TEST_P(TransportTest, EveryAlgorithmGivesTheNaiveResult) {
  for (const Algorithm* algorithm : Algorithms()) {
    for (int n : {4, 5}) {
      RunWorld(n,
               With({absl::StrCat("collective.algorithm=", algorithm->name),
                     "collective.chunk_bytes=4KiB"}),
               [](Communicator& world) {
                 for (size_t count : {1, 3, 5003}) {
                   CheckAll(world, DataType::kFloat32, ReduceOp::kAverage, count);
                   if (testing::Test::HasFatalFailure()) return;
                 }
               });
    }
  }
}

TEST_P(TransportTest, EveryTypeAndOperatorIsReduced) {
  RunWorld(3, With({}), [](Communicator& world) {
    for (int t = 0; t < kDataTypeCount; ++t) {
      for (int o = 0; o < kReduceOpCount; ++o) {
        CheckAll(world, static_cast<DataType>(t), static_cast<ReduceOp>(o), 37);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(TransportTest, LargeBuffersAreWhole) {
  const size_t count = 2'500'001;
  const ByteBuffer want = Reduced(DataType::kFloat32, ReduceOp::kSum, count, 4);
  for (const char* algorithm : {"direct", "ring"}) {
    RunWorld(4, With({absl::StrCat("collective.algorithm=", algorithm)}), [&](Communicator& world) {
      const ByteBuffer mine = Contribution(DataType::kFloat32, count, world.rank().value());
      for (int repeat = 0; repeat < 3; ++repeat) {
        ByteBuffer data = mine;
        ASSERT_DONE(
            world.AllReduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum));
        ASSERT_TRUE(data == want);
      }
    });
  }
}

// Values whose sum depends on the order of additions.
TEST_P(TransportTest, AllRanksGetTheSameBits) {
  for (size_t count : {100, 30000}) {
    const int n = 4;
    std::vector<std::vector<float>> results(n);
    for (int repeat = 0; repeat < 2; ++repeat) {
      RunWorld(n, With({}), [&](Communicator& world) {
        Random random(7, static_cast<uint64_t>(world.rank().value()));
        std::vector<float> data(count);
        for (float& value : data) value = static_cast<float>(random.Uniform() * 1e6 - 5e5);
        ASSERT_DONE(
            world.AllReduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum));
        auto& result = results[world.rank().index()];
        if (repeat == 1) {
          ASSERT_EQ(std::memcmp(result.data(), data.data(), count * 4), 0);
        }
        result = data;
      });
      for (int r = 1; r < n; ++r) {
        ASSERT_EQ(std::memcmp(results[0].data(), results[r].data(), count * 4), 0);
      }
    }
  }
}

TEST_P(TransportTest, CountsMayDifferBetweenRanks) {
  const int n = 4;
  RunWorld(n, With({}), [](Communicator& world) {
    const size_t me = world.rank().index();
    auto count = [](size_t from, size_t to) { return (from * 7 + to * 3) % 5 * 100; };
    std::vector<size_t> in_counts(n), in_offsets(n), out_counts(n), out_offsets(n), counts(n),
        offsets(n);
    size_t in = 0, out = 3, all = 1;
    for (size_t r = 0; r < n; ++r) {
      in_counts[r] = count(me, r), in_offsets[r] = in, in += in_counts[r] + 1;
      out_counts[r] = count(r, me), out_offsets[r] = out, out += out_counts[r] + 2;
      counts[r] = count(r, 0), offsets[r] = all, all += counts[r] + 1;
    }
    std::vector<int32_t> input(in + 1), output(out + 1, -1);
    for (size_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < in_counts[r]; ++i) {
        input[in_offsets[r] + i] = static_cast<int32_t>(me * 1000000 + r * 10000 + i);
      }
    }
    ASSERT_DONE(world.AllToAllV(input.data(), in_counts, in_offsets, output.data(), out_counts,
                                out_offsets, DataType::kInt32));
    for (size_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < out_counts[r]; ++i) {
        ASSERT_EQ(output[out_offsets[r] + i], static_cast<int32_t>(r * 1000000 + me * 10000 + i));
      }
      ASSERT_EQ(output[out_offsets[r] + out_counts[r]], -1) << "wrote past a part";
    }
    std::vector<int32_t> mine(counts[me], static_cast<int32_t>(me)), gathered(all, -1);
    ASSERT_DONE(world.AllGatherV(mine.data(), gathered.data(), counts, offsets, DataType::kInt32));
    for (size_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < counts[r]; ++i)
        ASSERT_EQ(gathered[offsets[r] + i], static_cast<int32_t>(r));
      ASSERT_EQ(gathered[offsets[r] - 1], -1);
    }
  });
}

// A part of no elements has no place: its offset is not looked at.
TEST_P(TransportTest, EmptyPartsMayLieBehindTheEndOfABuffer) {
  RunWorld(3, With({}), [](Communicator& world) {
    const size_t me = static_cast<size_t>(world.rank().value());
    // Rank 0 sends two numbers to each other rank; nobody else sends.
    const std::vector<size_t> offsets = {2, 0, 100};
    const size_t mine = me == 0 ? 2 : 0, theirs = me == 0 ? 0 : 2;
    std::vector<int32_t> input = {7, 8}, output = {-1, -1, -1, -1};
    ASSERT_DONE(world.AllToAllV(input.data(), std::vector<size_t>{0, mine, mine},
                                std::vector<size_t>{50, 0, 0}, output.data(),
                                std::vector<size_t>{theirs, 0, 0}, offsets, DataType::kInt32));
    EXPECT_EQ(output, me == 0 ? (std::vector<int32_t>{-1, -1, -1, -1})
                              : (std::vector<int32_t>{-1, -1, 7, 8}));
  });
}

TEST_P(TransportTest, MessagesMatchByPeerAndTagInOrder) {
  RunWorld(3, With({}), [](Communicator& world) {
    const int me = world.rank().value(), next = (me + 1) % 3, previous = (me + 2) % 3;
    std::vector<int> sent(200), received(200, -1);
    std::iota(sent.begin(), sent.end(), me * 1000);
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < 200; ++i) {
      const uint32_t tag = static_cast<uint32_t>(i % 3);
      works.push_back(world.Send(&sent[i], sizeof(int), GroupRank(next), tag));
    }
    // Received tag by tag: another order than sent.
    for (uint32_t tag : {2u, 0u, 1u}) {
      for (size_t i = tag; i < 200; i += 3) {
        works.push_back(world.Receive(&received[i], sizeof(int), GroupRank(previous), tag));
      }
    }
    for (WorkPtr& work : works) ASSERT_DONE(work);
    for (size_t i = 0; i < 200; ++i) ASSERT_EQ(received[i], previous * 1000 + static_cast<int>(i));
    EXPECT_EQ(works.back()->source(), GroupRank(previous));
  });
}

TEST_P(TransportTest, ReceivesFromAnyRankKeepTheOrderOfEachSender) {
  constexpr int kRanks = 4, kMessages = 30;
  RunWorld(kRanks, With({}), [&](Communicator& world) {
    const int me = world.rank().value();
    if (me != 0) {
      std::vector<int> sent(kMessages);
      std::vector<WorkPtr> works;
      for (int i = 0; i < kMessages; ++i) {
        sent[i] = 1000 * me + i;
        works.push_back(world.Send(&sent[i], sizeof(int), GroupRank(0), 5));
      }
      for (const WorkPtr& work : works) EXPECT_EQ(work->Wait(), absl::OkStatus());
      return;
    }
    // Several at a time, and between them some that name a sender.
    std::vector<int> next(kRanks, 0);
    int left = (kRanks - 1) * kMessages;
    while (left > 0) {
      int received[3] = {-1, -1, -1};
      WorkPtr works[3] = {world.ReceiveAny(&received[0], sizeof(int), 5), nullptr, nullptr};
      if (left > 60) works[1] = world.Receive(&received[1], sizeof(int), GroupRank(2), 5);
      if (left > 60) works[2] = world.ReceiveAny(&received[2], sizeof(int), 5);
      std::vector<int> values;
      for (int i = 0; i < 3; ++i) {
        if (works[i] == nullptr) continue;
        ASSERT_EQ(works[i]->Wait(), absl::OkStatus());
        EXPECT_EQ(works[i]->source().value(), received[i] / 1000);
        values.push_back(received[i]);
      }
      // Receives that were under way together share a sender's messages in either order.
      std::sort(values.begin(), values.end());
      for (int value : values) EXPECT_EQ(value % 1000, next[value / 1000]++);
      left -= static_cast<int>(values.size());
    }
    EXPECT_EQ(next, (std::vector<int>{0, kMessages, kMessages, kMessages}));
  });
}

// Rank 1 has yet to send what the receive that names it waits for.
TEST_P(TransportTest, AReceiveFromAnyRankDoesNotWaitForARankThatAnotherReceiveNames) {
  RunWorld(3, With({}), [](Communicator& world) {
    int value = 10 * world.rank().value(), go = 0;
    if (world.rank() == GroupRank(0)) {
      int named = -1, any = -1;
      WorkPtr directed = world.Receive(&named, sizeof(named), GroupRank(1), 5);
      WorkPtr open = world.ReceiveAny(&any, sizeof(any), 5);
      ASSERT_DONE(open);
      EXPECT_EQ(open->source(), GroupRank(2));
      EXPECT_EQ(any, 20);
      ASSERT_DONE(world.Send(&go, sizeof(go), GroupRank(1), 6));
      ASSERT_DONE(directed);
      EXPECT_EQ(named, 10);
    } else if (world.rank() == GroupRank(1)) {
      ASSERT_DONE(world.Receive(&go, sizeof(go), GroupRank(0), 6));
      ASSERT_DONE(world.Send(&value, sizeof(value), GroupRank(0), 5));
    } else {
      ASSERT_DONE(world.Send(&value, sizeof(value), GroupRank(0), 5));
    }
  });
}

TEST_P(TransportTest, AReceiveFromAnyRankMeetsASendOfLaterAndOneOfAGroupMadeLater) {
  RunRanks(3, With({}), [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
    if (endpoint->rank() == Rank(0)) {
      auto late = *Communicator::Create(endpoint, "late", AllRanks(3));
      int value = -1;
      WorkPtr work = late->ReceiveAny(&value, sizeof(value), 0);
      ASSERT_EQ(world->Barrier()->Wait(), absl::OkStatus());
      ASSERT_EQ(work->Wait(absl::Seconds(30)), absl::OkStatus());
      EXPECT_EQ(value, 7);
      EXPECT_EQ(work->source(), GroupRank(2));
      ASSERT_EQ(world->Barrier()->Wait(), absl::OkStatus());
      return;
    }
    ASSERT_EQ(world->Barrier()->Wait(), absl::OkStatus());
    auto late = *Communicator::Create(endpoint, "late", AllRanks(3));
    int value = 7;
    if (endpoint->rank() == Rank(2)) {
      ASSERT_EQ(late->Send(&value, sizeof(value), GroupRank(0), 0)->Wait(), absl::OkStatus());
    }
    ASSERT_EQ(world->Barrier()->Wait(), absl::OkStatus());
  });
}

TEST_P(TransportTest, SubgroupsWorkBesideTheWorld) {
  RunRanks(5, With({}), [](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    auto world = *Communicator::Create(endpoint, "world", AllRanks(5));
    // In an order of its own: group ranks are not the job's.
    const std::vector<Rank> odd = {Rank(3), Rank(1)}, even = {Rank(4), Rank(0), Rank(2)};
    const std::vector<Rank>& members = me % 2 ? odd : even;
    auto group = *Communicator::Create(endpoint, me % 2 ? "odd" : "even", members);
    ASSERT_EQ(members[group->rank().index()], endpoint->rank());
    for (int repeat = 0; repeat < 20; ++repeat) {
      int64_t all = me, part = me;
      WorkPtr first = world->AllReduce(&all, &all, 1, DataType::kInt64, ReduceOp::kSum);
      WorkPtr second = group->AllReduce(&part, &part, 1, DataType::kInt64, ReduceOp::kSum);
      ASSERT_DONE(second);
      ASSERT_DONE(first);
      ASSERT_EQ(all, 10);
      ASSERT_EQ(part, me % 2 ? 4 : 6);
    }
  });
}

// Several threads a rank, each with a communicator of its own, launching at their own pace; on each
// several works in flight, waited for in another order than started.
TEST_P(TransportTest, ManyWorksFromManyThreadsDoNotWaitForEachOther) {
  const int n = 3, threads = 3;
  RunRanks(n, With({}), [](std::shared_ptr<Endpoint> endpoint) {
    const int me = endpoint->rank().value();
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      // Each rank starts its threads in another order.
      const int which = (t + me) % threads;
      running.emplace_back([endpoint, which, me] {
        auto group = *Communicator::Create(endpoint, absl::StrCat("thread", which), AllRanks(n));
        Random random(11, static_cast<uint64_t>(which * n + me));
        for (int round = 0; round < 15; ++round) {
          std::vector<ByteBuffer> data;
          std::vector<WorkPtr> works;
          for (size_t k = 0; k < 4; ++k) {
            const size_t count = 1 + (static_cast<size_t>(round) * 977 + k * 5003) % 20000;
            data.push_back(Contribution(DataType::kInt32, count, me, k));
          }
          for (size_t k = 0; k < 4; ++k) {
            works.push_back(group->AllReduce(data[k].data(), data[k].data(), data[k].size() / 4,
                                             DataType::kInt32, ReduceOp::kSum));
          }
          std::vector<size_t> order = {0, 1, 2, 3};
          random.Shuffle(order);
          for (size_t k : order) {
            ASSERT_DONE(works[k]);
            ASSERT_EQ(data[k], Reduced(DataType::kInt32, ReduceOp::kSum, data[k].size() / 4, n, k));
          }
        }
      });
    }
    for (std::thread& thread : running) thread.join();
  });
}

// Nobody waits: the background thread has to bring them to an end.
TEST_P(TransportTest, WorksProceedWhileNobodyWaits) {
  RunWorld(3, With({}), [](Communicator& world) {
    for (size_t count : {10, 300000}) {
      ByteBuffer data = Contribution(DataType::kInt32, count, world.rank().value());
      WorkPtr work =
          world.AllReduce(data.data(), data.data(), count, DataType::kInt32, ReduceOp::kSum);
      const absl::Time limit = absl::Now() + absl::Seconds(20);
      while (!work->done() && absl::Now() < limit) std::this_thread::yield();
      ASSERT_TRUE(work->done());
      ASSERT_EQ(data, Reduced(DataType::kInt32, ReduceOp::kSum, count, 3));
      EXPECT_GE(work->end_ns(), work->start_ns());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportTest, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weft::collectives
