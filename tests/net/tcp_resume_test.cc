// Sockets of links are lost and replaced: everything arrives once, and what cannot be survived ends
// with a name.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <memory>

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

}  // namespace
}  // namespace weft::net
