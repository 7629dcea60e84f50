// What StoreClient and StoreServer do when the network, a client or the server fails: a proxy
// between them cuts connections.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
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

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "collectives/rendezvous/file_descriptor.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/rendezvous/socket_address.h"
#include "collectives/rendezvous/store_client.h"
#include "collectives/rendezvous/store_connection.h"
#include "collectives/rendezvous/store_hello.h"
#include "collectives/rendezvous/store_protocol.h"
#include "collectives/rendezvous/store_relay.h"
#include "collectives/rendezvous/store_server.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

FileDescriptor ConnectTo(const std::string& address) {
  SocketAddress target = Resolve(address).value()[0];
  FileDescriptor socket(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.get(), target.get(), target.size), 0);
  return socket;
}

// Passes bytes between clients and a server, and cuts each connection after a number of them.
class CuttingProxy {
 public:
  CuttingProxy(std::string server, uint64_t seed, uint64_t bytes_max)
      : server_(std::move(server)), random_(seed), bytes_max_(bytes_max) {
    SocketAddress any = Resolve("127.0.0.1:0").value()[0];
    listener_ = FileDescriptor(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), any.get(), any.size), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
    any.size = sizeof(any.storage);
    getsockname(listener_.get(), any.get(), &any.size);
    address_ = ToString(any);
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

class StoreFaultsTest : public testing::Test {
 protected:
  void SetUp() override { Serve({}); }

  void Serve(StoreServerOptions options) {
    options.core.secret = secret_;
    options.core.description = "weft-run pid 123";
    auto server = StoreServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  StoreClientOptions Options(const std::string& address) const {
    StoreClientOptions options;
    options.address = address;
    options.secret = secret_;
    options.name = "test";
    options.reconnect = absl::Milliseconds(500);
    return options;
  }

  std::unique_ptr<StoreClient> Connect(const std::string& address) const {
    auto client = StoreClient::Connect(Options(address));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  template <typename Condition>
  void Until(Condition condition) const {
    SystemClock clock;
    absl::Time end = clock.Now() + kPatience;
    while (!condition()) {
      ASSERT_LT(clock.Now(), end);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const net::JobSecret secret_ = NewJobSecret();
  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreFaultsTest, EachCallIsDoneOnceThoughConnectionsAreCut) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    CuttingProxy proxy(server_->address(), seed, 3000);
    auto client = Connect(proxy.address());
    std::string key = absl::StrCat("n", seed);
    std::string log = absl::StrCat("log", seed);
    constexpr int kThreads = 4;
    constexpr int kRounds = 60;
    std::vector<std::thread> threads;
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
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = Connect(proxy.address());
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
  auto client = Connect(address);
  ASSERT_TRUE(client->Set("k", "v").ok());
  server_.reset();
  StoreServerOptions options;
  options.listen = address;
  Serve(options);
  absl::Status status = client->Get("k", kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("an empty one"));
}

TEST_F(StoreFaultsTest, AWrongSecretIsRefusedAtOnce) {
  StoreClientOptions options = Options(server_->address());
  options.secret = NewJobSecret();
  EXPECT_EQ(StoreClient::Connect(options).status().code(), absl::StatusCode::kPermissionDenied);
  options.secret = {};
  EXPECT_EQ(StoreClient::Connect(options).status().code(), absl::StatusCode::kPermissionDenied);
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
  options.open_to_strangers = true;
  EXPECT_TRUE(StoreServer::Start(options).ok());
  options = {};
  options.listen = server_->address();
  EXPECT_EQ(StoreServer::Start(options).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(StoreFaultsTest, GarbageEndsOnlyItsOwnConnection) {
  auto client = Connect(server_->address());
  FileDescriptor stranger = ConnectTo(server_->address());
  std::string garbage(4096, 'G');
  (void)!send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  Until([&] { return server_->statistics().refused == 1; });
  FileDescriptor half = ConnectTo(server_->address());  // and says nothing
  EXPECT_EQ(client->Add("n", 1).value(), 1);
}

TEST_F(StoreFaultsTest, AFrameThatClaimsTooMuchIsRefused) {
  auto raw = DialStore(Resolve(server_->address()).value(), secret_, "0123456789abcdefraw",
                       SystemClock().Now() + kPatience);
  ASSERT_TRUE(raw.ok()) << raw.status();
  StoreRequest request;
  request.id = 1;
  std::string frame = EncodeRequest(request);
  frame[11] = 0x7f;  // two gigabytes
  (void)!send(raw->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  Until([&] { return server_->statistics().refused == 1; });
  EXPECT_THAT(server_->statistics().last_refusal, HasSubstr("at most"));
}

TEST_F(StoreFaultsTest, AClientThatDoesNotReadIsClosedAndHarmsNobody) {
  StoreServerOptions options;
  options.core.output_pause = MiB(1);
  options.core.output_limit = MiB(8);
  server_.reset();
  Serve(options);
  auto raw = DialStore(Resolve(server_->address()).value(), secret_, "0123456789abcdefraw",
                       SystemClock().Now() + kPatience);
  ASSERT_TRUE(raw.ok()) << raw.status();
  for (uint64_t id = 1; id <= 40; ++id) {
    StoreRequest request;
    request.op = StoreOp::kGet;
    request.id = id;
    request.keys = {"v"};
    request.timeout = kPatience;
    std::string frame = EncodeRequest(request);
    (void)!send(raw->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  }
  Until([&] { return server_->statistics().waiting == 40; });
  auto client = Connect(server_->address());
  ASSERT_TRUE(client->Set("v", std::string(size_t{1} << 20, 'v')).ok());
  Until([&] { return server_->statistics().refused == 1; });
  EXPECT_THAT(server_->statistics().last_refusal, HasSubstr("reads too slowly"));
  EXPECT_EQ(client->Get("v", kPatience).value().size(), size_t{1} << 20);
}

TEST_F(StoreFaultsTest, ConnectionsBeyondTheBoundAreClosed) {
  StoreServerOptions options;
  options.connections_max = 2;
  server_.reset();
  Serve(options);
  auto first = Connect(server_->address());
  auto second = Connect(server_->address());
  StoreClientOptions third = Options(server_->address());
  third.connect_timeout = absl::Milliseconds(100);
  EXPECT_FALSE(StoreClient::Connect(third).ok());
  EXPECT_TRUE(first->Set("k", "v").ok());
  second.reset();
  Until([&] { return server_->statistics().connections == 1; });
  EXPECT_TRUE(StoreClient::Connect(third).ok());
}

TEST_F(StoreFaultsTest, AForkedProcessHoldsNoConnectionOpen) {
  std::vector<FileDescriptor> leaving;
  for (int i = 0; i < 8; ++i) leaving.push_back(ConnectTo(server_->address()));
  Until([&] { return server_->statistics().connections == 8; });
  // It has a copy of every descriptor, the server's ends and its epoll among them.
  pid_t forked = fork();
  if (forked == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  ASSERT_GT(forked, 0);
  absl::Cleanup ended = [forked] {
    kill(forked, SIGKILL);
    waitpid(forked, nullptr, 0);
  };
  for (FileDescriptor& socket : leaving) {
    EXPECT_EQ(shutdown(socket.get(), SHUT_WR), 0);
    std::array<char, 4096> hello;  // what the server says first
    ssize_t got = 1;
    while (got > 0) {
      pollfd wait{socket.get(), POLLIN, 0};
      ASSERT_EQ(poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1)
          << "the server left this connection, and it is open";
      got = recv(socket.get(), hello.data(), hello.size(), 0);
    }
    EXPECT_EQ(got, 0);
  }
  Until([&] { return server_->statistics().connections == 0; });
  auto client = Connect(server_->address());
  EXPECT_EQ(client->Add("n", 1).value(), 1);
}

// As when a data loader forks, and its process drops what it was born with.
TEST_F(StoreFaultsTest, AForkedProcessThatDropsClientServerAndRelayHarmsNobody) {
  auto client = Connect(server_->address());
  StoreRelayOptions options;
  options.up = server_->address();
  options.secret = secret_;
  auto relay = StoreRelay::Start(options);
  ASSERT_TRUE(relay.ok()) << relay.status();
  auto below = Connect((*relay)->address());
  ASSERT_TRUE(below->Set("k", "v").ok());
  absl::Status waiting;
  std::thread waits([&] { waiting = client->Wait({"later"}, kPatience); });
  Until([&] { return server_->statistics().waiting == 1; });
  pid_t forked = fork();
  if (forked == 0) {
    alarm(static_cast<unsigned>(absl::ToInt64Seconds(kPatience)));
    bool refused = absl::IsFailedPrecondition(client->Set("k", "w"));
    client.reset();
    below.reset();
    relay->reset();
    server_.reset();
    _exit(refused ? 0 : 1);
  }
  ASSERT_GT(forked, 0);
  int status = -1;
  waitpid(forked, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(below->Set("later", "v").ok());
  waits.join();
  EXPECT_TRUE(waiting.ok()) << waiting;
  EXPECT_EQ(client->Get("k", kPatience).value(), "v");
}

// A forked process has copies of its connections, so that closing them is not enough.
TEST_F(StoreFaultsTest, AServerThatEndsIsNoticedThoughAForkedProcessLives) {
  auto client = Connect(server_->address());
  ASSERT_TRUE(client->Set("k", "v").ok());
  std::string address = server_->address();
  pid_t forked = fork();
  if (forked == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  ASSERT_GT(forked, 0);
  absl::Cleanup ended = [forked] {
    kill(forked, SIGKILL);
    waitpid(forked, nullptr, 0);
  };
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(client->Get("never", absl::Minutes(5)).status()));
  StoreServerOptions again;
  again.listen = address;  // is free
  Serve(again);
}

TEST_F(StoreFaultsTest, AClientThatFloodsHoldsUpNoOther) {
  StoreServerOptions options;
  options.core.session_limit = MiB(2);
  server_.reset();
  Serve(options);
  auto raw = DialStore(Resolve(server_->address()).value(), secret_, "0123456789abcdefraw",
                       SystemClock().Now() + kPatience);
  ASSERT_TRUE(raw.ok()) << raw.status();
  auto client = Connect(server_->address());
  std::vector<char> replies(size_t{1} << 16);
  for (uint64_t id = 1; id <= 60000; ++id) {
    StoreRequest request;
    request.op = id % 2 == 0 ? StoreOp::kWait : StoreOp::kSet;
    request.id = id;
    request.keys = {request.op == StoreOp::kWait ? absl::StrCat("never", id) : "flooded"};
    if (request.op == StoreOp::kSet) request.values = {"v"};
    request.timeout = kPatience;
    std::string frame = EncodeRequest(request);
    absl::string_view rest = frame;
    while (!rest.empty()) {
      while (recv(raw->socket.get(), replies.data(), replies.size(), MSG_DONTWAIT) > 0) {
      }
      ssize_t sent = send(raw->socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent > 0) rest.remove_prefix(static_cast<size_t>(sent));
      if (sent > 0) continue;
      ASSERT_EQ(errno, EAGAIN);
      ASSERT_TRUE(
          AwaitReady(raw->socket.get(), POLLIN | POLLOUT, SystemClock().Now() + kPatience).ok());
    }
    if (id % 10000 == 0) {
      EXPECT_TRUE(client->Add("n", 1).ok());
      EXPECT_LT(server_->statistics().memory, MiB(8));
    }
  }
  EXPECT_EQ(client->Add("n", 0).value(), 6);
}

TEST_F(StoreFaultsTest, AStoreWithAStateGoesOnWhereItWasKilled) {
  std::string folder =
      testing::TempDir() + absl::StrCat("weft-state-", getpid(), "-", server_->port());
  std::filesystem::remove_all(folder);
  StoreServerOptions options;
  options.listen = server_->address();
  options.state_dir = folder;
  server_.reset();
  Serve(options);
  StoreClientOptions patient = Options(options.listen);
  patient.reconnect = kPatience;
  auto client = StoreClient::Connect(patient).value();
  auto other = StoreClient::Connect(patient).value();
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

TEST_F(StoreFaultsTest, AThousandClientsThatDropAtOnceHarmNobody) {
  // Both ends are in this process.
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 2200) GTEST_SKIP() << "needs 2,200 file descriptors";
  auto client = Connect(server_->address());
  int64_t before = server_->statistics().accepted;
  std::vector<StoreConnection> many;
  for (int i = 0; i < 1000; ++i) {
    StoreHello hello;
    hello.id = NewStoreId();
    auto raw = DialStore(Resolve(server_->address()).value(), secret_, EncodeHello(hello),
                         SystemClock().Now() + kPatience);
    ASSERT_TRUE(raw.ok()) << raw.status();
    many.push_back(*std::move(raw));
  }
  EXPECT_EQ(server_->statistics().accepted, before + 1000);
  many.clear();
  EXPECT_EQ(client->Add("n", 1).value(), 1);
  Until([&] { return server_->statistics().connections == 1; });
}

}  // namespace
}  // namespace weft::collectives
