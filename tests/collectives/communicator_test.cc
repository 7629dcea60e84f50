// What a communicator's calls promise beside results: which ranks it reaches how, what they fetch
// of each other, in which order they stand, and what is refused.
#include "collectives/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "base/first_line.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/group_place.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/own_place.h"
#include "collectives/progress_cpus.h"
#include "tests/collectives/job.h"
#include "tests/collectives/naive.h"
#include "topology/host/affinity.h"

namespace weft::collectives {
namespace {

// A rank of the job given for one of a group, or the other way around, does not compile.
static_assert(!std::is_convertible_v<Rank, GroupRank> && !std::is_constructible_v<GroupRank, Rank>);
static_assert(!std::is_convertible_v<GroupRank, Rank> && !std::is_constructible_v<Rank, GroupRank>);

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
              "verify.schedules=true", "collective.timeout=60s"},
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

// Each sends to one that is its neighbour along no axis.
void SendBeyondNeighbours(const std::shared_ptr<Endpoint>& endpoint, int distance) {
  const int ranks = endpoint->world_size(), rank = endpoint->rank().value();
  auto world = *Communicator::Create(endpoint, "world", AllRanks(ranks));
  const GroupRank to((rank + distance) % ranks), from((rank + ranks - distance) % ranks);
  int sent = rank, received = -1;
  WorkPtr receive = world->Receive(&received, sizeof(received), from, 1);
  WorkPtr send = world->Send(&sent, sizeof(sent), to, 1);
  ASSERT_DONE(send);
  ASSERT_DONE(receive);
  EXPECT_EQ(received, from.value());
  ASSERT_DONE(world->Barrier());
}

TEST(CommunicatorTest, InASmallJobRankZeroAloneFetchesRecordsAndTellsTheOthersAllAddresses) {
  constexpr int kRanks = 16;
  const auto mesh =
      *topology::Mesh::Create({{topology::Axis::kTensor, 4}, {topology::Axis::kData, 4}});
  EXPECT_EQ(RecordsFetched(mesh,
                           [](std::shared_ptr<Endpoint> endpoint) {
                             SendBeyondNeighbours(endpoint, /*distance=*/6);
                           }),
            kRanks - 1);
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
    SendBeyondNeighbours(endpoint, /*distance=*/6);
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
      options.settings = SettingsOf({"store.timeout=2s"});
      const absl::Status status = Endpoint::Create(std::move(options)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("ranks: 7")) << "rank " << r;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ranks that reduce what several others send add it up in float32: 256 and four ones, each of which
// is half of bfloat16's last place there. What goes from rank to rank is rounded at each of them.
TEST(CommunicatorTest, SumsOfSixteenBitFloatsAreRoundedOnceWhereARankHasThemAll) {
  for (const char* algorithm : {"oneshot", "direct", "flat", "ring"}) {
    RunRanks(5, {absl::StrCat("collective.algorithm=", algorithm), "collective.chunk_bytes=4KiB"},
             [&](std::shared_ptr<Endpoint> endpoint) {
               auto world = *Communicator::Create(endpoint, "world", AllRanks(5));
               const bool large = endpoint->rank() == Rank(0);
               std::vector<uint16_t> data(50'000, large ? 0x4380 : 0x3F80);
               ASSERT_TRUE(world
                               ->AllReduce(data.data(), data.data(), data.size(),
                                           DataType::kBFloat16, ReduceOp::kSum)
                               ->Wait()
                               .ok());
               const auto exact = std::count(data.begin(), data.end(), 0x4382);  // 260
               if (algorithm == std::string("ring")) {
                 EXPECT_LT(exact, 50'000);
               } else {
                 EXPECT_EQ(exact, 50'000) << algorithm;
               }
             });
  }
}

// An average is divided before it is rounded to 16 bits: the sum of 60,000 and 60,000 is no
// float16.
TEST(CommunicatorTest, AveragesOfSixteenBitFloatsAreRoundedOnce) {
  constexpr uint16_t kSixtyThousand = 0x7B53;
  constexpr size_t kCount = 5000;
  for (const Algorithm* algorithm : Algorithms()) {
    RunRanks(
        2,
        {absl::StrCat("collective.algorithm=", algorithm->name), "collective.chunk_bytes=4KiB",
         "verify.schedules=true"},
        [&](std::shared_ptr<Endpoint> endpoint) {
          auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
          const std::vector<uint16_t> in(2 * kCount, kSixtyThousand);
          const GroupRank root(1);
          for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                      CollectiveKind::kReduce}) {
            if (!algorithm->has(kind) || algorithm->fits != nullptr) continue;
            std::vector<uint16_t> out(kCount);
            auto reduce = [&]() -> WorkPtr {
              if (kind == CollectiveKind::kReduceScatter) {
                return world->ReduceScatter(in.data(), out.data(), kCount, DataType::kFloat16,
                                            ReduceOp::kAverage);
              }
              if (kind == CollectiveKind::kReduce) {
                return world->Reduce(in.data(), out.data(), kCount, DataType::kFloat16,
                                     ReduceOp::kAverage, root);
              }
              return world->AllReduce(in.data(), out.data(), kCount, DataType::kFloat16,
                                      ReduceOp::kAverage);
            };
            ASSERT_DONE(reduce());
            if (kind == CollectiveKind::kReduce && world->rank() != root) continue;
            EXPECT_EQ(std::count(out.begin(), out.end(), kSixtyThousand),
                      static_cast<ptrdiff_t>(kCount))
                << algorithm->name << " " << ToString(kind);
          }
        });
  }
  // A fifth of 256 + 2 + 1 + 1 + 1 is nearest to 52.25, and that of 260 is 52.
  for (const char* algorithm : {"oneshot", "direct", "flat"}) {
    RunRanks(
        5, {absl::StrCat("collective.algorithm=", algorithm)},
        [&](std::shared_ptr<Endpoint> endpoint) {
          auto world = *Communicator::Create(endpoint, "world", AllRanks(5));
          constexpr uint16_t kInputs[] = {0x4380, 0x4000, 0x3F80, 0x3F80, 0x3F80};
          std::vector<uint16_t> data(kCount, kInputs[endpoint->rank().value()]);
          ASSERT_DONE(world->AllReduce(data.data(), data.data(), kCount, DataType::kBFloat16,
                                       ReduceOp::kAverage));
          EXPECT_EQ(std::count(data.begin(), data.end(), 0x4251), static_cast<ptrdiff_t>(kCount))
              << algorithm;
        });
  }
}

// CPUs of each progress thread of this process, as the kernel has them.
std::vector<std::string> CpusOfProgressThreads() {
  std::vector<std::string> out;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (FirstLine((task.path() / "comm").string()) != "weft-progress") continue;
    std::ifstream status(task.path() / "status");
    std::string line;
    while (std::getline(status, line)) {
      if (absl::StartsWith(line, "Cpus_allowed_list:"))
        out.push_back(line.substr(line.find('\t') + 1));
    }
  }
  return out;
}

TEST(CommunicatorTest, ProgressThreadsRunWhereTheSettingSays) {
  const CpuSet all = *AllowedCpus();
  const std::string last = absl::StrCat(all.back());
  for (const std::string& cpus : {last, std::string("free")}) {
    RunHosts({"one", "one"}, {"progress.cpus=" + cpus}, [&](std::shared_ptr<Endpoint> endpoint) {
      auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
      ASSERT_TRUE(world->Barrier()->Wait().ok());
      // A thread that has just started has neither its name nor its CPUs.
      const std::string expected = cpus == "free" ? weft::ToString(all) : last;
      std::vector<std::string> threads;
      for (const absl::Time limit = absl::Now() + absl::Seconds(60); absl::Now() < limit;) {
        threads = CpusOfProgressThreads();
        if (threads == std::vector<std::string>{expected, expected}) break;
        absl::SleepFor(absl::Milliseconds(10));
      }
      EXPECT_THAT(threads, testing::ElementsAre(expected, expected));
      ASSERT_TRUE(world->Barrier()->Wait().ok());
    });
  }
}

// A machine of two NUMA nodes whose files are written here; eth0 and the RDMA devices at node 1.
TEST(ProgressCpusTest, AreThoseOfTheProcessAtTheNodeOfItsNic) {
  const std::filesystem::path sys =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("sys", getpid());
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((sys / file).parent_path());
    std::ofstream(sys / file) << text << "\n";
  };
  write("devices/system/node/node0/cpumap", "0000000f");
  write("devices/system/node/node1/cpumap", "000000f0");
  write("class/net/lo/device/numa_node", "1");
  write("class/infiniband/mlx5_0/device/numa_node", "0");
  write("class/infiniband/mlx5_1/device/numa_node", "1");
  const auto cpus = [&](const SettingPairs& pairs, const CpuSet& process) {
    return ProgressCpus(SettingsOf(pairs), process, sys.string());
  };
  const CpuSet host = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(*cpus({"tcp.interface=lo"}, host), (CpuSet{4, 5, 6, 7}));
  EXPECT_EQ(*cpus({"tcp.interface=lo"}, {2, 3, 4}), (CpuSet{4}));
  EXPECT_EQ(*cpus({"tcp.interface=lo"}, {2, 3}), (CpuSet{2, 3}));  // none of its own is near
  EXPECT_EQ(*cpus({"tcp.interface=lo", "progress.cpus=free"}, host), host);
  EXPECT_EQ(*cpus({"progress.cpus=1,6-7"}, {0, 1, 6}), (CpuSet{1, 6}));
  EXPECT_EQ(*cpus({"transport=verbs"}, host), host);  // at both nodes
  EXPECT_EQ(*cpus({"transport=verbs", "verbs.devices==mlx5_0"}, host), (CpuSet{0, 1, 2, 3}));
  for (const char* wrong : {"9", "0-", "near by", ""}) {
    const absl::Status status = cpus({absl::StrCat("progress.cpus=", wrong)}, host).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(absl::StrCat("progress.cpus=", wrong, " is ")));
  }
  write("class/net/lo/device/numa_node", "-1");  // a virtual machine's
  EXPECT_EQ(*cpus({"tcp.interface=lo"}, host), host);
  std::filesystem::remove_all(sys);
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
            "collective.timeout=60s"},
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
