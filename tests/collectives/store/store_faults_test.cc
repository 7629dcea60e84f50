// What StoreClient and StoreServer do when the network, a client or the server fails: a proxy
// between them cuts connections.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/random.h"
#include "base/socket_address.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/protocol/store_connection.h"
#include "collectives/store/server/store_server.h"
#include "collectives/store/server/store_service.h"
#include "tests/collectives/store/store_fixture.h"
#include "tests/file_size_limit.h"
#include "tests/scratch_folder.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

// Passes bytes between clients and a server, and cuts each connection after a number of them.
class CuttingProxy {
 public:
  CuttingProxy(std::string server, uint64_t seed, uint64_t bytes_max)
      : server_(std::move(server)), random_(seed), bytes_max_(bytes_max) {
    SocketAddress any = ResolveHostPort("127.0.0.1:0").value()[0];
    listener_ = FileDescriptor(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), any.get(), any.size()), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
    address_ = LocalAddress(listener_.get()).ToString();
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttingProxy() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return address_; }
  int cuts() const { return cuts_; }

 private:
  struct Pair {
    std::array<FileDescriptor, 2> ends;
    uint64_t left;
  };

  void Run() {
    std::list<Pair> pairs;
    std::vector<char> buffer(4096);
    while (!stop_) {
      std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}};
      for (Pair& pair : pairs) {
        for (auto& end : pair.ends) waits.push_back({end.get(), POLLIN, 0});
      }
      if (poll(waits.data(), waits.size(), 20) <= 0) continue;
      size_t slot = 1;
      for (auto pair = pairs.begin(); pair != pairs.end();) {
        bool alive = true;
        for (size_t i = 0; i < 2; ++i, ++slot) {
          if (alive && waits[slot].revents != 0) alive = Pass(*pair, i, buffer);
        }
        pair = alive ? std::next(pair) : pairs.erase(pair);
      }
      if (waits[0].revents != 0) {
        FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        Pair& added = pairs.emplace_back();
        added.ends = {std::move(client), ConnectTo(server_)};
        // Enough for the handshake, so that every connection gets somewhere.
        added.left = 1200 + random_.Below(bytes_max_);
      }
    }
  }

  // Byte counts decide where to cut, so a message may be cut anywhere.
  bool Pass(Pair& pair, size_t from, std::vector<char>& buffer) {
    ssize_t got = recv(pair.ends[from].get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return false;
    auto bytes = std::min<uint64_t>(static_cast<uint64_t>(got), pair.left);
    (void)!send(pair.ends[1 - from].get(), buffer.data(), bytes, MSG_NOSIGNAL);
    pair.left -= bytes;
    if (pair.left > 0) return true;
    ++cuts_;
    return false;
  }

  const std::string server_;
  Random random_;
  const uint64_t bytes_max_;
  FileDescriptor listener_;
  std::string address_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> cuts_ = 0;
  std::thread thread_;
};

class StoreFaultsTest : public StoreFixture {
 protected:
  // Ends the server, and serves at its address a store whose state is in `folder`: the options that
  // serve it again.
  StoreServerOptions ServeKept(const std::string& folder) {
    StoreServerOptions options;
    options.listen = server_->address();
    options.state_dir = folder;
    server_.reset();
    Serve(options);
    return options;
  }

  std::unique_ptr<StoreClient> ConnectPatiently(absl::Duration reconnect) {
    return ConnectPatiently(server_->address(), reconnect);
  }
  std::unique_ptr<StoreClient> ConnectPatiently(const std::string& address,
                                                absl::Duration reconnect) {
    StoreClientOptions options = Options(address);
    options.reconnect = reconnect;
    return StoreClient::Connect(options).value();
  }
};

TEST_F(StoreFaultsTest, EachCallIsDoneOnceThoughConnectionsAreCut) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    CuttingProxy proxy(server_->address(), seed, 3000);
    auto client = ConnectPatiently(proxy.address(), kPatience);
    std::string key = absl::StrCat("n", seed);
    std::string log = absl::StrCat("log", seed);
    constexpr int kThreads = 4;
    constexpr int kRounds = 60;
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          auto sum = client->Add(key, 1);
          ASSERT_TRUE(sum.ok()) << sum.status();
          ASSERT_TRUE(client->Append(log, "x").ok());
        }
      });
    }
    for (auto& thread : threads) thread.join();
    auto direct = Connect(server_->address());
    EXPECT_EQ(direct->Add(key, 0).value(), kThreads * kRounds) << "seed " << seed;
    EXPECT_EQ(direct->Get(log, kPatience).value().size(), size_t{kThreads * kRounds});
    EXPECT_GT(proxy.cuts(), 5);
  }
}

TEST_F(StoreFaultsTest, BarriersAndGathersSurviveCuts) {
  CuttingProxy proxy(server_->address(), 7, 2000);
  constexpr int kRanks = 6;
  std::vector<std::thread> threads;
  threads.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = ConnectPatiently(proxy.address(), kPatience);
      for (int round = 0; round < 10; ++round) {
        auto all = client->AllGather(absl::StrCat("g", round), rank, kRanks,
                                     absl::StrCat(rank, std::string(100, '.')), kPatience);
        ASSERT_TRUE(all.ok()) << all.status();
        for (int i = 0; i < kRanks; ++i) {
          EXPECT_EQ((*all)[static_cast<size_t>(i)][0], static_cast<char>('0' + i));
        }
        absl::Status status = client->Barrier(absl::StrCat("b", round), rank, kRanks, kPatience);
        ASSERT_TRUE(status.ok()) << status;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(proxy.cuts(), 0);
}

TEST_F(StoreFaultsTest, AServerThatIsGoneFailsWaitingAndFutureCalls) {
  std::string address = server_->address();
  auto client = Connect(address);
  absl::Status waiting;
  std::thread thread([&] { waiting = client->Get("never", kPatience).status(); });
  Until([&] { return server_->statistics().waiting == 1; });
  server_.reset();
  thread.join();
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(waiting.message()),
      testing::AllOf(HasSubstr(address), HasSubstr("is gone"), HasSubstr("weft-run pid 123")));
  EXPECT_EQ(client->Set("k", "v").code(), absl::StatusCode::kUnavailable);
}

TEST_F(StoreFaultsTest, ARestartedServerIsNotTakenForTheOldOne) {
  std::string address = server_->address();
  auto client = ConnectPatiently(kPatience);
  ASSERT_TRUE(client->Set("k", "v").ok());
  server_.reset();
  StoreServerOptions options;
  options.listen = address;
  Serve(options);
  absl::Status status = client->Get("k", kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("an empty one"));
}

// One thread dials for all, and has a time of its own.
TEST_F(StoreFaultsTest, ACallsTimeIsUpThoughTheStoreIsAway) {
  ScratchFolder folder;
  const StoreServerOptions served = ServeKept(folder.path());
  auto client = ConnectPatiently(2 * kPatience);
  ASSERT_TRUE(client->Set("key", "value").ok());
  server_.reset();
  EXPECT_TRUE(absl::IsDeadlineExceeded(client->Get("key", absl::Milliseconds(100)).status()));
  // It is not given up: the next call finds it.
  Serve(served);
  EXPECT_EQ(client->Get("key", kPatience).value(), "value");
}

// As where the store's host hangs: it takes connections and says nothing.
TEST_F(StoreFaultsTest, ACallThatDialsEndsWhenWaitsAreRefused) {
  SocketAddress address = ResolveHostPort(server_->address()).value()[0];
  auto client = ConnectPatiently(2 * kPatience);
  absl::Status waiting;
  std::thread thread([&] { waiting = client->Get("never", 2 * kPatience).status(); });
  Until([&] { return server_->statistics().waiting == 1; });
  server_.reset();
  const FileDescriptor silent = ListenForStore(address).value();
  const SystemClock clock;
  ASSERT_TRUE(AwaitReady(silent.get(), POLLIN, clock.Now() + kPatience).ok()) << "nobody dials";
  const absl::Time refused = clock.Now();
  client->RefuseWaits(StoreWaits::kOthers, absl::CancelledError("by the test"));
  thread.join();
  EXPECT_LT(clock.Now() - refused, kPatience);
  EXPECT_TRUE(absl::IsCancelled(waiting)) << waiting;
}

TEST_F(StoreFaultsTest, NobodyThereIsAnErrorThatNamesTheAddress) {
  StoreClientOptions options = Options(server_->address());
  server_.reset();
  options.connect_timeout = absl::Milliseconds(100);
  absl::Status status = StoreClient::Connect(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.address));
}

TEST_F(StoreFaultsTest, WithoutASecretItServesLoopbackOnly) {
  StoreServerOptions options;
  options.listen = ":0";
  EXPECT_EQ(StoreServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.open_to_unauthenticated = true;
  EXPECT_TRUE(StoreServer::Start(options).ok());
  options = {};
  options.listen = server_->address();
  EXPECT_EQ(StoreServer::Start(options).status().code(), absl::StatusCode::kAlreadyExists);
}

// Where there is no room, whoever has not proved itself makes room, the oldest first.
TEST_F(StoreFaultsTest, ClientsGetInThoughUnauthenticatedPeersHoldEveryConnection) {
  StoreServerOptions options;
  options.connections_max = 8;
  Serve(options);
  auto early = Connect(server_->address());
  std::vector<FileDescriptor> unauthenticated;
  for (int i = 0; i < 40; ++i) unauthenticated.push_back(ConnectTo(server_->address()));
  Until([&] { return server_->statistics().accepted == 41; });
  EXPECT_EQ(server_->statistics().connections, 8);
  EXPECT_THAT(server_->statistics().last_refusal, HasSubstr("has not finished its handshake"));
  StoreClientOptions late = Options(server_->address());
  late.connect_timeout = net::kHandshakeTimeout / 2;  // before the others' time is over
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int i = 0; i < 7; ++i) {
    auto client = StoreClient::Connect(late);
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_TRUE((*client)->Set(absl::StrCat(i), "v").ok());
    clients.push_back(*std::move(client));
  }
  EXPECT_TRUE(early->Set("k", "v").ok()) << "who has proved itself stays";
  // All have: who comes now is told so.
  late.connect_timeout = absl::Milliseconds(50);
  EXPECT_FALSE(StoreClient::Connect(late).ok());
  EXPECT_THAT(server_->statistics().last_refusal, HasSubstr("there are 8 connections already"));
}

TEST_F(StoreFaultsTest, AStoreWithAStateGoesOnWhereItWasKilled) {
  std::string folder =
      testing::TempDir() + absl::StrCat("weft-state-", getpid(), "-", server_->port());
  std::filesystem::remove_all(folder);
  const StoreServerOptions options = ServeKept(folder);
  auto client = ConnectPatiently(kPatience);
  auto other = ConnectPatiently(kPatience);
  ASSERT_TRUE(client->Set("key", "value").ok());
  EXPECT_EQ(client->Add("n", 2).value(), 2);
  absl::Status met;
  std::thread waits([&] { met = client->Barrier("b", 0, 2, kPatience); });
  Until([&] { return server_->statistics().waiting == 1; });
  for (int round = 0; round < 2; ++round) {
    server_.reset();
    Serve(options);
    EXPECT_EQ(other->Get("key", kPatience).value(), "value");
    EXPECT_EQ(other->Add("n", 1).value(), 3 + round);
  }
  EXPECT_EQ(other->Barrier("b", 1, 2, kPatience), absl::OkStatus());
  waits.join();
  EXPECT_EQ(met, absl::OkStatus());
  StoreServerOptions second = options;
  second.listen = "127.0.0.1:0";
  EXPECT_EQ(StoreServer::Start(second).status().code(), absl::StatusCode::kAlreadyExists);
  server_.reset();
  std::filesystem::remove_all(folder);
}

// A journal that could not be written any more is old: a store that is started again must not take
// it for the state, nor itself for the store that wrote it.
TEST_F(StoreFaultsTest, AStoreWhoseJournalCouldNotBeWrittenIsNotTheSameAfterARestart) {
  ScratchFolder folder;
  const StoreServerOptions options = ServeKept(folder.path());
  auto client = ConnectPatiently(kPatience);
  ASSERT_EQ(client->Add("n", 5).value(), 5);
  {
    FileSizeLimit limit(std::filesystem::file_size(folder / "store.journal") + 40);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(client->Add("n", 50).ok());
    EXPECT_EQ(client->Barrier("b", 0, 1, kPatience), absl::OkStatus()) << "the job goes on";
    EXPECT_EQ(std::filesystem::file_size(folder / "store.journal"), 0u);
  }
  StoreServerOptions second = options;
  second.listen = "127.0.0.1:0";
  EXPECT_EQ(StoreServer::Start(second).status().code(), absl::StatusCode::kAlreadyExists);
  server_.reset();
  Serve(options);
  for (const absl::Status& status :
       {client->Add("n", 1).status(), client->Barrier("b", 0, 1, kPatience)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("an empty one"));
  }
  EXPECT_EQ(Connect(options.listen)->Add("n", 1).value(), 1) << "anew, and journalled again";
  EXPECT_GT(std::filesystem::file_size(folder / "store.journal"), 0u);
}

}  // namespace
}  // namespace weft::collectives
