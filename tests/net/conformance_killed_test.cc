// Ranks that are processes, and are killed in the middle of what they do: the other end is told, by
// name, and everybody else goes on.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "tests/net/conformance.h"
#include "tests/net/scene.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

class Processes : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transport, Processes, kAllTransports, KindName);

// Until nothing has moved for a while: whoever is stuck is stuck for good. Two seconds do as well,
// for a transport that goes on probing its paths is never quiet for long.
void DriveUntilStuck(Node& node) {
  const absl::Time end = absl::Now() + absl::Seconds(2);
  for (int quiet = 0; quiet < 20 && absl::Now() < end;) {
    quiet = node.Progress() ? 0 : quiet + 1;
    if (quiet > 0) poll(nullptr, 0, 5);
  }
}

TEST_P(Processes, KilledBeforeItAccepts) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  auto body = [&](Child::Channel& channel) {
    Node node(GetParam(), 1, 2);
    channel.Say(node.address());
    channel.Hear();  // never progresses
    return 0;
  };
  for (bool killed_before : {true, false}) {
    Child child(body);
    Request send;
    std::string address = child.channel().Hear();
    if (killed_before) child.Signal(SIGKILL);
    Node a(GetParam(), 0, 2, kQuick);
    Buffer from(a.transport(), 10);
    const absl::Time given_up = Now() + kQuickTimeout;
    SendLink* link = a.Connect(address, 1);
    ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    Turn(a, 20);  // the connection is made; nobody answers on it
    if (!killed_before) {
      EXPECT_TRUE(link->status().ok() || Now() > given_up) << link->status();
      child.Signal(SIGKILL);
    }
    ASSERT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
    EXPECT_FALSE(send.status().ok());
    EXPECT_THAT(std::string(send.status().message()), HasSubstr("rank 1"));
  }
}

TEST_P(Processes, KilledConnectorInHandshakeLeavesTheListenerFine) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  auto body = [&](Child::Channel& channel) {
    const std::string address = channel.Hear();
    Node node(GetParam(), 0, 2);
    node.Connect(address, 1);
    Turn(node, 5);
    channel.Say("knocked");
    channel.Hear();
    return 0;
  };
  std::deque<Child> children;  // before this process has a device open, which no child may inherit
  for (int i = 0; i < 4; ++i) children.emplace_back(body);
  Node b(GetParam(), 1, 2);
  for (int turns : {0, 1, 2, 4}) {
    Child& child = children.front();
    child.channel().Say(b.address());
    EXPECT_EQ(child.channel().Hear(), "knocked");
    Turn(b, turns);
    child.Signal(SIGKILL);
    Turn(b, 10);
    children.pop_front();
  }
  Node friendly(GetParam(), 0, 2);
  int before = b.accepted_count;
  friendly.Connect(b.address(), 1);
  EXPECT_TRUE(DriveUntil({&friendly, &b}, [&] { return b.accepted_count > before; }));
}

TEST_P(Processes, KilledWhileIdle) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  Request send, receive;
  Scene scene(GetParam(), [](ChildNode& child, const Child::Channel& channel) {
    DriveUntilStuck(child.node);
    channel.Say("idle");
    channel.Hear();
    return 0;
  });
  ParentNode& parent = scene.parent;
  Buffer buffer(parent.node.transport(), 1 << 20);  // a small send may be done without its receive
  ASSERT_EQ(parent.out->PostSend({1, 1}, buffer.view(), &send), Posted::kAccepted);
  ASSERT_EQ(parent.in->PostReceive({1, 1}, {buffer.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(scene.DriveUntilHeard());
  EXPECT_FALSE(send.done() || receive.done());
  ASSERT_TRUE(scene.KillAndBreak());
  ASSERT_TRUE(send.done() && receive.done());
  ExpectNames(send.status(), absl::StatusCode::kUnavailable, 1);
  ExpectNames(receive.status(), absl::StatusCode::kUnavailable, 1);
  EXPECT_EQ(parent.node.broken.size(), 2u);
}

TEST_P(Processes, KilledInTheMiddleOfAMessageAsSender) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  for (bool reduce : {false, true}) {
    Request receive;
    Scene scene(GetParam(), [](ChildNode& child, const Child::Channel& channel) {
      Buffer from(child.node.transport(), kLarge);
      if (child.out->PostSend({1, 1}, from.view(), &child.request) != Posted::kAccepted) return 1;
      if (channel.Hear() != "go") return 2;
      DriveUntilStuck(child.node);
      channel.Say(child.request.done() ? "done" : "stuck");
      channel.Hear();
      return 0;
    });
    ParentNode& parent = scene.parent;
    Buffer to(parent.node.transport(), kLarge);
    ReceiveTarget target{to.view()};
    if (reduce) target.local = to.data(), target.reduce = AddBytes;
    ASSERT_EQ(parent.in->PostReceive({1, 1}, target, &receive), Posted::kAccepted);
    Turn(parent.node, 3);
    scene.Say("go");
    ASSERT_EQ(scene.Hear(), "stuck");
    ASSERT_TRUE(scene.KillAndBreak());
    ASSERT_TRUE(receive.done());
    ExpectNames(receive.status(), absl::StatusCode::kUnavailable, 1);
  }
}

TEST_P(Processes, KilledInTheMiddleOfAMessageAsReceiver) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  Request send;
  Scene scene(GetParam(), [](ChildNode& child, const Child::Channel& channel) {
    Buffer to(child.node.transport(), kLarge);
    if (child.in->PostReceive({1, 1}, {to.view()}, &child.request) != Posted::kAccepted) return 1;
    Turn(child.node, 5);
    channel.Say("posted");
    channel.Hear();
    return 0;
  });
  ParentNode& parent = scene.parent;
  Buffer from(parent.node.transport(), kLarge);
  ASSERT_EQ(scene.Hear(), "posted");
  ASSERT_EQ(parent.out->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  DriveUntilStuck(parent.node);
  ASSERT_FALSE(send.done());
  ASSERT_TRUE(scene.KillAndBreak());
  ASSERT_TRUE(send.done());
  ExpectNames(send.status(), absl::StatusCode::kUnavailable, 1);
}

TEST_P(Processes, OthersGoOnWhenOnePeerIsKilled) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  auto body = [&](Child::Channel& channel) {
    Node node(GetParam(), 2, 3);
    channel.Say(node.address());
    DriveUntil({&node}, [&] { return node.accepted(0) != nullptr; });
    channel.Say("linked");
    channel.Hear();
    return 0;
  };
  Child child(body);
  std::string address = child.channel().Hear();
  Request lost;
  Node a(GetParam(), 0, 3), b(GetParam(), 1, 3);
  SendLink* doomed = a.Connect(address, 2);
  SendLink* healthy = a.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] {
    pollfd fd{child.channel().in, POLLIN, 0};
    return b.accepted(0) != nullptr && poll(&fd, 1, 0) == 1;
  }));
  Buffer from(a.transport(), 100000), to(b.transport(), 100000);
  from.FillPattern(3);
  ASSERT_EQ(doomed->PostSend({1, 1}, from.view(), &lost), Posted::kAccepted);
  child.Signal(SIGKILL);
  for (int i = 0; i < 50 || !lost.done(); ++i) {
    Request send, receive;
    ASSERT_EQ(healthy->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return send.done() && receive.done(); }));
    ASSERT_TRUE(receive.status().ok()) << receive.status();
    ASSERT_LT(i, 1000000);
  }
  EXPECT_EQ(to.CheckPattern(3, to.size()), "");
  ExpectNames(lost.status(), absl::StatusCode::kUnavailable, 2);
  EXPECT_TRUE(healthy->status().ok());
}

TEST_P(Processes, ARingOfProcesses) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  constexpr int kRanks = 4;
  constexpr int kRounds = 200;
  constexpr size_t kBytes = 100000;
  // Each rank passes on what it gets, plus one.
  auto body = [&](int rank, Child::Channel& channel) {
    Node node(GetParam(), rank, kRanks);
    channel.Say(node.address());
    SendLink* next = node.Connect(channel.Hear(), (rank + 1) % kRanks);
    int before = (rank + kRanks - 1) % kRanks;
    if (!DriveUntil({&node}, [&] { return node.accepted(before) != nullptr; })) return 1;
    Buffer token(node.transport(), kBytes), one(node.transport(), kBytes);
    token.Clear(0);
    one.Clear(1);
    for (int round = 0; round < kRounds; ++round) {
      for (bool sending : {rank == 0, rank != 0}) {
        Request request;
        ReceiveTarget target{token.view(), one.data(), AddBytes};
        Posted posted = sending ? next->PostSend({1, 1}, token.view(), &request)
                                : node.accepted(before)->PostReceive({1, 1}, target, &request);
        if (posted != Posted::kAccepted) return 2;
        if (!DriveUntil({&node}, [&] { return request.done(); })) return 3;
        if (!request.status().ok()) return 4;
      }
    }
    channel.Say(absl::StrCat(static_cast<int>(token.data()[kBytes - 1])));
    channel.Hear();  // until everybody has finished
    return 0;
  };
  std::deque<Child> children;
  std::vector<std::string> addresses;
  for (int i = 0; i < kRanks; ++i) {
    children.emplace_back([&, i](Child::Channel& channel) { return body(i, channel); });
    addresses.push_back(children.back().channel().Hear());
  }
  for (int i = 0; i < kRanks; ++i) children[i].channel().Say(addresses[(i + 1) % kRanks]);
  EXPECT_EQ(children[0].channel().Hear(), absl::StrCat(kRanks * kRounds % 256));
  for (int i = 1; i < kRanks; ++i) children[i].channel().Hear();
  for (Child& child : children) child.channel().Say("bye");
  for (Child& child : children) EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace weft::net
