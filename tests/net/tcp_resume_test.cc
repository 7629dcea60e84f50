// Sockets of tcp links are lost and replaced: everything arrives once, whoever should not come is
// turned away, and what cannot be survived ends with a name.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/net/cutting_proxy.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

constexpr TransportKind kTcp = TransportKind::kTcp;
// What ends within the patience of these tests does not end by this limit.
const char kNeverDead[] = "tcp.dead_after=1h";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- Data over sockets that are cut

// Messages of all sizes, some of them combined: a byte that came twice would be added twice.
struct Traffic {
  explicit Traffic(uint64_t seed, int messages) : random(seed) {
    for (int i = 0; i < messages; ++i) {
      const uint64_t kind = random.Below(10);
      sizes.push_back(random.Below(kind < 4 ? 100 : kind < 8 ? 100'000 : 3'000'000));
    }
  }
  Random random;
  std::vector<size_t> sizes;
};

// One process's part: sends one traffic and receives the other, a few messages at a time.
std::string Exchange(Node& node, SendLink& out, ReceiveLink& in, const Traffic& sent,
                     const Traffic& received) {
  constexpr size_t kInFlight = 4;
  struct Post {
    std::unique_ptr<Buffer> buffer;
    Request request;
  };
  std::deque<Post> sends, receives;
  size_t sends_posted = 0, receives_posted = 0, sends_done = 0, receives_done = 0;
  std::string wrong;
  auto step = [&] {
    while (sends_posted < sent.sizes.size() && sends.size() < kInFlight) {
      Post& post = sends.emplace_back();
      post.buffer = std::make_unique<Buffer>(node.transport(), sent.sizes[sends_posted]);
      post.buffer->FillPattern(sends_posted);
      if (out.PostSend({1, 1}, post.buffer->view(), &post.request) != Posted::kAccepted) abort();
      ++sends_posted;
    }
    while (receives_posted < received.sizes.size() && receives.size() < kInFlight) {
      Post& post = receives.emplace_back();
      post.buffer = std::make_unique<Buffer>(node.transport(), received.sizes[receives_posted]);
      ReceiveTarget target{post.buffer->view()};
      if (receives_posted % 2 == 0) {
        post.buffer->Clear(0);
        target.local = post.buffer->data(), target.combine = AddBytes;
      }
      if (in.PostReceive({1, 1}, target, &post.request) != Posted::kAccepted) abort();
      ++receives_posted;
    }
    while (!sends.empty() && sends.front().request.done()) {
      if (!sends.front().request.status().ok()) wrong = Message(sends.front().request.status());
      // Nobody needs it any more: what is still read here is found.
      sends.front().buffer->Clear(0xDD);
      sends.pop_front();
      ++sends_done;
    }
    while (!receives.empty() && receives.front().request.done()) {
      const Post& post = receives.front();
      if (!post.request.status().ok()) {
        wrong = Message(post.request.status());
      } else if (post.request.bytes() != post.buffer->size()) {
        wrong = absl::StrCat("message ", receives_done, ": ", post.request.bytes(), " bytes");
      } else if (auto bad = post.buffer->CheckPattern(receives_done, post.buffer->size());
                 bad != "") {
        wrong = absl::StrCat("message ", receives_done, ": ", bad);
      }
      receives.pop_front();
      ++receives_done;
    }
    return !wrong.empty() ||
           (sends_done == sent.sizes.size() && receives_done == received.sizes.size());
  };
  if (!DriveUntil({&node}, step)) {
    wrong = absl::StrCat("stuck after ", sends_done, " sends and ", receives_done, " receives");
  }
  return wrong;
}

class Cut : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sockets, Cut, testing::Values(1, 2, 4), testing::PrintToStringParamName());

TEST_P(Cut, EverythingArrivesOnceBothWaysThroughResets) {
  const std::vector<std::string> settings = {absl::StrCat("tcp.sockets=", GetParam()), kNeverDead,
                                             "log.level=error"};
  const int messages = 60;
  int cuts = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    const Traffic forward(seed, messages), backward(seed + 100, messages);
    Child child([&](Child::Channel& channel) {
      Node node(kTcp, 1, 2, settings);
      channel.Say(node.address());
      SendLink* out = node.Connect(channel.Hear(), 0);
      if (!DriveUntil({&node}, [&] { return node.accepted(0) != nullptr && out->connected(); })) {
        return 1;
      }
      channel.Say("linked");
      channel.Say(Exchange(node, *out, *node.accepted(0), backward, forward));
      // Until the other side has heard that all is taken.
      pollfd over{channel.in, POLLIN, 0};
      DriveUntil({&node}, [&] { return poll(&over, 1, 0) == 1; });
      return 0;
    });
    Node node(kTcp, 0, 2, settings);
    CuttingProxy there(child.channel().Hear(), seed);
    CuttingProxy back(node.address(), seed + 50);
    SendLink* out = node.Connect(there.address().ToString(), 1);
    child.channel().Say(back.address().ToString());
    pollfd linked{child.channel().in, POLLIN, 0};
    ASSERT_TRUE(DriveUntil({&node}, [&] {
      return node.accepted(1) != nullptr && out->connected() && poll(&linked, 1, 0) == 1;
    }));
    ASSERT_EQ(child.channel().Hear(), "linked");
    there.CutEvery(600'000);
    back.CutEvery(600'000);
    EXPECT_EQ(Exchange(node, *out, *node.accepted(1), forward, backward), "");
    pollfd said{child.channel().in, POLLIN, 0};
    ASSERT_TRUE(DriveUntil({&node}, [&] { return poll(&said, 1, 0) == 1; }));
    EXPECT_EQ(child.channel().Hear(), "");
    child.channel().Say("over");
    cuts += there.cuts() + back.cuts();
  }
  EXPECT_GT(cuts, 100);
}

// Of the others the socket is what stands beside their wire: UCX's, or datagrams.
class IdleLink : public testing::TestWithParam<TransportKind> {};
INSTANTIATE_TEST_SUITE_P(Transport, IdleLink,
                         testing::Values(kTcp, TransportKind::kMultipath
#ifdef WEFT_HAS_UCX
                                         ,
                                         TransportKind::kUcx
#endif
                                         ),
                         [](const auto& kind) { return std::string(ToString(kind.param)); });

TEST_P(IdleLink, IsResumedToo) {
  const std::vector<std::string> settings = {kNeverDead, "tcp.sockets=2"};
  Request send, receive;
  Node a(GetParam(), 0, 2, settings), b(GetParam(), 1, 2, settings);
  CuttingProxy proxy(b.address(), 1);
  SendLink* link = a.Connect(proxy.address().ToString(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr && link->connected(); }));
  for (int round = 0; round < 5; ++round) {
    const int before = proxy.cuts();
    proxy.Cut();
    ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return proxy.cuts() > before; }));
    Buffer from(a.transport(), 5000), to(b.transport(), 5000);
    from.FillPattern(static_cast<uint64_t>(round));
    ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_EQ(link->PostNotice(absl::StrCat(round)), Posted::kAccepted);
    ASSERT_TRUE(DriveUntil({&a, &b},
                           [&] {
                             return send.done() && receive.done() &&
                                    b.notices.size() == static_cast<size_t>(round) + 1;
                           }))
        << round << ": " << link->status() << ", " << b.accepted(0)->status();
    ASSERT_TRUE(receive.status().ok()) << receive.status();
    EXPECT_EQ(to.CheckPattern(static_cast<uint64_t>(round), 5000), "");
    EXPECT_EQ(b.notices.back().text, absl::StrCat(round));
  }
  EXPECT_TRUE(a.broken.empty() && b.broken.empty());
}

// ---- Ends that are none of a path

// With limits of an hour: only what is seen of the process can end the link.
TEST(TcpResume, AKilledReceiverIsKnownAtOnceByItsClosedDoor) {
  Child child([](Child::Channel& channel) {
    Node node(kTcp, 1, 2, {kNeverDead});
    Request receive;
    Buffer to(node.transport(), 64 << 20);
    channel.Say(node.address());
    DriveUntil({&node}, [&] { return node.accepted(0) != nullptr; });
    if (node.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive) != Posted::kAccepted) return 1;
    for (int i = 0; i < 10; ++i) node.Progress();
    channel.Say("posted");
    channel.Hear();
    return 0;
  });
  Node a(kTcp, 0, 2, {kNeverDead});
  Request send;
  Buffer from(a.transport(), 64 << 20);
  SendLink* link = a.Connect(child.channel().Hear(), 1);
  pollfd posted{child.channel().in, POLLIN, 0};
  ASSERT_TRUE(DriveUntil({&a}, [&] { return poll(&posted, 1, 0) == 1; }));
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  for (int i = 0; i < 1000; ++i) a.Progress();  // its kernel holds what it has not read: a reset
  child.Signal(SIGKILL);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
  EXPECT_EQ(send.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(send.status()), HasSubstr("its process or its host has died"));
}

TEST(TcpResume, AKilledSenderIsKnownAtOnceByItsClosedDoor) {
  Child child([](Child::Channel& channel) {
    Node node(kTcp, 0, 2, {kNeverDead, "tcp.sockets=1"});
    SendLink* link = node.Connect(channel.Hear(), 1);
    DriveUntil({&node}, [&] { return link->connected(); });
    channel.Say("connected");
    channel.Hear();  // reads nothing any more
    return 0;
  });
  Node b(kTcp, 1, 2, {kNeverDead, "tcp.sockets=1"});
  Request receive;
  Buffer to(b.transport(), 100);
  child.channel().Say(b.address());
  pollfd connected{child.channel().in, POLLIN, 0};
  ASSERT_TRUE(DriveUntil({&b}, [&] { return poll(&connected, 1, 0) == 1; }));
  ASSERT_NE(b.accepted(0), nullptr);
  ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  for (int i = 0; i < 10; ++i) b.Progress();  // a clear-to-send that it does not read: a reset
  child.Signal(SIGKILL);
  ASSERT_TRUE(DriveUntil({&b}, [&] { return receive.done(); }));
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(receive.status()), HasSubstr("its process listens no more"));
  EXPECT_THAT(Message(receive.status()), HasSubstr("its process or its host has died"));
}

TEST(TcpResume, AListenerThatDoesNotKnowTheLinkEndsIt) {
  Request send;
  Node a(kTcp, 0, 2, {kNeverDead});
  auto b = std::make_unique<Node>(kTcp, 1, 2, std::vector<std::string>{kNeverDead});
  CuttingProxy proxy(b->address(), 1);
  SendLink* link = a.Connect(proxy.address().ToString(), 1);
  ASSERT_TRUE(
      DriveUntil({&a, b.get()}, [&] { return b->accepted(0) != nullptr && link->connected(); }));
  Buffer from(a.transport(), 100);
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  proxy.Cut();
  ASSERT_TRUE(DriveUntil({&a}, [&] { return proxy.cuts() >= 2; }));
  b->Destroy(b->accepted(0));  // its goodbye cannot arrive any more
  ASSERT_TRUE(DriveUntil({&a, b.get()}, [&] { return send.done(); }));
  EXPECT_EQ(send.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(send.status()), HasSubstr("this process has no such link"));
}

TEST(TcpResume, BothEndsGiveUpWithANameWhenNothingGetsThrough) {
  const std::vector<std::string> settings = {"tcp.dead_after=1s", "tcp.sockets=1"};
  Request send, receive;
  Node a(kTcp, 0, 2, settings), b(kTcp, 1, 2, settings);
  CuttingProxy proxy(b.address(), 1);
  SendLink* link = a.Connect(proxy.address().ToString(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr && link->connected(); }));
  Buffer from(a.transport(), 100), to(b.transport(), 100);
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(b.accepted(0)->PostReceive({2, 1}, {to.view()}, &receive), Posted::kAccepted);
  proxy.Refuse();
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return send.done() && receive.done(); }));
  EXPECT_EQ(send.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(send.status()), HasSubstr("socket 0 of 1 was lost ("));
  EXPECT_THAT(Message(send.status()), HasSubstr("tcp.dead_after is 1s"));
  EXPECT_THAT(Message(send.status()), HasSubstr(" attempts; the last: "));
  EXPECT_THAT(Message(send.status()), HasSubstr("rank 1"));
  // The sender's process lives, and the receiver sees that.
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(receive.status()), HasSubstr("it has not connected anew"));
  EXPECT_THAT(Message(receive.status()), HasSubstr("it listens"));
}

// ---- Those who come for a socket

// A sender made by hand, so that its link's id and epochs are known.
class Door : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(first_.ShakeHands(b_, 0, 3, kLink));
    ASSERT_TRUE(DriveUntil({&b_}, [&] { return b_.accepted(0) != nullptr; }));
    ASSERT_EQ(b_.accepted(0)->PostReceive({7, 7}, {to_.view()}, &receive_), Posted::kAccepted);
    clear_ = first_.HearHeader(b_);
    ASSERT_EQ(clear_.type, FrameType::kClearToSend);
  }
  // True: it was let in.
  bool Come(RawPeer& peer, int rank, LinkParameters parameters) {
    return peer.ShakeHands(b_, rank, 3, parameters);
  }
  FrameHeader Piece(uint64_t offset, uint64_t length, uint64_t total) const {
    FrameHeader header;
    header.type = FrameType::kData;
    header.receive = clear_.receive;
    header.tag = header.check = 7;
    header.offset = offset, header.length = length, header.total = total;
    return header;
  }
  static FrameHeader Resume(uint64_t epoch, uint64_t taken) {
    FrameHeader header;
    header.type = FrameType::kResume;
    header.receive = epoch, header.total = taken;
    return header;
  }
  static constexpr uint64_t kLink = 77;
  static constexpr uint64_t kClearToSendBytes = sizeof(FrameHeader);  // bytes that b has written
  Request receive_;  // the node's end is written to it
  Node b_{kTcp, 1, 3, {"tcp.sockets=1", kNeverDead}};
  Buffer to_{b_.transport(), 4096};
  RawPeer first_ = RawPeer::ConnectTo(b_.address());
  FrameHeader clear_;
};

TEST_F(Door, AFrameThatWasCutGoesOnWhereItWas) {
  first_.Say(Piece(0, 256, 256), std::string(100, 'x'));
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 1}));
  const FrameHeader resume = second.HearHeader(b_);
  ASSERT_EQ(resume.type, FrameType::kResume);
  EXPECT_EQ(resume.receive, 1u);
  ASSERT_EQ(resume.total, sizeof(FrameHeader) + 100);
  second.Say(Resume(1, kClearToSendBytes));
  second.Say(std::string(156, 'y'));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  ASSERT_TRUE(receive_.status().ok()) << receive_.status();
  EXPECT_EQ(std::string(reinterpret_cast<char*>(to_.data()), 256),
            std::string(100, 'x') + std::string(156, 'y'));
}

TEST_F(Door, WhatWasNotTakenIsSaidAgain) {
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 1}));
  EXPECT_EQ(second.HearHeader(b_).total, 0u);
  second.Say(Resume(1, 24));  // of the clear-to-send
  const std::string rest = second.HearExactly(b_, sizeof(FrameHeader) - 24);
  EXPECT_EQ(std::memcmp(rest.data(), reinterpret_cast<char*>(&clear_) + 24, rest.size()), 0);
}

TEST_F(Door, StrangersToTheLinkAreTurnedAway) {
  const std::vector<std::pair<int, LinkParameters>> strangers = {
      {0, {kLink + 1, 0, 1, 1}},  // no such link
      {2, {kLink, 0, 1, 1}},      // another rank's
      {0, {kLink, 0, 2, 1}},      // of another number of sockets
      {0, {kLink, 1, 2, 1}},
  };
  for (const auto& [rank, parameters] : strangers) {
    RawPeer peer = RawPeer::ConnectTo(b_.address());
    EXPECT_FALSE(Come(peer, rank, parameters)) << rank;
  }
  // The link does not mind.
  first_.Say(Piece(0, 64, 64), std::string(64, 'x'));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  EXPECT_TRUE(receive_.status().ok()) << receive_.status();
}

TEST_F(Door, AnEpochServesOnce) {
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 5}));
  for (uint32_t epoch : {5u, 4u, 1u}) {
    RawPeer late = RawPeer::ConnectTo(b_.address());
    EXPECT_FALSE(Come(late, 0, {kLink, 0, 1, epoch})) << epoch;
  }
  EXPECT_EQ(second.HearHeader(b_).receive, 5u);
  second.Say(Resume(5, kClearToSendBytes));
  second.Say(Piece(0, 64, 64), std::string(64, 'x'));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  EXPECT_TRUE(receive_.status().ok()) << receive_.status();
}

TEST_F(Door, ARecordedReconnectionIsWorthless) {
  TransportOptions options = OptionsFor(0, 3, {});
  HandshakeIdentity self{options.self, 3, options.secret, HandshakePurpose::kTcpLink};
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ConnectorHandshake handshake(self, Rank(1), LinkParameters{kLink, 0, 1, 1}.Encode(), NewNonce());
  handshake.Feed(second.HearExactly(b_, 44));
  const std::string hello = handshake.TakeOutput();
  RawPeer thief = RawPeer::ConnectTo(b_.address());
  thief.HearExactly(b_, 44);
  thief.Say(hello);
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return thief.Hear(), thief.closed(); }));
  first_.Say(Piece(0, 64, 64), std::string(64, 'x'));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  EXPECT_TRUE(receive_.status().ok()) << receive_.status();
}

TEST_F(Door, LiesOfWhatWasTakenBreakTheLink) {
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 1}));
  second.Say(Resume(1, kClearToSendBytes + 1));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  EXPECT_EQ(receive_.status().code(), absl::StatusCode::kInvalidArgument);
}

// All that a reconnection brings, with bytes changed, cut and continued anyhow.
TEST(TcpResumeFuzz, FuzzedReconnectionsDoNoHarm) {
  Node b(kTcp, 1, 3, {"tcp.sockets=1", "tcp.dead_after=1s", "log.level=off"});
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const uint64_t id = 1000 + seed;
    Request receive;
    Buffer to(b.transport(), 512);
    to.Clear(0xEE);
    RawPeer first = RawPeer::ConnectTo(b.address());
    const int before = b.accepted_count;
    ASSERT_TRUE(first.ShakeHands(b, 0, 3, id));
    ASSERT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count > before; }));
    ReceiveLink* link = b.accepted(0);
    ASSERT_EQ(link->PostReceive({7, 7}, {to.view().Slice(0, 256)}, &receive), Posted::kAccepted);
    FrameHeader clear = first.HearHeader(b);
    FrameHeader data;
    data.type = FrameType::kData;
    data.receive = clear.receive, data.tag = data.check = 7;
    data.length = data.total = 256;
    data.flags = static_cast<uint8_t>(random.Below(3));
    first.Say(data, std::string(random.Below(256), 'd'));
    for (int i = 0; i < 3; ++i) b.Progress();
    RawPeer second = RawPeer::ConnectTo(b.address());
    ASSERT_TRUE(second.ShakeHands(b, 0, 3, LinkParameters{id, 0, 1, 1}));
    FrameHeader resume;
    resume.type = FrameType::kResume;
    resume.receive = 1, resume.total = random.Below(65);
    FrameHeader taken;
    taken.type = FrameType::kTaken;
    taken.length = 8;
    std::string stream(reinterpret_cast<char*>(&resume), sizeof(resume));
    stream += std::string(random.Below(300), 'e');
    stream.append(reinterpret_cast<char*>(&taken), sizeof(taken));
    stream += std::string(8, static_cast<char>(random.Below(256)));
    for (uint64_t n = random.Below(5); n > 0; --n) {
      const size_t at = random.Below(random.Below(2) ? stream.size() : 64);
      stream[at] = static_cast<char>(random());
    }
    if (random.Below(3) == 0) stream.resize(random.Below(stream.size() + 1));
    second.Say(stream);
    for (int i = 0; i < 5; ++i) b.Progress();
    second.Close();
    ASSERT_TRUE(DriveUntil({&b}, [&] { return receive.done() && !link->status().ok(); }));
    for (size_t i = 256; i < to.size(); ++i) {
      ASSERT_EQ(to.data()[i], std::byte{0xEE}) << "written past the receive, at " << i;
    }
    b.Destroy(link);
  }
}

}  // namespace
}  // namespace weft::net
