// Faults: peers that are absent, slow, stopped, killed, strangers, or back again. Whatever happens,
// every request completes, with an error that names the rank, and other links go on.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "tests/net/conformance.h"
#include "tests/net/scene.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

class Faults : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transport, Faults, kAllTransports, KindName);

const std::vector<std::string> kQuick = {"transport.connect_timeout=700ms"};
// Larger than all that sockets or slots hold on the way: a sender whose receiver stops gets stuck.
constexpr size_t kLarge = 96 << 20;

void Turn(Node& node, int turns) {
  for (int i = 0; i < turns; ++i) node.Progress();
}

// Until nothing has moved for a while: whoever is stuck is stuck for good. Two seconds do as well,
// for a transport that goes on probing its paths is never quiet for long.
void DriveUntilStuck(Node& node) {
  const absl::Time end = absl::Now() + absl::Seconds(2);
  for (int quiet = 0; quiet < 20 && absl::Now() < end;) {
    quiet = node.Progress() ? 0 : quiet + 1;
    if (quiet > 0) poll(nullptr, 0, 5);
  }
}

TEST_P(Faults, ConnectingToNobodyFailsAndNamesTheRank) {
  std::string address;
  { address = Node(GetParam(), 1, 2).address(); }
  Request send;
  Node a(GetParam(), 0, 2, kQuick);
  Buffer from(a.transport(), 10);
  SendLink* link = a.Connect(address, 1);
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
  EXPECT_FALSE(send.status().ok());
  EXPECT_THAT(std::string(send.status().message()), HasSubstr("rank 1"));
  EXPECT_EQ(link->status(), send.status());
  ASSERT_EQ(a.broken.size(), 1u);
  EXPECT_EQ(a.broken[0].first, link);
  // A broken link answers at once, and goes on being broken.
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
  EXPECT_EQ(link->status(), send.status());
}

TEST_P(Faults, AnAddressWithoutSenseBreaksTheLink) {
  for (const char* address : {"", "nonsense", "10.0.0.1:99999", "[::1:7", "/", "abc:def:ghi"}) {
    Node a(GetParam(), 0, 2, kQuick);
    SendLink* link = a.Connect(address, 1);
    ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); })) << address;
    EXPECT_THAT(std::string(link->status().message()), HasSubstr("rank 1")) << address;
    EXPECT_EQ(a.broken.size(), 1u);
  }
}

TEST_P(Faults, AStrangerWithAnotherSecretIsTurnedAway) {
  Node b(GetParam(), 1, 2, kQuick);
  Node stranger(GetParam(), 0, 2, kQuick, [](TransportOptions& o) { o.secret[31] ^= 1; });
  SendLink* link = stranger.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&stranger, &b}, [&] { return !link->status().ok(); }));
  ExpectNames(link->status(), absl::StatusCode::kPermissionDenied, 1);
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("secret"));
  EXPECT_EQ(b.accepted_count, 0);
  Node friendly(GetParam(), 0, 2);
  friendly.Connect(b.address(), 1);
  EXPECT_TRUE(DriveUntil({&friendly, &b}, [&] { return b.accepted_count == 1; }));
}

TEST_P(Faults, AnotherWorldSizeIsTurnedAwayWithBothValues) {
  Node b(GetParam(), 1, 2);
  Node other(GetParam(), 3, 5, kQuick);
  SendLink* link = other.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&other, &b}, [&] { return !link->status().ok(); }));
  ExpectNames(link->status(), absl::StatusCode::kFailedPrecondition, 1);
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("5"));
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("2"));
  EXPECT_EQ(b.accepted_count, 0);
}

TEST_P(Faults, AnAddressOfAnotherRankIsNoticed) {
  Node b(GetParam(), 1, 3), c(GetParam(), 0, 3, kQuick);
  SendLink* link = c.Connect(b.address(), 2);
  ASSERT_TRUE(DriveUntil({&c, &b}, [&] { return !link->status().ok(); }));
  ExpectNames(link->status(), absl::StatusCode::kNotFound, 2);
  EXPECT_EQ(b.accepted_count, 0);
}

TEST_P(Faults, DestroyingALinkCancelsItsRequestsAndTellsThePeer) {
  for (bool destroy_sender : {true, false}) {
    Request send, receive;
    Pair pair(GetParam());
    // Long enough to wait for its receive on every transport.
    Buffer from(pair.a.transport(), 100000), to(pair.b.transport(), 100000);
    ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    ASSERT_EQ(pair.receive->PostReceive({2, 2}, {to.view()}, &receive), Posted::kAccepted);
    for (int i = 0; i < 20; ++i) Turn(pair.a, 1), Turn(pair.b, 1);
    Request& own = destroy_sender ? send : receive;
    Request& others = destroy_sender ? receive : send;
    (destroy_sender ? pair.a : pair.b)
        .Destroy(destroy_sender ? static_cast<Link*>(pair.send) : pair.receive);
    ASSERT_TRUE(own.done());
    EXPECT_EQ(own.status().code(), absl::StatusCode::kCancelled);
    ASSERT_TRUE(pair.Done({&others}));
    ExpectNames(others.status(), absl::StatusCode::kUnavailable, destroy_sender ? 0 : 1);
    EXPECT_EQ((destroy_sender ? pair.a : pair.b).broken.size(), 0u);
    EXPECT_EQ((destroy_sender ? pair.b : pair.a).broken.size(), 1u);
  }
}

TEST_P(Faults, WhatWasSentBeforeAnOrderlyEndArrives) {
  for (int round = 0; round < 20; ++round) {
    Request sends[3], receives[3], never;
    Pair pair(GetParam());
    std::deque<Buffer> from, to;
    // Receives nobody sends to make unread bytes at the sender, whose sockets must not reset.
    Buffer spare(pair.b.transport(), 10);
    for (int i = 0; i < 3; ++i) {
      from.emplace_back(pair.a.transport(), 20000), to.emplace_back(pair.b.transport(), 20000);
      from[i].FillPattern(i);
      ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to[i].view()}, &receives[i]), Posted::kAccepted);
      ASSERT_EQ(pair.send->PostSend({1, 1}, from[i].view(), &sends[i]), Posted::kAccepted);
    }
    Turn(pair.b, 2);  // clear-to-sends are on their way
    // Where the receiver fetches what is large, or answers for itself, it has its part in a send.
    std::vector<Node*> busy = {&pair.a};
    if (GetParam() == TransportKind::kUcx || GetParam() == TransportKind::kMultipath ||
        GetParam() == TransportKind::kVerbs) {
      busy.push_back(&pair.b);
    }
    ASSERT_TRUE(
        DriveUntil(busy, [&] { return sends[0].done() && sends[1].done() && sends[2].done(); }));
    ASSERT_EQ(pair.send->PostNotice("last words"), Posted::kAccepted);
    Turn(pair.a, 2);
    ASSERT_EQ(pair.receive->PostReceive({9, 1}, {spare.view()}, &never), Posted::kAccepted);
    Turn(pair.b, 1);
    pair.a.Destroy(pair.send);
    ASSERT_TRUE(DriveUntil({&pair.b, &pair.a}, [&] { return never.done(); }));
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(receives[i].done() && receives[i].status().ok()) << receives[i].status();
      EXPECT_EQ(to[i].CheckPattern(i, to[i].size()), "");
    }
    ASSERT_EQ(pair.b.notices.size(), 1u);
    EXPECT_EQ(pair.b.notices[0].text, "last words");
    ExpectNames(never.status(), absl::StatusCode::kUnavailable, 0);
  }
}

TEST_P(Faults, APeerThatComesBackReplacesItsOldLink) {
  Request receive;
  Node b(GetParam(), 1, 2);
  Buffer to(b.transport(), 10);
  auto first = std::make_unique<Node>(GetParam(), 0, 2);
  first->Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({first.get(), &b}, [&] { return b.accepted_count == 1; }));
  ReceiveLink* old_link = b.accepted(0);
  ASSERT_EQ(old_link->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  Turn(b, 3);
  Node second(GetParam(), 0, 2);  // while the first still stands: as after a silent death
  second.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&second, &b}, [&] { return b.accepted_count == 2; }));
  ASSERT_TRUE(receive.done());
  ExpectNames(receive.status(), absl::StatusCode::kUnavailable, 0);
  EXPECT_FALSE(old_link->status().ok());
  EXPECT_TRUE(b.accepted(0)->status().ok());
  b.Destroy(old_link);
  first.reset();
}

TEST_P(Faults, AStoppedReceiverHoldsUpOnlyItsOwnMessages) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  Request slow;
  Scene scene(GetParam(), [](ChildNode& child, const Child::Channel& channel) {
    Buffer to(child.node.transport(), kLarge);
    if (child.in->PostReceive({1, 1}, {to.view()}, &child.request) != Posted::kAccepted) return 1;
    Turn(child.node, 5);
    channel.Say("posted");
    if (channel.Hear() != "go") return 2;
    if (!DriveUntil({&child.node}, [&] { return child.request.done(); })) return 3;
    channel.Say(child.request.status().ok() ? to.CheckPattern(5, kLarge) : "failed");
    channel.Hear();
    return 0;
  });
  ParentNode& parent = scene.parent;
  Buffer from(parent.node.transport(), kLarge);
  from.FillPattern(5);
  ASSERT_EQ(scene.Hear(), "posted");
  scene.child.Signal(SIGSTOP);
  ASSERT_EQ(parent.out->PostSend({1, 1}, from.view(), &slow), Posted::kAccepted);
  // A link of this very transport to itself goes on meanwhile, many times over.
  SendLink* to_self = parent.node.Connect(parent.node.address(), 0);
  ASSERT_TRUE(DriveUntil({&parent.node}, [&] { return parent.node.accepted(0) != nullptr; }));
  Buffer one(parent.node.transport(), 500000), two(parent.node.transport(), 500000);
  for (int i = 0; i < 100; ++i) {
    Request send, receive;
    ASSERT_EQ(to_self->PostSend({1, 1}, one.view(), &send), Posted::kAccepted);
    ASSERT_EQ(parent.node.accepted(0)->PostReceive({1, 1}, {two.view()}, &receive),
              Posted::kAccepted);
    ASSERT_TRUE(DriveUntil({&parent.node}, [&] { return send.done() && receive.done(); }));
  }
  EXPECT_FALSE(slow.done());
  scene.child.Signal(SIGCONT);
  scene.Say("go");
  ASSERT_TRUE(DriveUntil({&parent.node}, [&] { return slow.done(); }));
  EXPECT_TRUE(slow.status().ok()) << slow.status();
  Turn(parent.node, 10);
  EXPECT_EQ(scene.Hear(), "");
}

TEST_P(Faults, KilledBeforeItAccepts) {
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
    SendLink* link = a.Connect(address, 1);
    ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    Turn(a, 20);  // the connection is made; nobody answers on it
    if (!killed_before) {
      EXPECT_TRUE(link->status().ok());
      child.Signal(SIGKILL);
    }
    ASSERT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
    EXPECT_FALSE(send.status().ok());
    EXPECT_THAT(std::string(send.status().message()), HasSubstr("rank 1"));
  }
}

TEST_P(Faults, APeerThatNeverAnswersTheHandshakeTimesOut) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  auto body = [&](Child::Channel& channel) {
    Node node(GetParam(), 1, 2);
    channel.Say(node.address());
    channel.Hear();
    return 0;
  };
  Child child(body);
  Node a(GetParam(), 0, 2, kQuick);
  SendLink* link = a.Connect(child.channel().Hear(), 1);
  child.Signal(SIGSTOP);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); }));
  ExpectNames(link->status(), absl::StatusCode::kDeadlineExceeded, 1);
}

TEST_P(Faults, KilledConnectorInHandshakeLeavesTheListenerFine) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  Node b(GetParam(), 1, 2);
  std::string address = b.address();
  auto body = [&](Child::Channel& channel) {
    Node node(GetParam(), 0, 2);
    node.Connect(address, 1);
    Turn(node, 5);
    channel.Say("knocked");
    channel.Hear();
    return 0;
  };
  for (int turns : {0, 1, 2, 4}) {
    Child child(body);
    EXPECT_EQ(child.channel().Hear(), "knocked");
    Turn(b, turns);
    child.Signal(SIGKILL);
    Turn(b, 10);
  }
  Node friendly(GetParam(), 0, 2);
  int before = b.accepted_count;
  friendly.Connect(b.address(), 1);
  EXPECT_TRUE(DriveUntil({&friendly, &b}, [&] { return b.accepted_count > before; }));
}

TEST_P(Faults, KilledWhileIdle) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  Request send, receive;
  Scene scene(GetParam(), [](ChildNode& child, const Child::Channel& channel) {
    DriveUntilStuck(child.node);
    channel.Say("idle");
    channel.Hear();
    return 0;
  });
  ParentNode& parent = scene.parent;
  Buffer buffer(parent.node.transport(), 100);
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

TEST_P(Faults, KilledInTheMiddleOfAMessageAsSender) {
  WEFT_SKIP_IN_ONE_PROCESS(GetParam());
  for (bool combine : {false, true}) {
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
    if (combine) target.local = to.data(), target.combine = AddBytes;
    ASSERT_EQ(parent.in->PostReceive({1, 1}, target, &receive), Posted::kAccepted);
    Turn(parent.node, 3);
    scene.Say("go");
    ASSERT_EQ(scene.Hear(), "stuck");
    ASSERT_TRUE(scene.KillAndBreak());
    ASSERT_TRUE(receive.done());
    ExpectNames(receive.status(), absl::StatusCode::kUnavailable, 1);
  }
}

TEST_P(Faults, KilledInTheMiddleOfAMessageAsReceiver) {
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

TEST_P(Faults, OthersGoOnWhenOnePeerIsKilled) {
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

TEST_P(Faults, APeerThatStartsLaterIsReached) {
  // Its address is known before it listens: here because the same process listened there before.
  if (GetParam() != TransportKind::kTcp) GTEST_SKIP() << "only tcp addresses can be foretold";
  std::string address;
  { address = Node(GetParam(), 1, 2).address(); }
  Node a(GetParam(), 0, 2, {"transport.connect_timeout=1h"});
  SendLink* link = a.Connect(address, 1);
  Turn(a, 30);
  EXPECT_TRUE(link->status().ok());
  EXPECT_LT(a.transport().NextDeadline(), Now() + absl::Seconds(2)) << "it tries again";
}

TEST_P(Faults, ARingOfProcesses) {
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
