// The suite over our store, our store behind a relay, and Redis (which the test starts itself,
// where it is installed). Over c10d's TCPStore: tests/collectives/c10d/tcp_store_test.cc.
#include "tests/collectives/store/store_conformance.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/redis/redis_connection.h"
#include "collectives/store/redis/redis_store.h"
#include "collectives/store/relay/store_relay.h"
#include "collectives/store/server/store_server.h"

namespace weft::collectives {
namespace {

class WeftStores : public ConformingStores {
 public:
  WeftStores() : server_(StoreServer::Start({}).value()) {}
  absl::StatusOr<std::unique_ptr<Store>> Connect(int rank) override {
    StoreClientOptions options;
    options.address = Address();
    options.name = absl::StrCat("rank ", rank);
    options.rank = Rank(rank);
    return StoreClient::Connect(options);
  }

 protected:
  virtual std::string Address() const { return server_->address(); }
  std::unique_ptr<StoreServer> server_;
};

class RelayStores final : public WeftStores {
 public:
  RelayStores() {
    StoreRelayOptions options;
    options.up = server_->address();
    options.name = "of the test";
    options.ranks = kRanks;
    options.world = kRanks;
    relay_ = StoreRelay::Start(options).value();
  }

 protected:
  std::string Address() const override { return relay_->address(); }

 private:
  std::unique_ptr<StoreRelay> relay_;
};

class RedisStores final : public ConformingStores {
 public:
  static std::string Program() {
    for (const char* path : {"/usr/bin/redis-server", "/usr/local/bin/redis-server"}) {
      if (access(path, X_OK) == 0) return path;
    }
    return "";
  }

  RedisStores() {
    auto probe = StoreServer::Start({});
    port_ = (*probe)->port();
    probe->reset();
    std::string folder = testing::TempDir() + absl::StrCat("weft-redis-", getpid(), "-", port_);
    std::filesystem::create_directories(folder);
    folder_ = folder;
    std::string port = absl::StrCat(port_);
    std::string program = Program();
    pid_ = fork();
    if (pid_ == 0) {  // nothing but system calls
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int null = open("/dev/null", O_RDWR);
      dup2(null, STDOUT_FILENO);
      execl(program.c_str(), "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1",
            "--save", "", "--appendonly", "no", "--dir", folder.c_str(), nullptr);
      _exit(127);
    }
  }

  ~RedisStores() override {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  RedisStoreOptions Options() const {
    RedisStoreOptions options;
    options.address = absl::StrCat("127.0.0.1:", port_);
    return options;
  }
  absl::StatusOr<std::unique_ptr<Store>> Connect(int) override {
    return ConnectRedisStore(Options());
  }

 private:
  pid_t pid_ = -1;
  int port_ = 0;
  std::string folder_;
};

template <typename Stores>
std::unique_ptr<ConformingStores> Start(std::string*) {
  return std::make_unique<Stores>();
}

std::unique_ptr<ConformingStores> StartRedis(std::string* reason) {
  *reason = "redis-server is not installed";
  if (RedisStores::Program().empty()) return nullptr;
  return std::make_unique<RedisStores>();
}

// ---- What a Redis does that no other store does

class RedisStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (RedisStores::Program().empty()) GTEST_SKIP() << "redis-server is not installed";
    server_ = std::make_unique<RedisStores>();
    store_ = server_->Connect(0).value();
    by_hand_ = std::make_unique<redis::Connections>(server_->Options());
    ASSERT_TRUE(by_hand_->Begin().ok());
  }
  int64_t Command(const redis::Words& words) {
    const auto reply = by_hand_->Call(words);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? (*reply)->integer : -1;
  }

  std::unique_ptr<RedisStores> server_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<redis::Connections> by_hand_;
};

// By its setting `timeout`, or by what stands between.
TEST_F(RedisStoreTest, AConnectionThatWasClosedWhileIdleFailsNoCall) {
  ASSERT_TRUE(store_->Set("key", "value").ok());
  EXPECT_GT(Command({"CLIENT", "KILL", "TYPE", "normal"}), 0);
  const auto is_there = store_->Check({"key"});
  ASSERT_TRUE(is_there.ok()) << is_there.status();
  EXPECT_TRUE(*is_there);
}

// A rank that was stopped comes when Redis has forgotten the values.
TEST_F(RedisStoreTest, ValuesThatAreGoneAreNoEmptyValues) {
  absl::StatusOr<std::vector<std::string>> all = absl::UnknownError("never");
  std::thread rank([&] { all = store_->AllGather("key", 0, 2, "value", kPatience); });
  const std::string group = "weft:{job}:group:key";
  const absl::Time end = SystemClock().Now() + kPatience;
  while (Command({"HEXISTS", group, "r0"}) == 0 && SystemClock().Now() < end) {
    std::this_thread::yield();
  }
  // The other rank completes it, and its time passes.
  EXPECT_EQ(
      Command({"EVAL",
               "redis.call('SADD', KEYS[1], ARGV[1]) redis.call('DEL', KEYS[2]) "
               "return redis.call('PUBLISH', KEYS[3], '1')",
               "3", "weft:{job}:served", group, absl::StrCat("weft:{job}:channel:", group), "key"}),
      1);
  rank.join();
  EXPECT_TRUE(absl::IsDataLoss(all.status())) << all.status();
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest,
                         testing::Values(ConformingKind{"Weft", Start<WeftStores>},
                                         ConformingKind{"Relay", Start<RelayStores>},
                                         ConformingKind{"Redis", StartRedis}),
                         NameOfKind);

}  // namespace
}  // namespace weft::collectives
