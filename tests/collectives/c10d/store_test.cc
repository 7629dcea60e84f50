// The adapters of stores in both directions, and joining a job as a process of it.
#include "collectives/c10d/store.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/status.h"
#include "collectives/c10d/agent_store.h"
#include "collectives/c10d/backend.h"
#include "collectives/join.h"
#include "tests/collectives/memory_store.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

c10::intrusive_ptr<c10d::TCPStore> ServeTcpStore() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

c10::intrusive_ptr<c10d::Store> ClientOf(const c10d::TCPStore& server) {
  c10d::TCPStoreOptions options;
  options.port = server.getPort();
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::PrefixStore>(
      "weft", c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
}

TEST(C10dStoreAdapter, ServesOurStoreFromATcpStore) {
  auto server = ServeTcpStore();
  C10dStoreAdapter store(ClientOf(*server));
  EXPECT_TRUE(store.Set("a", "1").ok());
  EXPECT_EQ(*store.Get("a", kLong), "1");
  EXPECT_EQ(*store.Add("n", 5), 5);
  EXPECT_EQ(*store.Add("n", -2), 3);
  EXPECT_EQ(*store.CompareSet("c", "", "x"), "x");
  EXPECT_EQ(*store.CompareSet("c", "y", "z"), "x");
  EXPECT_EQ(*store.CompareSet("c", "x", "z"), "z");
  EXPECT_TRUE(store.Append("a", "23").ok());
  EXPECT_TRUE(store.MultiSet({"k1", "k2"}, {"v1", std::string("\0v2", 3)}).ok());
  EXPECT_THAT(*store.MultiGet({"a", "k1", "k2"}, kLong),
              ElementsAre("123", "v1", std::string("\0v2", 3)));
  EXPECT_TRUE(*store.Check({"a", "k1"}));
  EXPECT_FALSE(*store.Check({"a", "absent"}));
  EXPECT_TRUE(*store.Delete("a"));
  EXPECT_FALSE(*store.Delete("a"));
  EXPECT_GE(*store.KeyCount(), 4);
}

TEST(C10dStoreAdapter, AWaitThatRanOutIsAStatusAndHarmsNoLaterCall) {
  auto server = ServeTcpStore();
  C10dStoreAdapter store(ClientOf(*server));
  absl::Status status = store.Wait({"absent"}, absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("absent"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store.Get("absent", absl::Milliseconds(50)).status()));
  EXPECT_TRUE(store.Set("absent", "here").ok());
  EXPECT_EQ(*store.Get("absent", kLong), "here");
}

TEST(C10dStoreAdapter, AWaitHoldsUpNoOtherCall) {
  auto server = ServeTcpStore();
  C10dStoreAdapter store(ClientOf(*server));
  std::thread waiter([&] { EXPECT_EQ(*store.Get("later", kLong), "now"); });
  EXPECT_TRUE(store.Set("other", "1").ok());
  EXPECT_EQ(*store.Get("other", kLong), "1");
  EXPECT_TRUE(store.Set("later", "now").ok());
  waiter.join();
}

TEST(C10dStoreAdapter, BarrierAndAllGatherBringRanksTogetherAndNameTheMissing) {
  auto server = ServeTcpStore();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      C10dStoreAdapter store(ClientOf(*server));
      auto values = store.AllGather("values", rank, 4, std::to_string(rank * 10), kLong);
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_THAT(*values, ElementsAre("0", "10", "20", "30"));
      EXPECT_TRUE(store.Set("before/" + std::to_string(rank), "").ok());
      EXPECT_TRUE(store.Barrier("meet", rank, 4, kLong).ok());
      EXPECT_TRUE(*store.Check({"before/0", "before/1", "before/2", "before/3"}));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  C10dStoreAdapter store(ClientOf(*server));
  absl::Status barrier = store.Barrier("alone", 1, 3, absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(barrier));
  EXPECT_THAT(std::string(barrier.message()), HasSubstr("missing of 3 ranks: 0, 2"));
  auto gather = store.AllGather("alone2", 0, 2, "x", absl::Milliseconds(50));
  EXPECT_THAT(std::string(gather.status().message()), HasSubstr("missing of 2 ranks: 1"));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Barrier("bad", 3, 3, kLong)));
}

TEST(C10dStoreAdapter, ALostServerIsUnavailable) {
  auto server = ServeTcpStore();
  C10dStoreAdapter store(ClientOf(*server));
  ASSERT_TRUE(store.Set("a", "1").ok());
  server.reset();
  absl::StatusOr<int64_t> sum = store.Add("n", 1);
  EXPECT_FALSE(sum.ok());
  EXPECT_TRUE(absl::IsUnavailable(sum.status()) || absl::IsDeadlineExceeded(sum.status()))
      << sum.status();
}

TEST(WeftC10dStore, GivesTheWholeInterfaceOfC10d) {
  auto store = c10::make_intrusive<WeftC10dStore>(std::make_shared<MemoryStore>());
  store->set("a", std::string("1"));
  EXPECT_EQ(store->get_to_str("a"), "1");
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->compareSet("a", std::string("1"), std::string("2")), "2");
  store->append("a", {'!'});
  store->multiSet({"b", "c"}, {{'x'}, {'y'}});
  EXPECT_THAT(store->multiGet({"a", "b"}),
              ElementsAre(std::vector<uint8_t>{'2', '!'}, std::vector<uint8_t>{'x'}));
  EXPECT_TRUE(store->check({"a", "b", "c"}));
  EXPECT_TRUE(store->deleteKey("c"));
  EXPECT_FALSE(store->check({"c"}));
  store->wait({"a", "b"});
  EXPECT_GE(store->getNumKeys(), 3);
  EXPECT_TRUE(store->hasExtendedApi());
  EXPECT_EQ(store->clone()->get("b"), std::vector<uint8_t>{'x'});
  EXPECT_THROW(store->wait({"absent"}, std::chrono::milliseconds(20)), c10::DistStoreError);
  store->setTimeout(std::chrono::milliseconds(20));
  EXPECT_THROW(store->get("absent"), c10::DistStoreError);
}

// The job that the environment names, and its group of all ranks.
absl::StatusOr<c10::intrusive_ptr<WeftBackend>> JoinWorld() {
  c10::intrusive_ptr<WeftBackend> world;
  JoinOptions options;
  options.agent_store = ConnectAgentStore;
  options.make_groups = [&](const std::shared_ptr<Endpoint>& endpoint) -> absl::Status {
    std::vector<Rank> everybody;
    for (int rank = 0; rank < endpoint->world_size(); ++rank) everybody.emplace_back(rank);
    WEFT_ASSIGN_OR_RETURN(world, WeftBackend::Create(endpoint, "world", std::move(everybody)));
    return absl::OkStatus();
  };
  WEFT_RETURN_IF_ERROR(JoinJob(std::move(options)).status());
  return world;
}

// Runs `ranks` processes with that environment; each joins, sums its rank + 1, and exits with 0 if
// the sum is right.
void ExpectJobSums(int ranks, std::map<std::string, std::string> environment) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    pid_t pid = fork();
    if (pid == 0) {
      at::set_num_threads(1);
      alarm(300);  // never outlives a test that was killed
      environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(rank);
      environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      bool right = false;
      {
        auto world = JoinWorld();
        if (!world.ok()) {
          fprintf(stderr, "rank %d: %s\n", rank, world.status().ToString().c_str());
          _exit(2);
        }
        std::vector<at::Tensor> tensors{at::full({1000}, rank + 1.0F)};
        (*world)->allreduce(tensors, {})->wait();
        right = at::equal(tensors[0], at::full({1000}, ranks * (ranks + 1) / 2.0F));
        (*world)->barrier({})->wait();
      }
      _exit(right ? 0 : 1);
    }
    ASSERT_GT(pid, 0);
    children.push_back(pid);
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_EQ(status, 0) << "rank " << rank;
  }
}

TEST(JoinJob, MeetsAtTheStoreOfTorchrunsAgent) {
  auto agent = ServeTcpStore();
  std::map<std::string, std::string> environment = {
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(agent->getPort())},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", "none"}};
  for (const char* attempt : {"0", "1"}) {  // the second attempt finds the keys of the first
    environment["TORCHELASTIC_RESTART_COUNT"] = attempt;
    ExpectJobSums(3, environment);
  }
}

TEST(JoinJob, MeetsAtTheStoreThatALauncherServes) {
  auto server = StoreServer::Start({});
  ASSERT_TRUE(server.ok()) << server.status();
  ExpectJobSums(2, {{"WEFT_STORE", (*server)->address()}});
}

TEST(JoinJob, AProcessAloneIsAJob) {
  auto world = JoinWorld();
  ASSERT_TRUE(world.ok()) << world.status();
  std::vector<at::Tensor> tensors{at::ones({3})};
  (*world)->allreduce(tensors, {})->wait();
  EXPECT_EQ(tensors[0].sum().item<float>(), 3);
}

}  // namespace
}  // namespace weft::collectives
