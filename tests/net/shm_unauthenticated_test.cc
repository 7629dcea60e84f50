// Unauthenticated peers at a shared-memory listener, and peers that die.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"
#include "net/shm/bringup.h"
#include "net/shm/cells.h"
#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

using shm::Doorbell;

constexpr shm::Geometry kGeometry{16, 16, 4096, 16384};

// ---- Unauthenticated peers

TEST(ShmUnauthenticated, AnotherSecretIsTurnedAwayAndTheRealPeerIsNot) {
  ShmNode node(1), outsider(0), peer(0);
  outsider.options.secret.fill(8);
  for (ShmNode* n : {&node, &outsider, &peer}) n->Open();
  auto bad = outsider.transport->Connect(node.transport->address(), Rank(1), Now());
  auto good = peer.transport->Connect(node.transport->address(), Rank(1), Now());
  ASSERT_TRUE(PumpUntil({&node, &outsider, &peer},
                        [&] { return !bad->status().ok() && !node.accepted.empty(); }));
  EXPECT_EQ(bad->status().code(), absl::StatusCode::kPermissionDenied) << bad->status();
  EXPECT_EQ(node.accepted.size(), 1u);
  EXPECT_TRUE(good->status().ok());
}

// An unauthenticated peer's socket, once the listener has seen it.
FileDescriptor Dial(ShmNode* node) {
  auto socket = shm::ConnectUnix(node->transport->address());
  EXPECT_TRUE(socket.ok()) << socket.status();
  for (int i = 0; i < 2000; ++i) node->transport->Progress(Now());
  return *std::move(socket);
}

bool HungUp(ShmNode* node, int socket, absl::Duration later) {
  for (int i = 0; i < 2000; ++i) node->transport->Progress(Now() + later);
  for (int i = 0; i < 10; ++i) {  // the challenge and the verdict come first
    auto packet = shm::ReceivePacket(socket, 4096);
    if (!packet.ok() || packet->none) return false;
    if (packet->hung_up) return true;
  }
  return false;
}

TEST(ShmUnauthenticated, WhoSaysNothingIsTurnedAwayInTime) {
  ShmNode node(1);
  node.Open();
  FileDescriptor socket = Dial(&node);
  EXPECT_FALSE(HungUp(&node, socket.get(), absl::ZeroDuration()));
  EXPECT_TRUE(HungUp(&node, socket.get(), kHandshakeTimeout + absl::Seconds(1)));
  EXPECT_TRUE(node.accepted.empty());
}

TEST(ShmUnauthenticated, GarbageIsTurnedAwayAtOnce) {
  ShmNode node(1);
  node.Open();
  Random random(1);
  for (size_t size : {1, 7, 8, 100, 1024, 3000}) {
    FileDescriptor socket = Dial(&node);
    std::string garbage(size, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    // One with descriptors that nobody asked for, too.
    std::vector<int> fds(size % 3, STDERR_FILENO);
    ASSERT_TRUE(*shm::SendPacket(socket.get(), garbage, fds));
    if (size < 8) shutdown(socket.get(), SHUT_WR);
    EXPECT_TRUE(HungUp(&node, socket.get(), absl::ZeroDuration())) << size;
  }
  EXPECT_TRUE(node.accepted.empty());
}

// Knows the secret, but passes descriptors that are not what they should be.
TEST(ShmUnauthenticated, WrongDescriptorsAreRefusedWithAReason) {
  ShmNode node(1);
  node.Open();
  Doorbell bell = *Doorbell::Create();
  FileDescriptor segment;
  auto mapped = shm::Segment::Create(kGeometry, &segment);
  FileDescriptor unsealed(open("/dev/zero", O_RDWR | O_CLOEXEC));
  const std::vector<std::vector<int>> wrong = {
      {},
      {segment.get()},
      {segment.get(), bell.event_fd(), bell.page_fd(), segment.get()},
      {unsealed.get(), bell.event_fd(), bell.page_fd()},
      {bell.page_fd(), bell.event_fd(), bell.page_fd()},
      {segment.get(), segment.get(), bell.page_fd()},
      {segment.get(), bell.event_fd(), segment.get()},
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    FileDescriptor socket = Dial(&node);
    ConnectorHandshake handshake(IdentityOf(node, 5), Rank(1), "", NewNonce());
    for (int turn = 0; turn < 50 && handshake.state() == HandshakeState::kRunning; ++turn) {
      for (int k = 0; k < 2000; ++k) node.transport->Progress(Now());
      auto packet = shm::ReceivePacket(socket.get(), kHandshakeBytesMax);
      if (!packet.ok() || packet->none || packet->hung_up) continue;
      handshake.Feed(packet->bytes);
      std::string out = handshake.TakeOutput();
      if (!out.empty()) {
        ASSERT_TRUE(*shm::SendPacket(socket.get(), out, wrong[i]));
      }
    }
    EXPECT_EQ(handshake.state(), HandshakeState::kFailed) << i;
    EXPECT_EQ(handshake.reason(), HandshakeReason::kRefused) << i << handshake.status();
  }
  EXPECT_TRUE(node.accepted.empty());
}

TEST(ShmUnauthenticated, AnotherUserDoesNotEvenGetAChallenge) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ShmNode node(1);
  node.Open();
  pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(3);
    auto socket = shm::ConnectUnix(node.transport->address());
    if (!socket.ok()) _exit(4);
    pollfd fd{socket->get(), POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) != 1) _exit(5);
    auto packet = shm::ReceivePacket(socket->get(), 4096);
    _exit(packet.ok() && packet->hung_up ? 0 : 6);
  }
  int status = -1;
  ASSERT_TRUE(PumpUntil({&node}, [&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  EXPECT_TRUE(node.accepted.empty());
}

// ---- Death. A child is a peer that dies by SIGKILL.

struct Child {
  template <typename Body>
  explicit Child(Body body) {
    pid = fork();
    if (pid == 0) {
      alarm(kAlarmSeconds);
      body();
      kill(getpid(), SIGKILL);
    }
  }
  ~Child() {
    if (pid > 0) kill(pid, SIGKILL);
    Wait();
  }
  void Wait() {
    if (pid > 0) waitpid(pid, nullptr, 0);
    pid = 0;
  }
  pid_t pid = 0;
};

const std::vector<std::pair<std::string, std::string>> kSmall = {{"shm.slot_bytes", "4KiB"},
                                                                 {"shm.slots", "16"}};

TEST(ShmDeath, WhatWasWrittenBeforeTheEndStillArrives) {
  ShmNode node(1, 64, kSmall);
  node.Open();
  std::vector<std::byte> bytes(3000, std::byte{5});
  std::vector<std::vector<std::byte>> in(8, std::vector<std::byte>(3000));
  std::vector<Request> receives(8);
  Child child([&] {
    ShmNode self(0, 64, kSmall);
    self.Open();
    auto link = self.transport->Connect(node.transport->address(), Rank(1), Now());
    std::vector<Request> sends(5);
    for (Request& send : sends) {
      (void)link->PostSend({1, 0}, View(*self.transport, bytes), &send);
    }
    PumpUntil({&self}, [&] { return sends.back().done(); });
    kill(getpid(), SIGKILL);  // before anything is closed in good order
  });
  ASSERT_TRUE(PumpUntil({&node}, [&] { return !node.accepted.empty(); }));
  for (size_t i = 0; i < receives.size(); ++i) {
    (void)node.accepted[0]->PostReceive({1, 0}, {View(*node.transport, in[i])}, &receives[i]);
  }
  child.Wait();  // dead, and we have not looked since
  ASSERT_TRUE(SleepUntil(&node, [&] { return receives.back().done(); }));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(receives[i].status().ok()) << receives[i].status();
    EXPECT_TRUE(in[i] == bytes);
  }
  for (size_t i = 5; i < 8; ++i) {
    EXPECT_EQ(receives[i].status().code(), absl::StatusCode::kUnavailable);
  }
  std::string message(node.accepted[0]->status().message());
  EXPECT_NE(message.find("has died"), std::string::npos) << message;
  EXPECT_NE(message.find("3 receives were posted"), std::string::npos) << message;
}

// A peer killed at a random moment of a stream in both directions, by turns mid-handshake, with
// rings half full, asleep. What had completed is whole; the rest fails soon, with one status.
TEST(ShmDeath, APeerKilledAtAnyMomentFailsEveryRequestAndTearsNone) {
  Random random(11);
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE(round);
    ShmNode node(1, 64, kSmall);
    node.Open();
    std::array<int, 2> address_pipe{};
    ASSERT_EQ(pipe(address_pipe.data()), 0);
    Child child([&] {
      ShmNode self(0, 64, kSmall);
      self.Open();
      std::string own = self.transport->address();
      if (write(address_pipe[1], own.data(), own.size()) < 0) return;
      auto link = self.transport->Connect(node.transport->address(), Rank(1), Now());
      std::vector<std::byte> out(20000), in(20000);
      Request send, receive;
      for (uint64_t n = 0;; ++n) {
        std::fill(out.begin(), out.end(), static_cast<std::byte>(n));
        (void)link->PostSend({1, 0}, View(*self.transport, out), &send);
        if (!self.accepted.empty() && receive.done()) {
          (void)self.accepted[0]->PostReceive({2, 0}, {View(*self.transport, in)}, &receive);
        }
        if (!SleepUntil(&self, [&] { return send.done(); })) return;
      }
    });
    std::string address(36, ' ');
    ASSERT_EQ(read(address_pipe[0], address.data(), address.size()), 36);
    auto link = node.transport->Connect(address, Rank(0), Now());
    std::vector<std::byte> out(20000), in(20000);
    Request send, receive;
    uint64_t got = 0, budget = random.Below(200);
    (void)link->PostSend({2, 0}, View(*node.transport, out), &send);
    bool posted = false;
    for (uint64_t turn = 0; turn < budget; ++turn) {
      node.transport->Progress(Now());
      if (node.accepted.empty()) continue;
      if (posted && receive.done()) {
        for (std::byte b : in) ASSERT_EQ(b, static_cast<std::byte>(got));
        ++got;
      }
      if (!posted || receive.done()) {
        (void)node.accepted[0]->PostReceive({1, 0}, {View(*node.transport, in)}, &receive);
        posted = true;
      }
      if (send.done()) (void)link->PostSend({2, 0}, View(*node.transport, out), &send);
      if (turn % 16 == 0) sched_yield();
    }
    kill(child.pid, SIGKILL);
    if (random.Below(2) == 0) child.Wait();
    auto over = [&] {
      return send.done() && receive.done() && !link->status().ok() &&
             (node.accepted.empty() || !node.accepted[0]->status().ok());
    };
    ASSERT_TRUE(SleepUntil(&node, over));
    for (auto& accepted : node.accepted) {
      EXPECT_EQ(accepted->status().code(), absl::StatusCode::kUnavailable) << accepted->status();
    }
    EXPECT_EQ(link->status().code(), absl::StatusCode::kUnavailable) << link->status();
    close(address_pipe[0]);
    close(address_pipe[1]);
  }
}

}  // namespace
}  // namespace weft::net
