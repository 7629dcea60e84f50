// A StoreServer whose clients misbehave, or fork: it and the others do not mind.
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
#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/store/protocol/store_connection.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/relay/store_relay.h"
#include "net/secret.h"
#include "tests/collectives/store/store_fixture.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

class StoreClientsTest : public StoreFixture {};

TEST_F(StoreClientsTest, AWrongSecretIsRefusedAtOnce) {
  StoreClientOptions options = Options(server_->address());
  options.secret = net::NewJobSecret();
  EXPECT_EQ(StoreClient::Connect(options).status().code(), absl::StatusCode::kPermissionDenied);
  options.secret = {};
  EXPECT_EQ(StoreClient::Connect(options).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(StoreClientsTest, GarbageEndsOnlyItsOwnConnection) {
  auto client = Connect(server_->address());
  FileDescriptor unauthenticated = ConnectTo(server_->address());
  std::string garbage(4096, 'G');
  (void)!send(unauthenticated.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  Until([&] { return server_->statistics().refused == 1; });
  FileDescriptor half = ConnectTo(server_->address());  // and says nothing
  EXPECT_EQ(client->Add("n", 1).value(), 1);
}

TEST_F(StoreClientsTest, AFrameThatClaimsTooMuchIsRefused) {
  auto raw = DialStore(ResolveHostPort(server_->address()).value(), secret_, "0123456789abcdefraw",
                       SystemClock().Now() + kPatience, kStoreSilence);
  ASSERT_TRUE(raw.ok()) << raw.status();
  StoreRequest request;
  request.id = 1;
  std::string frame = EncodeRequest(request);
  frame[11] = 0x7f;  // two gigabytes
  (void)!send(raw->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  Until([&] { return server_->statistics().refused == 1; });
  EXPECT_THAT(server_->statistics().last_refusal, HasSubstr("at most"));
}

TEST_F(StoreClientsTest, AClientThatDoesNotReadIsClosedAndHarmsNobody) {
  StoreServerOptions options;
  options.core.output_pause = MiB(1);
  options.core.output_limit = MiB(8);
  server_.reset();
  Serve(options);
  auto raw = DialStore(ResolveHostPort(server_->address()).value(), secret_, "0123456789abcdefraw",
                       SystemClock().Now() + kPatience, kStoreSilence);
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

// Large answers go to 64 at a time; those who take none of theirs must not keep that to themselves.
TEST_F(StoreClientsTest, ManyWhoDoNotReadLargeAnswersHoldUpNoOther) {
  auto client = Connect(server_->address());
  ASSERT_TRUE(client->Set("v", std::string(size_t{8} << 20, 'v')).ok());
  std::vector<StoreConnection> deaf;
  for (int i = 0; i < 70; ++i) {
    auto raw = DialStore(ResolveHostPort(server_->address()).value(), secret_,
                         absl::StrCat("0123456789abcd", 10 + i, "raw"),
                         SystemClock().Now() + kPatience, kStoreSilence);
    ASSERT_TRUE(raw.ok()) << raw.status();
    StoreRequest request;
    request.op = StoreOp::kGet;
    request.id = 1;
    request.keys = {"v"};
    request.timeout = kPatience;
    std::string frame = EncodeRequest(request);
    ASSERT_EQ(send(raw->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
    deaf.push_back(*std::move(raw));
  }
  Until([&] { return server_->statistics().requests >= 71; });
  EXPECT_EQ(client->Get("v", kPatience).value().size(), size_t{8} << 20);
  // The others find theirs whole when they read at last.
  std::string reply;
  std::vector<char> buffer(size_t{1} << 20);
  while (reply.size() < (size_t{8} << 20)) {
    ASSERT_TRUE(AwaitReady(deaf[69].socket.get(), POLLIN, SystemClock().Now() + kPatience).ok());
    ssize_t got = recv(deaf[69].socket.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(got, 0);
    reply.append(buffer.data(), static_cast<size_t>(got));
  }
}

TEST_F(StoreClientsTest, ConnectionsBeyondTheBoundAreClosed) {
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
  third.connect_timeout = kPatience;
  EXPECT_TRUE(StoreClient::Connect(third).ok());
}

// A process that has a copy of every descriptor of this one, and does nothing with them: _Fork()
// runs no handlers, by which the sockets would be this process's alone.
class ForkedCopy {
 public:
  ForkedCopy() : pid_(_Fork()) {
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pause();
      _exit(0);
    }
    EXPECT_GT(pid_, 0);
  }
  ~ForkedCopy() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

TEST_F(StoreClientsTest, AForkedProcessHoldsNoConnectionOpen) {
  std::vector<FileDescriptor> leaving;
  leaving.reserve(8);
  for (int i = 0; i < 8; ++i) leaving.push_back(ConnectTo(server_->address()));
  Until([&] { return server_->statistics().connections == 8; });
  // It has a copy of every descriptor, the server's ends and its epoll among them.
  ForkedCopy forked;
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
TEST_F(StoreClientsTest, AForkedProcessThatDropsClientServerAndRelayHarmsNobody) {
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
TEST_F(StoreClientsTest, AServerThatEndsIsNoticedThoughAForkedProcessLives) {
  auto client = Connect(server_->address());
  ASSERT_TRUE(client->Set("k", "v").ok());
  std::string address = server_->address();
  ForkedCopy forked;
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(client->Get("never", absl::Minutes(5)).status()));
  StoreServerOptions again;
  again.listen = address;  // is free
  Serve(again);
}

TEST_F(StoreClientsTest, AClientThatFloodsHoldsUpNoOther) {
  StoreServerOptions options;
  options.core.session_limit = MiB(2);
  server_.reset();
  Serve(options);
  auto raw = DialStore(ResolveHostPort(server_->address()).value(), secret_, "0123456789abcdefraw",
                       SystemClock().Now() + kPatience, kStoreSilence);
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

TEST_F(StoreClientsTest, AThousandClientsThatDropAtOnceHarmNobody) {
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
    auto raw = DialStore(ResolveHostPort(server_->address()).value(), secret_, EncodeHello(hello),
                         SystemClock().Now() + kPatience, kStoreSilence);
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
