// Notices, and waiting without driving: nobody who sleeps is forgotten, nobody is woken for
// nothing.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/net/conformance.h"

namespace weft::net {
namespace {

class Notices : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transport, Notices, kAllTransports, KindName);

TEST_P(Notices, NoticesComeOnceAndInOrderBothWays) {
  Pair pair(GetParam());
  constexpr int kCount = 2000;
  auto text = [](int i) { return absl::StrCat(i, ":", std::string(i * 7 % 480, 'x')); };
  int from_a = 0, from_b = 0;
  // A large message on its way does not stop them.
  Buffer from(pair.a.transport(), 32 << 20), to(pair.b.transport(), 32 << 20);
  Request send, receive;
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(pair.Drive([&] {
    while (from_a < kCount && pair.send->PostNotice(text(from_a)) == Posted::kAccepted) ++from_a;
    while (from_b < kCount && pair.receive->PostNotice(text(from_b)) == Posted::kAccepted) ++from_b;
    return pair.a.notices.size() >= kCount && pair.b.notices.size() >= kCount;
  }));
  ASSERT_TRUE(pair.Done({&send, &receive}));
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(pair.a.notices[i].text, text(i));
    ASSERT_EQ(pair.b.notices[i].text, text(i));
    ASSERT_EQ(pair.a.notices[i].link, pair.send);
    ASSERT_EQ(pair.b.notices[i].link, pair.receive);
  }
  EXPECT_EQ(pair.a.notices.size(), static_cast<size_t>(kCount));
}

TEST_P(Notices, NoticesOfEverySizeEvenEmpty) {
  Pair pair(GetParam());
  for (size_t size : {size_t{0}, size_t{1}, size_t{64}, kNoticeBytesMax}) {
    ASSERT_EQ(pair.send->PostNotice(std::string(size, 'n')), Posted::kAccepted);
    pair.b.notices.clear();
    ASSERT_TRUE(pair.Drive([&] { return !pair.b.notices.empty(); })) << size;
    EXPECT_EQ(pair.b.notices[0].text, std::string(size, 'n'));
  }
}

TEST_P(Notices, PostingFromWithinANoticeWorks) {
  Pair pair(GetParam());
  Buffer from(pair.a.transport(), 100), to(pair.b.transport(), 100);
  from.FillPattern(1);
  Request send, receive;
  pair.b.on_notice = [&](Link&) {
    EXPECT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
    EXPECT_EQ(pair.receive->PostNotice("thanks"), Posted::kAccepted);
  };
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(pair.send->PostNotice("please"), Posted::kAccepted);
  ASSERT_TRUE(pair.Drive([&] { return send.done() && !pair.a.notices.empty(); }));
  ASSERT_TRUE(pair.Done({&receive}));
  EXPECT_EQ(to.CheckPattern(1, 100), "");
}

// One side of a ping-pong that sleeps whenever there is nothing to do: a lost wake-up hangs it.
// `rounds` is both sides'. The first side cuts it once `kEnough` has passed: on a machine with
// other work, every wake-up may take a time slice.
void PingPong(Node& node, SendLink* out, ReceiveLink* in, std::atomic<int>& rounds, bool first) {
  constexpr absl::Duration kEnough = absl::Seconds(20);
  const absl::Time start = Now();
  Buffer buffer(node.transport(), 8);
  for (int i = 0; i < rounds; ++i) {
    // The other side is at most one round ahead.
    if (first && Now() - start > kEnough) rounds = std::min(rounds.load(), i + 2);
    for (bool sending : {first, !first}) {
      Request request;
      Posted posted = sending ? out->PostSend({1, 0}, buffer.view(), &request)
                              : in->PostReceive({1, 0}, {buffer.view()}, &request);
      ASSERT_EQ(posted, Posted::kAccepted);
      absl::Time end = Now() + kPatience;
      while (!request.done()) {
        if (node.Progress()) continue;
        ASSERT_LT(Now(), end) << "round " << i;
        if (node.transport().PrepareWait()) {
          pollfd fd{node.transport().wait_fd(), POLLIN, 0};
          // Far above any round trip, so that a missed wake-up shows as a hang of this length.
          ASSERT_GT(poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 0)
              << "nobody rang in round " << i;
        }
        node.transport().FinishWait();
      }
      ASSERT_TRUE(request.status().ok()) << request.status();
    }
  }
}

TEST_P(Notices, SleepersAreWokenEveryTime) {
  Node a(GetParam(), 0, 2), b(GetParam(), 1, 2);
  SendLink* to_b = a.Connect(b.address(), 1);
  SendLink* to_a = b.Connect(a.address(), 0);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return a.accepted(1) && b.accepted(0); }));
  std::atomic<int> rounds = 10000;
  std::thread other([&] { PingPong(b, to_a, b.accepted(0), rounds, false); });
  PingPong(a, to_b, a.accepted(1), rounds, true);
  other.join();
}

TEST_P(Notices, AnIdleTransportDoesNotRing) {
  Pair pair(GetParam());
  Buffer from(pair.a.transport(), 64), to(pair.b.transport(), 64);
  Request send, receive;
  ASSERT_EQ(pair.receive->PostReceive({1, 0}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_EQ(pair.send->PostSend({1, 0}, from.view(), &send), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  // Whatever is left over settles; then both sleep for good.
  int quiet = 0;
  for (absl::Time end = Now() + kPatience; quiet < 3;) {
    ASSERT_LT(Now(), end);
    bool moved = pair.a.Progress() | pair.b.Progress();
    bool sleepy = pair.a.transport().PrepareWait() & pair.b.transport().PrepareWait();
    pollfd fds[2] = {{pair.a.transport().wait_fd(), POLLIN, 0},
                     {pair.b.transport().wait_fd(), POLLIN, 0}};
    bool silent = !moved && sleepy && poll(fds, 2, 20) == 0;
    pair.a.transport().FinishWait();
    pair.b.transport().FinishWait();
    quiet = silent ? quiet + 1 : 0;
  }
}

}  // namespace
}  // namespace weft::net
