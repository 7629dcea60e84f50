// Faults: peers that are absent, slow, stopped, unauthenticated, or back again. Whatever happens,
// every request completes, with an error that names the rank, and other links go on. Processes that
// are killed: conformance_killed_test.cc.
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

TEST(Transports, NoneIsMadeWithoutASecret) {
  TransportOptions options = OptionsFor(0, 2, {});
  options.secret = {};
  for (TransportKind kind : {TransportKind::kShm, TransportKind::kTcp, TransportKind::kMultipath}) {
    const absl::Status status = CreateTransport(kind, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("WEFT_JOB_SECRET"));
  }
}

TEST_P(Faults, APeerWithAnotherSecretIsTurnedAway) {
  Node b(GetParam(), 1, 2);
  Node outsider(GetParam(), 0, 2, {}, [](TransportOptions& o) { o.secret[31] ^= 1; });
  SendLink* link = outsider.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&outsider, &b}, [&] { return !link->status().ok(); }));
  ExpectNames(link->status(), absl::StatusCode::kPermissionDenied, 1);
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("secret"));
  EXPECT_EQ(b.accepted_count, 0);
  Node friendly(GetParam(), 0, 2);
  friendly.Connect(b.address(), 1);
  EXPECT_TRUE(DriveUntil({&friendly, &b}, [&] { return b.accepted_count == 1; }));
}

TEST_P(Faults, AnotherWorldSizeIsTurnedAwayWithBothValues) {
  Node b(GetParam(), 1, 2);
  Node other(GetParam(), 3, 5);
  SendLink* link = other.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&other, &b}, [&] { return !link->status().ok(); }));
  ExpectNames(link->status(), absl::StatusCode::kFailedPrecondition, 1);
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("5"));
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("2"));
  EXPECT_EQ(b.accepted_count, 0);
}

TEST_P(Faults, AnAddressOfAnotherRankIsNoticed) {
  Node b(GetParam(), 1, 3), c(GetParam(), 0, 3);
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

// The one end has the link, the other does not know yet.
TEST_P(Faults, ALinkThatIsDestroyedWhileItIsAcceptedEndsAtThePeer) {
  Node a(GetParam(), 0, 2), b(GetParam(), 1, 2);
  SendLink* send = a.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr; }));
  a.Destroy(send);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return !b.accepted(0)->status().ok(); }));
  ExpectNames(b.accepted(0)->status(), absl::StatusCode::kUnavailable, 0);
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

TEST_P(Faults, ALinkThatIsBeingMadeSaysThatItHoldsNotices) {
  Node a(GetParam(), 0, 2), b(GetParam(), 1, 2);
  SendLink* link = a.Connect(b.address(), 1);
  ASSERT_EQ(link->PostNotice("why"), Posted::kAccepted);
  EXPECT_TRUE(link->HoldsNotices());
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return !b.notices.empty(); }));
  EXPECT_FALSE(link->HoldsNotices());
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

}  // namespace
}  // namespace weft::net
