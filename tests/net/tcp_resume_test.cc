// Sockets of links are lost and replaced: everything arrives once, and what cannot be survived ends
// with a name.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/net/cutting_proxy.h"
#include "tests/net/harness.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

constexpr TransportKind kTcp = TransportKind::kTcp;
// What ends within the patience of these tests does not end by this limit.
const char kNeverDead[] = "tcp.dead_after=1h";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- Data over sockets that are cut

// Messages of all sizes, some of them reduced: a byte that came twice would be added twice.
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
        target.local = post.buffer->data(), target.reduce = AddBytes;
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

// The other transports' socket is what stands beside their wire: UCX's, or datagrams.
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
    // Data beside the socket may have come before the last one was replaced.
    ASSERT_TRUE(DriveUntil({&a, &b}, [&] {
      proxy.Cut();
      return proxy.cuts() > before;
    }));
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
TEST(TcpResume, AKilledReceiverIsKnownAtOnceByItsClosedListener) {
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

TEST(TcpResume, AKilledSenderIsKnownAtOnceByItsClosedListener) {
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

// ---- Closed while a socket is being replaced

// A sender with one small message that is reported as sent and that the proxy keeps.
class Closing : public testing::Test {
 protected:
  static constexpr size_t kBytes = 5000;
  void SendTo(Node& b) {
    proxy_.emplace(b.address(), 1);
    link_ = a_->Connect(proxy_->address().ToString(), 1);
    ASSERT_TRUE(
        DriveUntil({a_.get(), &b}, [&] { return b.accepted(0) != nullptr && link_->connected(); }));
    ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to_.view()}, &receive_), Posted::kAccepted);
    ASSERT_EQ(b.accepted(0)->PostReceive({2, 1}, {never_.view()}, &never_received_),
              Posted::kAccepted);
    ASSERT_EQ(b.accepted(0)->PostReceive({3, 1}, {large_.view()}, &large_received_),
              Posted::kAccepted);
    for (int i = 0; i < 10; ++i) b.Progress();
    proxy_->Hold(/*client=*/true, /*server=*/false);
    Buffer from(a_->transport(), kBytes);
    from.FillPattern(4);
    ASSERT_EQ(link_->PostSend({1, 1}, from.view(), &send_), Posted::kAccepted);
    ASSERT_TRUE(DriveUntil({a_.get()}, [&] { return send_.done(); }));
    ASSERT_TRUE(send_.status().ok()) << send_.status();
  }
  // Resets the socket; whoever connects anew waits, for the proxy keeps what they say.
  void Cut() {
    const int before = proxy_->cuts();
    proxy_->Cut();
    ASSERT_TRUE(DriveUntil({a_.get()}, [&] { return proxy_->cuts() > before; }));
  }
  void ExpectDelivered(const std::vector<Node*>& nodes) {
    ASSERT_TRUE(DriveUntil(nodes, [&] { return never_received_.done() && receive_.done(); }));
    EXPECT_TRUE(receive_.status().ok()) << receive_.status();
    EXPECT_EQ(to_.CheckPattern(4, kBytes), "");
    EXPECT_EQ(never_received_.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Message(never_received_.status()), HasSubstr("it closed the link"));
  }
  Request send_, receive_, never_received_, large_received_;
  Node b_{kTcp, 1, 2, {kNeverDead, "tcp.sockets=1"}};
  Buffer to_{b_.transport(), kBytes}, never_{b_.transport(), 10}, large_{b_.transport(), 8 << 20};
  std::unique_ptr<Node> a_ =
      std::make_unique<Node>(kTcp, 0, 2, std::vector<std::string>{kNeverDead, "tcp.sockets=1"});
  std::optional<CuttingProxy> proxy_;
  SendLink* link_ = nullptr;
};

TEST_F(Closing, WhatWasReportedArrivesThoughTheSocketIsBeingReplaced) {
  SendTo(b_);
  Cut();
  for (int i = 0; i < 20; ++i) a_->Progress();
  ASSERT_TRUE(link_->status().ok()) << link_->status();
  a_->Destroy(link_);
  proxy_->Hold(false, false);
  ExpectDelivered({a_.get(), &b_});
}

TEST_F(Closing, WhatWasReportedArrivesThoughTheSocketIsLostAfterwards) {
  SendTo(b_);
  a_->Destroy(link_);
  for (int i = 0; i < 20; ++i) a_->Progress();
  Cut();
  proxy_->Hold(false, false);
  ExpectDelivered({a_.get(), &b_});
}

TEST_F(Closing, TheTransportWaitsForWhatWasReported) {
  SendTo(b_);
  Cut();
  for (int i = 0; i < 20; ++i) a_->Progress();
  std::atomic<bool> gone = false;
  std::thread closes([&] {
    a_.reset();  // with all its links
    gone = true;
  });
  proxy_->Hold(false, false);
  ExpectDelivered({&b_});
  EXPECT_TRUE(DriveUntil({&b_}, [&] { return gone.load(); }));
  closes.join();
}

// Within limits of an hour: by what is seen of the process.
TEST_F(Closing, WhoCannotBeToldSeesTheClosedListener) {
  SendTo(b_);
  proxy_->Refuse();
  ASSERT_TRUE(DriveUntil({a_.get()}, [&] { return proxy_->cuts() > 0; }));
  for (int i = 0; i < 20; ++i) a_->Progress();
  std::thread closes([&] { a_.reset(); });
  EXPECT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  closes.join();
  EXPECT_EQ(receive_.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(receive_.status()), HasSubstr("its process listens no more"));
}

// Its memory is the user's again: the rest of the message cannot be said any more.
TEST_F(Closing, AMessageThatWasCancelledEndsTheLinkWithAName) {
  Request large_sent;
  SendTo(b_);
  {
    Buffer large(a_->transport(), 8 << 20);
    large.FillPattern(9);
    ASSERT_EQ(link_->PostSend({3, 1}, large.view(), &large_sent), Posted::kAccepted);
    for (int i = 0; i < 20; ++i) a_->Progress();
    ASSERT_FALSE(large_sent.done());
    Cut();
    for (int i = 0; i < 20; ++i) a_->Progress();
    a_->Destroy(link_);
    ASSERT_TRUE(large_sent.done());
  }
  proxy_->Hold(false, false);
  ASSERT_TRUE(DriveUntil({a_.get(), &b_}, [&] { return large_received_.done(); }));
  EXPECT_TRUE(receive_.status().ok()) << receive_.status();  // came before it
  EXPECT_EQ(to_.CheckPattern(4, kBytes), "");
  EXPECT_EQ(large_received_.status().code(), absl::StatusCode::kUnavailable);
}

// A link of two sockets loses one with a message: the other does not say goodbye before.
TEST(TcpResume, AClosedLinkOfSeveralSocketsSaysAllOfThem) {
  constexpr int kMessages = 40;
  const std::vector<std::string> settings = {kNeverDead, "tcp.sockets=4"};
  std::deque<Request> requests(2 * kMessages);
  Node a(kTcp, 0, 2, settings), b(kTcp, 1, 2, settings);
  CuttingProxy proxy(b.address(), 1);
  SendLink* link = a.Connect(proxy.address().ToString(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr && link->connected(); }));
  Buffer from(a.transport(), 3000 * kMessages), to(b.transport(), 3000 * kMessages);
  from.FillPattern(2);
  proxy.Hold(/*client=*/true, /*server=*/false);
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to.view().Slice(3000 * i, 3000)}, &requests[i]),
              Posted::kAccepted);
    ASSERT_EQ(link->PostSend({1, 1}, from.view().Slice(3000 * i, 3000), &requests[kMessages + i]),
              Posted::kAccepted);
  }
  const auto sent = [&] {
    return std::all_of(requests.begin() + kMessages, requests.end(),
                       [](const Request& request) { return request.done(); });
  };
  ASSERT_TRUE(DriveUntil({&a, &b}, sent));
  proxy.Cut();
  ASSERT_TRUE(DriveUntil({&a}, [&] { return proxy.cuts() >= 4; }));
  a.Destroy(link);
  proxy.Hold(false, false);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return !b.broken.empty(); }));
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(requests[i].done()) << i;
    EXPECT_TRUE(requests[i].status().ok()) << i << ": " << requests[i].status();
  }
  EXPECT_EQ(to.CheckPattern(2, to.size()), "");
  EXPECT_THAT(Message(b.broken[0].second), HasSubstr("it closed the link"));
}

}  // namespace
}  // namespace weft::net
