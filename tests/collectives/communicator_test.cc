// Every collective, over every transport, against results computed naively; many at once; and what
// the calls promise beside results.
#include "collectives/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/random.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/group_place.h"
#include "collectives/planner/own_place.h"
#include "collectives/reduce.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

// A rank of the job given for one of a group, or the other way around, does not compile.
static_assert(!std::is_convertible_v<Rank, GroupRank> && !std::is_constructible_v<GroupRank, Rank>);
static_assert(!std::is_convertible_v<GroupRank, Rank> && !std::is_constructible_v<Rank, GroupRank>);

using Buffer = std::vector<std::byte>;

// What rank r contributes: small whole numbers, so that sums are exact in every type and order.
Buffer Contribution(DataType type, size_t count, int rank, uint64_t salt = 0) {
  Random random(salt, static_cast<uint64_t>(rank));
  Buffer bytes(count * SizeOf(type));
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * SizeOf(type);
    const int value = static_cast<int>(random.Below(3));
    auto put = [&](auto number) { std::memcpy(at, &number, sizeof(number)); };
    switch (type) {
      case DataType::kBool:
        put(static_cast<uint8_t>(value > 0));
        break;
      case DataType::kUint8:
      case DataType::kInt8:
        put(static_cast<uint8_t>(value));
        break;
      case DataType::kInt16:
        put(static_cast<int16_t>(value));
        break;
      case DataType::kInt32:
        put(static_cast<int32_t>(value));
        break;
      case DataType::kInt64:
        put(static_cast<int64_t>(value));
        break;
      case DataType::kFloat16:
        put(static_cast<uint16_t>(value == 0 ? 0 : value == 1 ? 0x3C00 : 0x4000));
        break;
      case DataType::kBFloat16:
        put(static_cast<uint16_t>(value == 0 ? 0 : value == 1 ? 0x3F80 : 0x4000));
        break;
      case DataType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DataType::kFloat64:
        put(static_cast<double>(value));
        break;
      case DataType::kComplex64: {
        const float parts[2] = {static_cast<float>(value), 1};
        std::memcpy(at, parts, sizeof(parts));
        break;
      }
      case DataType::kComplex128: {
        const double parts[2] = {static_cast<double>(value), 1};
        std::memcpy(at, parts, sizeof(parts));
        break;
      }
    }
  }
  return bytes;
}

Buffer Reduced(DataType type, ReduceOp op, size_t count, int n, uint64_t salt = 0) {
  Buffer sum = Contribution(type, count, 0, salt);
  for (int r = 1; r < n; ++r) {
    const Buffer next = Contribution(type, count, r, salt);
    ReduceFor(type, op, KernelSet::kReference)(sum.data(), sum.data(), next.data(), sum.size());
  }
  if (op == ReduceOp::kAverage && n > 1) {
    ScaleFor(type, KernelSet::kReference)(sum.data(), sum.size(), n);
  }
  return sum;
}

Buffer Part(const Buffer& whole, size_t part, size_t bytes) {
  return Buffer(whole.begin() + static_cast<ptrdiff_t>(part * bytes),
                whole.begin() + static_cast<ptrdiff_t>((part + 1) * bytes));
}

#define ASSERT_DONE(work)                               \
  do {                                                  \
    const absl::Status status_of_work = (work)->Wait(); \
    ASSERT_TRUE(status_of_work.ok()) << status_of_work; \
  } while (false)

// All collectives of one type, operator and count, out of place and in place.
void CheckAll(Communicator& world, DataType type, ReduceOp op, size_t count) {
  const int n = world.size(), me = world.rank().value();
  const size_t ranks = static_cast<size_t>(n), bytes = count * SizeOf(type);
  const GroupRank root(static_cast<int>(count) % n);
  const bool is_root = root.value() == me;
  const Buffer mine = Contribution(type, count, me), wide = Contribution(type, count * ranks, me);
  Buffer gathered;
  for (int r = 0; r < n; ++r) {
    const Buffer part = Contribution(type, count, r);
    gathered.insert(gathered.end(), part.begin(), part.end());
  }
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE(absl::StrCat(ToString(type), " ", ToString(op), " count ", count, " n ", n,
                              " rank ", me, in_place ? " in place" : ""));
    if (Supports(op, type)) {
      Buffer out = in_place ? mine : Buffer(bytes);
      ASSERT_DONE(
          world.AllReduce(in_place ? out.data() : mine.data(), out.data(), count, type, op));
      ASSERT_EQ(out, Reduced(type, op, count, n));

      out = in_place ? mine : Buffer(is_root ? bytes : 0);
      ASSERT_DONE(
          world.Reduce(in_place ? out.data() : mine.data(), out.data(), count, type, op, root));
      if (is_root) {
        ASSERT_EQ(out, Reduced(type, op, count, n));
      }

      Buffer in = wide;
      out.assign(bytes, std::byte{});
      std::byte* to = in_place ? in.data() + static_cast<size_t>(me) * bytes : out.data();
      ASSERT_DONE(world.ReduceScatter(in.data(), to, count, type, op));
      if (in_place) out = Part(in, static_cast<size_t>(me), bytes);
      ASSERT_EQ(out, Part(Reduced(type, op, count * ranks, n), static_cast<size_t>(me), bytes));
    }
    const size_t own = static_cast<size_t>(me) * bytes;
    Buffer out(ranks * bytes);
    if (in_place) std::copy(mine.begin(), mine.end(), out.begin() + static_cast<ptrdiff_t>(own));
    ASSERT_DONE(
        world.AllGather(in_place ? out.data() + own : mine.data(), out.data(), count, type));
    ASSERT_EQ(out, gathered);

    out.assign(ranks * bytes, std::byte{});
    if (in_place) std::copy(mine.begin(), mine.end(), out.begin() + static_cast<ptrdiff_t>(own));
    ASSERT_DONE(
        world.Gather(in_place ? out.data() + own : mine.data(), out.data(), count, type, root));
    if (is_root) {
      ASSERT_EQ(out, gathered);
    }

    out = in_place ? mine : Buffer(bytes);
    ASSERT_DONE(
        world.Broadcast(in_place ? out.data() : mine.data(), out.data(), count, type, root));
    ASSERT_EQ(out, Contribution(type, count, root.value()));

    Buffer in = wide;
    out.assign(bytes, std::byte{});
    std::byte* to = in_place && is_root ? in.data() + own : out.data();
    ASSERT_DONE(world.Scatter(in.data(), to, count, type, root));
    if (in_place && is_root) out = Part(in, static_cast<size_t>(me), bytes);
    ASSERT_EQ(
        out, Part(Contribution(type, count * ranks, root.value()), static_cast<size_t>(me), bytes));

    out = in_place ? wide : Buffer(ranks * bytes);
    ASSERT_DONE(world.AllToAll(in_place ? out.data() : wide.data(), out.data(), count, type));
    for (int r = 0; r < n; ++r) {
      ASSERT_EQ(Part(out, static_cast<size_t>(r), bytes),
                Part(Contribution(type, count * ranks, r), static_cast<size_t>(me), bytes));
    }
  }
  ASSERT_DONE(world.Barrier());
}

class TransportTest : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With(SettingPairs more) const {
    more.push_back(absl::StrCat("transport=", GetParam()));
    more.emplace_back("verify.schedules=true");
    more.emplace_back("collective.timeout=20s");
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
  const Buffer want = Reduced(DataType::kFloat32, ReduceOp::kSum, count, 4);
  for (const char* algorithm : {"direct", "ring"}) {
    RunWorld(4, With({absl::StrCat("collective.algorithm=", algorithm)}), [&](Communicator& world) {
      const Buffer mine = Contribution(DataType::kFloat32, count, world.rank().value());
      for (int repeat = 0; repeat < 3; ++repeat) {
        Buffer data = mine;
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
      // Those that were under way together share a sender's messages in either order.
      std::sort(values.begin(), values.end());
      for (int value : values) EXPECT_EQ(value % 1000, next[value / 1000]++);
      left -= static_cast<int>(values.size());
    }
    EXPECT_EQ(next, (std::vector<int>{0, kMessages, kMessages, kMessages}));
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
          std::vector<Buffer> data;
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
      Buffer data = Contribution(DataType::kInt32, count, world.rank().value());
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

// As RunRanks, with rank r on hosts[r], which is also its host's name in a fabric.
void RunHosts(const std::vector<std::string>& hosts, const SettingPairs& pairs,
              const std::function<void(std::shared_ptr<Endpoint>)>& body) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] {
      EndpointOptions options;
      options.rank = Rank(static_cast<int>(r));
      options.world_size = static_cast<int>(hosts.size());
      options.store = &store;
      options.host = hosts[r];
      options.settings = SettingsOf(pairs);
      ASSERT_TRUE(options.settings.Set("collective.fabric_host", hosts[r], "test").ok());
      auto endpoint = Endpoint::Create(std::move(options));
      ASSERT_TRUE(endpoint.ok()) << endpoint.status();
      body(*std::move(endpoint));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CommunicatorTest, RanksOnOtherHostsAreReachedByTcp) {
  RunHosts({"one", "one", "two", "two"}, {}, [](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(4));
    CheckAll(*world, DataType::kFloat32, ReduceOp::kSum, 50000);
    const std::string links = endpoint->Describe();
    EXPECT_NE(links.find("shm"), std::string::npos) << links;
    EXPECT_NE(links.find("tcp"), std::string::npos) << links;
  });
}

// Hosts of unlike size, whose ranks do not follow each other.
TEST(CommunicatorTest, TwoLevelsGiveTheNaiveResult) {
  for (const char* algorithm : {"hierarchical", "ring", "chain"}) {
    RunHosts({"one", "two", "one", "two", "one"},
             {absl::StrCat("collective.algorithm=", algorithm), "collective.chunk_bytes=4KiB",
              "verify.schedules=true", "collective.timeout=20s"},
             [](std::shared_ptr<Endpoint> endpoint) {
               auto world = *Communicator::Create(endpoint, "world", AllRanks(5));
               for (size_t count : {1, 700, 5003}) {
                 CheckAll(*world, DataType::kFloat32, ReduceOp::kSum, count);
                 if (testing::Test::HasFatalFailure()) return;
               }
             });
  }
}

// Counts the records that ranks fetch one by one after start-up.
class CountingStore final : public Store {
 public:
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override {
    for (const std::string& key : keys) records_ += key.find("/exchange/") != std::string::npos;
    return store_.MultiGet(keys, timeout);
  }
  int records() const { return records_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    return store_.Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    return store_.Add(key, amount);
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    return store_.CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override { return store_.Delete(key); }
  absl::StatusOr<int64_t> KeyCount() override { return store_.KeyCount(); }
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override {
    return store_.Check(keys);
  }
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return store_.Wait(keys, timeout);
  }
  absl::Status Append(absl::string_view key, absl::string_view value) override {
    return store_.Append(key, value);
  }
  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override {
    return store_.MultiSet(keys, values);
  }
  absl::Status Barrier(absl::string_view key, int rank, int size, absl::Duration timeout) override {
    return store_.Barrier(key, rank, size, timeout);
  }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank, int size,
                                                     absl::string_view value,
                                                     absl::Duration timeout) override {
    return store_.AllGather(key, rank, size, value, timeout);
  }

 private:
  MemoryStore store_;
  std::atomic<int> records_{0};
};

// Runs `body` on every rank of `mesh` and returns how many records they fetched.
int RecordsFetched(const topology::Mesh& mesh,
                   const std::function<void(std::shared_ptr<Endpoint>)>& body) {
  CountingStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < mesh.ranks(); ++r) {
    threads.emplace_back([&, r] {
      EndpointOptions options;
      options.rank = Rank(r);
      options.world_size = mesh.ranks();
      options.mesh = mesh;
      options.store = &store;
      options.settings = SettingsOf({"collective.timeout=60s"});
      auto endpoint = Endpoint::Create(std::move(options));
      ASSERT_TRUE(endpoint.ok()) << endpoint.status();
      body(*std::move(endpoint));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return store.records();
}

void DoNothing(const std::shared_ptr<Endpoint>&) {}

TEST(CommunicatorTest, RanksOfASmallJobFetchAllRecordsAtTheStart) {
  const auto mesh =
      *topology::Mesh::Create({{topology::Axis::kTensor, 4}, {topology::Axis::kData, 4}});
  EXPECT_EQ(RecordsFetched(mesh, DoNothing), 16 * 15);
}

TEST(CommunicatorTest, RanksFetchTheRecordsOfTheirNeighboursAndOthersWhenFirstUsed) {
  constexpr int kRanks = 72;
  const auto mesh =
      *topology::Mesh::Create({{topology::Axis::kTensor, 8}, {topology::Axis::kData, 9}});
  // Rank 0 fetches all others' records, every other rank those of its two neighbours along each
  // axis.
  constexpr int kAtTheStart = (kRanks - 1) + (kRanks - 1) * 4;
  EXPECT_EQ(RecordsFetched(mesh, DoNothing), kAtTheStart);
  const int fetched = RecordsFetched(mesh, [](std::shared_ptr<Endpoint> endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(kRanks));
    const int rank = endpoint->rank().value();
    // No neighbours along any axis.
    const GroupRank to((rank + 6) % kRanks), from((rank + kRanks - 6) % kRanks);
    int sent = rank, received = -1;
    WorkPtr receive = world->Receive(&received, sizeof(received), from, 1);
    WorkPtr send = world->Send(&sent, sizeof(sent), to, 1);
    ASSERT_DONE(send);
    ASSERT_DONE(receive);
    EXPECT_EQ(received, from.value());
    ASSERT_DONE(world->Barrier());
  });
  EXPECT_GE(fetched, kAtTheStart + (kRanks - 1));
  EXPECT_LT(fetched, kRanks * (kRanks - 1));
}

TEST(CommunicatorTest, EveryRankNamesTheRankThatNeverCame) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < 7; ++r) {
    threads.emplace_back([&, r] {
      EndpointOptions options;
      options.rank = Rank(r);
      options.world_size = 8;
      options.store = &store;
      options.settings = SettingsOf({"store.timeout=500ms"});
      const absl::Status status = Endpoint::Create(std::move(options)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("ranks: 7")) << "rank " << r;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CommunicatorTest, ALayoutOfOtherSizeThanTheJobIsRefused) {
  EndpointOptions options;
  options.rank = Rank(0);
  options.world_size = 3;
  options.mesh = *topology::Mesh::Create({{topology::Axis::kData, 2}});
  const absl::Status status = Endpoint::Create(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("dp2"));
}

// Two switches of two hosts each; ranks of a host do not follow each other.
TEST(CommunicatorTest, RanksOnAFabricGoSwitchBySwitch) {
  const std::string fabric =
      "collective.fabric=leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=10Gbps";
  if (absl::IsUnimplemented(planner::OwnPlace(SettingsOf({fabric})).status())) {
    GTEST_SKIP() << "built without fabrics";
  }
  RunHosts({"h0", "h3", "h1", "h0", "h2", "h2", "h3"},
           {fabric, "collective.algorithm=three_level", "collective.chunk_bytes=4KiB",
            "collective.algorithm_by_kind=all_reduce:1MiB..@world=ring", "verify.schedules=true",
            "collective.timeout=20s"},
           [](std::shared_ptr<Endpoint> endpoint) {
             auto world = *Communicator::Create(endpoint, "world", AllRanks(7));
             for (size_t count : {1, 700, 5003}) {
               CheckAll(*world, DataType::kFloat32, ReduceOp::kSum, count);
               if (testing::Test::HasFatalFailure()) return;
             }
             EXPECT_EQ(endpoint->place(Rank(1)).switch_name, endpoint->place(Rank(4)).switch_name);
             EXPECT_NE(endpoint->place(Rank(1)).switch_name, endpoint->place(Rank(2)).switch_name);
             std::vector<float> data(1 << 18);
             const auto algorithm = [&](size_t count) {
               WorkPtr work = world->AllReduce(data.data(), data.data(), count, DataType::kFloat32,
                                               ReduceOp::kSum);
               EXPECT_TRUE(work->Wait().ok());
               return work->algorithm();
             };
             EXPECT_EQ(algorithm(1000), "three_level");
             EXPECT_EQ(algorithm(1 << 18).substr(0, 4), "ring");
           });
}

TEST(CommunicatorTest, AHostThatTheFabricLacksFailsTheEndpoint) {
  EndpointOptions options;
  options.rank = Rank(0);
  options.settings = SettingsOf(
      {"collective.fabric=leaf-spine:leaves=1,hosts_per_leaf=1", "collective.fabric_host=h9"});
  const absl::Status status = Endpoint::Create(std::move(options)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("collective.fabric="), std::string::npos) << status;
}

// Rank 1's file would have every message cost nothing and every byte a fortune.
TEST(CommunicatorTest, RankZerosCostsAndChunksCountForAll) {
  planner::Calibration odd = planner::DefaultCalibration();
  odd.links[0] = {.latency = 1e-3, .message = 1e-3, .byte = 1000, .host_byte = 1000};
  const std::string file = absl::StrCat(testing::TempDir(), "/odd_costs", getpid());
  ASSERT_TRUE(planner::SaveCalibration(odd, file).ok());
  MemoryStore store;
  std::vector<std::string> algorithms(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      EndpointOptions options;
      options.rank = Rank(r);
      options.world_size = 3;
      options.store = &store;
      options.settings = SettingsOf(
          r == 1 ? SettingPairs{"collective.costs=" + file, "collective.chunk_bytes=4KiB"}
                 : SettingPairs{});
      auto endpoint = *Endpoint::Create(std::move(options));
      auto world = *Communicator::Create(endpoint, "world", AllRanks(3));
      std::vector<float> data(100000, 1);
      WorkPtr work = world->AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32,
                                      ReduceOp::kSum);
      ASSERT_DONE(work);
      EXPECT_EQ(data.back(), 3);
      algorithms[static_cast<size_t>(r)] = work->algorithm() + work->why();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove(file);
  EXPECT_NE(algorithms[0], "");
  EXPECT_EQ(algorithms[1], algorithms[0]);
  EXPECT_EQ(algorithms[2], algorithms[0]);
}

TEST(CommunicatorTest, AnAlgorithmThatACollectiveLacksFailsTheEndpoint) {
  EndpointOptions options;
  options.rank = Rank(0);
  options.settings = SettingsOf({"collective.algorithm_by_kind=all_reduce=bruck"});
  EXPECT_EQ(Endpoint::Create(std::move(options)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CommunicatorTest, BadArgumentsAreReportedByTheWorkAndHarmNothing) {
  RunWorld(2, {}, [](Communicator& world) {
    float data[4] = {1, 2, 3, 4};
    const auto code = [](const WorkPtr& work) { return work->Wait().code(); };
    const auto invalid = absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(code(world.AllReduce(data, data, 4, DataType::kFloat32, ReduceOp::kBitAnd)), invalid);
    EXPECT_EQ(code(world.AllReduce(nullptr, data, 4, DataType::kFloat32, ReduceOp::kSum)), invalid);
    EXPECT_EQ(code(world.Broadcast(data, data, 4, DataType::kFloat32, GroupRank(2))), invalid);
    EXPECT_EQ(code(world.Send(data, 4, world.rank(), 0)), invalid);
    EXPECT_EQ(code(world.Receive(data, 4, GroupRank(2), 0)), invalid);
    EXPECT_EQ(code(world.AllGatherV(data, data, {1}, {0}, DataType::kFloat32)), invalid);
    ASSERT_DONE(world.AllReduce(data, data, 4, DataType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(data[3], 8);
  });
}

TEST(CommunicatorTest, GroupsAreChecked) {
  RunRanks(2, {}, [](std::shared_ptr<Endpoint> endpoint) {
    const auto create = [&](const char* name, std::vector<Rank> ranks) {
      return Communicator::Create(endpoint, name, std::move(ranks)).status().code();
    };
    EXPECT_EQ(create("a", {Rank(1 - endpoint->rank().value())}),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(create("b", {Rank(0), Rank(1), Rank(0)}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(create("c", {Rank(0), Rank(1), Rank(2)}), absl::StatusCode::kInvalidArgument);
    auto first = *Communicator::Create(endpoint, "d", AllRanks(2));
    EXPECT_EQ(create("d", AllRanks(2)), absl::StatusCode::kAlreadyExists);
  });
}

}  // namespace
}  // namespace weft::collectives
