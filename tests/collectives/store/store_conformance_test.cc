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

#include "absl/strings/str_cat.h"
#include "collectives/store/client/store_client.h"
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

  absl::StatusOr<std::unique_ptr<Store>> Connect(int) override {
    RedisStoreOptions options;
    options.address = absl::StrCat("127.0.0.1:", port_);
    return ConnectRedisStore(options);
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

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest,
                         testing::Values(ConformingKind{"Weft", Start<WeftStores>},
                                         ConformingKind{"Relay", Start<RelayStores>},
                                         ConformingKind{"Redis", StartRedis}),
                         NameOfKind);

}  // namespace
}  // namespace weft::collectives
