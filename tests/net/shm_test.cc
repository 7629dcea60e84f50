// The shm transport from outside, beyond what the conformance suite asks of every transport:
// sizes around its own limits, sleeping, many links, and how links come up and go.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "net/shm/links.h"
#include "net/shm/peer_memory.h"
#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

void Xor(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = local[i] ^ incoming[i];
}

// ---- Moving bytes

TEST(Shm, MovesMessagesOfEverySizeAroundTheSizesThatMatter) {
  ShmPair pair({{"shm.slot_bytes", "4KiB"}, {"shm.slots", "4"}});
  for (size_t size : {0, 1, 8, 87, 88, 89, 4095, 4096, 4097, 16384, 16385, 100003, 9 << 20}) {
    auto out = RandomBytes(size, size), in = std::vector<std::byte>(size + 1);
    Request send, receive;
    ASSERT_EQ(pair.sender->PostSend({1, 2}, View(*pair.a.transport, out), &send),
              Posted::kAccepted);
    ASSERT_EQ(pair.receiver->PostReceive({1, 2}, {View(*pair.b.transport, in)}, &receive),
              Posted::kAccepted);
    ASSERT_TRUE(pair.Pump([&] { return send.done() && receive.done(); })) << size;
    EXPECT_TRUE(send.status().ok() && receive.status().ok()) << receive.status();
    EXPECT_EQ(receive.bytes(), size);
    in.pop_back();
    EXPECT_TRUE(in == out) << size;
  }
}

// ---- Reading the sender's memory

// Whether it pays on this machine or not.
const std::vector<std::pair<std::string, std::string>> kReads = {{"shm.single_copy", "on"}};

TEST(ShmSingleCopy, ALargeMessageNeedsNoTurnsOfTheSender) {
  Request send, receive;
  ShmPair pair(kReads);
  auto out = RandomBytes(8 << 20, 1), in = std::vector<std::byte>(out.size());
  ASSERT_EQ(pair.receiver->PostReceive({1, 2}, {View(*pair.b.transport, in)}, &receive),
            Posted::kAccepted);
  ASSERT_EQ(pair.sender->PostSend({1, 2}, View(*pair.a.transport, out), &send), Posted::kAccepted);
  pair.a.transport->Progress(Now());  // says where it lies
  ASSERT_TRUE(PumpUntil({&pair.b}, [&] { return receive.done(); }));
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_TRUE(in == out);
  EXPECT_FALSE(send.done());
  ASSERT_TRUE(PumpUntil({&pair.a}, [&] { return send.done(); }));
  EXPECT_TRUE(send.status().ok()) << send.status();
  EXPECT_EQ(send.bytes(), out.size());
}

TEST(ShmSingleCopy, IsNotUsedWhereItIsTurnedOffOrBytesAreReducedOrWarm) {
  enum Case { kOff, kNever, kReduced, kWarm };
  for (Case why : {kOff, kNever, kReduced, kWarm}) {
    const bool reduces = why == kReduced;
    Request send, receive;
    using Setting = std::pair<std::string, std::string>;
    ShmPair pair(std::vector<Setting>{{"shm.single_copy_min", why == kNever ? "0" : "32KiB"},
                                      {"shm.single_copy", why == kOff ? "off" : "on"}});
    auto out = RandomBytes(8 << 20, 1), in = out;
    ReceiveTarget target{View(*pair.b.transport, in)};
    if (reduces) target.local = in.data(), target.reduce = Xor;
    (void)pair.receiver->PostReceive({1, 2}, target, &receive);
    (void)pair.sender->PostSend({1, 2}, {View(*pair.a.transport, out), why == kWarm}, &send);
    pair.a.transport->Progress(Now());
    for (int turn = 0; turn < 100; ++turn) pair.b.transport->Progress(Now());
    EXPECT_FALSE(receive.done());  // the arena holds but a part
    ASSERT_TRUE(pair.Pump([&] { return send.done() && receive.done(); }));
    EXPECT_TRUE(send.status().ok() && receive.status().ok()) << receive.status();
    if (reduces) out.assign(out.size(), std::byte{0});
    EXPECT_TRUE(in == out);
  }
}

TEST(ShmSingleCopy, ManyOffersAreAnsweredThoughTheRingIsShort) {
  constexpr size_t kCount = 1000, kBytes = 40000;
  std::vector<Request> sends(kCount), receives(kCount);
  ShmPair pair(kReads);
  auto out = RandomBytes(kCount + kBytes, 1), in = std::vector<std::byte>(kCount * kBytes);
  for (size_t i = 0; i < kCount; ++i) {
    (void)pair.receiver->PostReceive(
        {i, 0}, {View(*pair.b.transport, in).Slice(i * kBytes, kBytes)}, &receives[i]);
    (void)pair.sender->PostSend({i, 0}, View(*pair.a.transport, out).Slice(i, kBytes), &sends[i]);
  }
  ASSERT_TRUE(pair.Pump([&] {
    auto done = [](const Request& request) { return request.done() && request.status().ok(); };
    return std::all_of(sends.begin(), sends.end(), done) &&
           std::all_of(receives.begin(), receives.end(), done);
  }));
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(std::memcmp(&in[i * kBytes], &out[i], kBytes), 0) << i;
  }
}

// What is read after the sender has got its memory back is nobody's message.
TEST(ShmSingleCopy, ASenderThatLeavesInTheMiddleFailsTheReceive) {
  for (int turns : {0, 1, 3}) {  // of the receiver, before it leaves
    Request send, receive;
    ShmPair pair(kReads);
    auto out = RandomBytes(turns == 0 ? 500'000 : 8 << 20, 1),
         in = std::vector<std::byte>(out.size());
    (void)pair.receiver->PostReceive({1, 2}, {View(*pair.b.transport, in)}, &receive);
    (void)pair.sender->PostSend({1, 2}, View(*pair.a.transport, out), &send);
    pair.a.transport->Progress(Now());
    for (int turn = 0; turn < turns; ++turn) pair.b.transport->Progress(Now());
    ASSERT_FALSE(receive.done());
    pair.sender.reset();
    ASSERT_TRUE(PumpUntil({&pair.b}, [&] { return receive.done(); }));
    EXPECT_EQ(receive.status().code(), absl::StatusCode::kUnavailable) << receive.status();
    EXPECT_EQ(send.status().code(), absl::StatusCode::kCancelled) << send.status();
  }
}

TEST(ShmSingleCopy, IsLeftToATrialByDefault) {
  Request send, receive;
  ShmPair pair;
  auto out = RandomBytes(8 << 20, 1), in = std::vector<std::byte>(out.size());
  (void)pair.receiver->PostReceive({1, 2}, {View(*pair.b.transport, in)}, &receive);
  (void)pair.sender->PostSend({1, 2}, View(*pair.a.transport, out), &send);
  pair.a.transport->Progress(Now());
  for (int turn = 0; turn < 100; ++turn) pair.b.transport->Progress(Now());
  EXPECT_EQ(receive.done(), shm::ReadingPays());  // the arena holds but a part
  ASSERT_TRUE(pair.Pump([&] { return send.done() && receive.done(); }));
  EXPECT_TRUE(in == out);
}

TEST(Shm, ReducesStraightFromTheSegment) {
  ShmPair pair({{"shm.slot_bytes", "4KiB"}, {"shm.slots", "4"}});
  for (size_t size : {8, 1000, 70001}) {
    auto out = RandomBytes(size, 1), local = RandomBytes(size, 2);
    std::vector<std::byte> in(size), expected(size);
    Xor(expected.data(), local.data(), out.data(), size);
    Request send, receive;
    (void)pair.sender->PostSend({1, 2}, View(*pair.a.transport, out), &send);
    (void)pair.receiver->PostReceive({1, 2}, {View(*pair.b.transport, in), local.data(), Xor},
                                     &receive);
    ASSERT_TRUE(pair.Pump([&] { return send.done() && receive.done(); }));
    EXPECT_TRUE(in == expected) << size;
  }
}

TEST(Shm, MoreReceivesThanTheRingHoldsWaitAndAllComplete) {
  ShmPair pair;
  constexpr size_t kCount = 3000;
  std::vector<std::byte> out = RandomBytes(kCount, 1), in(kCount);
  std::vector<Request> sends(kCount), receives(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(pair.receiver->PostReceive({i % 7, 0}, {View(*pair.b.transport, in).Slice(i, 1)},
                                         &receives[i]),
              Posted::kAccepted);
  }
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(
        pair.sender->PostSend({i % 7, 0}, View(*pair.a.transport, out).Slice(i, 1), &sends[i]),
        Posted::kAccepted);
  }
  ASSERT_TRUE(pair.Pump([&] { return receives.back().done() && sends.back().done(); }));
  for (size_t i = 0; i < kCount; ++i) ASSERT_TRUE(receives[i].done() && receives[i].status().ok());
  EXPECT_TRUE(in == out);
}

TEST(Shm, NoticesOfAnySizeCrossBothWaysInOrder) {
  ShmPair pair;
  std::vector<std::string> sent;
  for (size_t i = 0; i < 200; ++i) {
    sent.push_back(std::string(i * 37 % (kNoticeBytesMax + 1), static_cast<char>('a' + i % 26)));
    while (pair.sender->PostNotice(sent.back()) == Posted::kNotYet) pair.Pump([] { return true; });
    while (pair.receiver->PostNotice(sent.back()) == Posted::kNotYet) {
      pair.a.transport->Progress(Now());
      pair.b.transport->Progress(Now());
    }
    pair.a.transport->Progress(Now());
    pair.b.transport->Progress(Now());
  }
  ASSERT_TRUE(pair.Pump([&] {
    return pair.a.notices.size() == sent.size() && pair.b.notices.size() == sent.size();
  }));
  EXPECT_EQ(pair.a.notices, sent);
  EXPECT_EQ(pair.b.notices, sent);
}

// ---- Sleeping

// One side of a ping-pong whose waits are randomly asleep or spinning. A sleep that nobody ended
// within `kLost` is a lost wake-up.
struct Player {
  static constexpr int kLost = 60'000;  // ms
  static constexpr absl::Duration kEnough = absl::Seconds(20);
  Player(ShmNode* node, SendLink* to, ReceiveLink* from, uint64_t seed)
      : node(node), to(to), from(from), random(seed), view(View(*node->transport, buffer)) {}
  void Wait(const Request& request) {
    while (!request.done() && lost == 0) {
      if (node->transport->Progress(Now())) continue;
      if (request.done()) return;
      if (random.Below(4) == 0) {
        if (node->transport->PrepareWait()) {
          pollfd fd{node->transport->wait_fd(), POLLIN, 0};
          ++slept;
          lost += poll(&fd, 1, kLost) == 0;
        }
        node->transport->FinishWait();
      } else if (random.Below(4) == 0) {
        sched_yield();
      }
    }
  }
  // `rounds` is both sides'. The serving one cuts it once `kEnough` has passed: on a machine with
  // other work, every turn of a side that spins may take a time slice.
  void Play(std::atomic<int>* rounds, bool serves) {
    Request receive, send;
    const absl::Time start = Now();
    for (int i = 0; i < *rounds && lost == 0; ++i) {
      // The other side is at most one round ahead.
      if (serves && Now() - start > kEnough) *rounds = std::min(rounds->load(), i + 2);
      size_t size = random.Below(16) == 0 ? buffer.size() / 2 : 8;
      if (serves) {
        (void)to->PostSend({1, 0}, view.Slice(0, size), &send);
        Wait(send);
      }
      // Sometimes late, so that the sender waits for the clear-to-send.
      if (random.Below(2) == 0) node->transport->Progress(Now());
      (void)from->PostReceive({1, 0}, {view.Slice(buffer.size() / 2, buffer.size() / 2)}, &receive);
      Wait(receive);
      if (!serves) {
        (void)to->PostSend({1, 0}, view.Slice(0, size), &send);
        Wait(send);
      }
    }
  }
  ShmNode* node;
  SendLink* to;
  ReceiveLink* from;
  Random random;
  std::vector<std::byte> buffer = std::vector<std::byte>(1 << 17);
  RegionView view;
  int slept = 0, lost = 0;
};

TEST(ShmSleep, NoWakeUpIsLostInAHundredThousandTurns) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  std::atomic<int> rounds = 5000;
#else
  std::atomic<int> rounds = 50000;
#endif
  // A ring that one large message fills, so that senders sleep for space as well.
  ShmPair pair({{"shm.slot_bytes", "4KiB"}, {"shm.slots", "2"}});
  auto back = pair.b.transport->Connect(pair.a.transport->address(), Rank(0), Now());
  ASSERT_TRUE(pair.Pump([&] { return !pair.a.accepted.empty(); }));
  Player first(&pair.a, pair.sender.get(), pair.a.accepted[0].get(), 1);
  Player second(&pair.b, back.get(), pair.receiver.get(), 2);
  std::thread other([&] { second.Play(&rounds, false); });
  first.Play(&rounds, true);
  other.join();
  EXPECT_EQ(first.lost + second.lost, 0);
  EXPECT_GT(first.slept + second.slept, rounds / 100);
}

TEST(ShmSleep, WorkThatIsThereAlreadyIsNotSleptOver) {
  ShmPair pair;
  pair.Pump(
      [&] { return !pair.a.transport->Progress(Now()) && !pair.b.transport->Progress(Now()); });
  ASSERT_TRUE(pair.b.transport->PrepareWait());
  pair.b.transport->FinishWait();
  pair.b.transport->Progress(Now());
  ASSERT_EQ(pair.sender->PostNotice("x"), Posted::kAccepted);  // written at once
  EXPECT_FALSE(pair.b.transport->PrepareWait());
  pair.b.transport->FinishWait();
}

// As where a thread sleeps and another does something that takes no turn of the links.
TEST(ShmSleep, ASecondSleepNeedsNoTurnAndEndsByWhatComesOverASocket) {
  ShmPair pair;
  pair.Pump(
      [&] { return !pair.a.transport->Progress(Now()) && !pair.b.transport->Progress(Now()); });
  for (int sleep = 0; sleep < 2; ++sleep) {
    EXPECT_TRUE(pair.b.transport->PrepareWait()) << sleep;
    pair.b.transport->FinishWait();
  }
  pair.sender.reset();  // it hangs up
  if (pair.b.transport->PrepareWait()) {
    pollfd fd{pair.b.transport->wait_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&fd, 1, Player::kLost), 1);
  }
  pair.b.transport->FinishWait();
  EXPECT_TRUE(pair.Pump([&] { return pair.b.broken.size() == 1; }));
}

TEST(ShmSleep, AClearToSendThatNobodyWaitsForWakesNobody) {
  Request receive, send, other;  // outlive the links, which fail what is posted when they go
  ShmPair pair;
  pair.Pump(
      [&] { return !pair.a.transport->Progress(Now()) && !pair.b.transport->Progress(Now()); });
  std::vector<std::byte> bytes(8192);  // too many to go eagerly
  ASSERT_TRUE(pair.a.transport->PrepareWait());
  (void)pair.receiver->PostReceive({1, 0}, {View(*pair.b.transport, bytes)}, &receive);
  pollfd fd{pair.a.transport->wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  pair.a.transport->FinishWait();
  // One that is waited for does.
  (void)pair.sender->PostSend({2, 0}, View(*pair.a.transport, bytes), &send);
  pair.a.transport->Progress(Now());
  pair.a.transport->Progress(Now());
  ASSERT_TRUE(pair.a.transport->PrepareWait());
  (void)pair.receiver->PostReceive({2, 0}, {View(*pair.b.transport, bytes)}, &other);
  EXPECT_EQ(poll(&fd, 1, 0), 1);
  pair.a.transport->FinishWait();
  EXPECT_TRUE(pair.Pump([&] { return other.done() && send.done(); }));
}

// A sender that sleeps while a ring is full of clear-to-sends that it does not want: what does not
// fit behind them wakes it.
class ShmFullRing : public testing::Test {
 protected:
  void FillWhileTheSenderSleeps() {
    pair_.Pump(
        [&] { return !pair_.a.transport->Progress(Now()) && !pair_.b.transport->Progress(Now()); });
    (void)pair_.receiver->PostReceive({1, 0}, {View(*pair_.b.transport, in_)}, &receive_);
    (void)pair_.sender->PostSend({1, 0}, View(*pair_.a.transport, out_), &send_);
    for (int turn = 0; turn < 3; ++turn) pair_.a.transport->Progress(Now());  // which offers it
    ASSERT_TRUE(pair_.a.transport->PrepareWait());
    for (Request& one : unwanted_) {
      (void)pair_.receiver->PostReceive({2, 0}, {View(*pair_.b.transport, unused_)}, &one);
    }
    ASSERT_FALSE(IsAwake());
  }
  bool IsAwake() {
    pollfd fd{pair_.a.transport->wait_fd(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }
  bool Ends(const std::function<bool()>& done) {
    pair_.a.transport->FinishWait();
    return pair_.Pump(done);
  }

  std::vector<std::byte> out_ = RandomBytes(1 << 20, 1), in_ = std::vector<std::byte>(1 << 20),
                         unused_ = std::vector<std::byte>(64);
  std::deque<Request> unwanted_ = std::deque<Request>(300);  // outlive the links, as the others
  Request send_, receive_;
  ShmPair pair_{kReads};
};

TEST_F(ShmFullRing, AnAnswerWakesTheSender) {
  FillWhileTheSenderSleeps();
  ASSERT_TRUE(PumpUntil({&pair_.b}, [&] { return receive_.done(); }));
  pair_.b.transport->Progress(Now());
  EXPECT_TRUE(IsAwake());
  ASSERT_TRUE(Ends([&] { return send_.done(); }));
  EXPECT_TRUE(send_.status().ok() && in_ == out_) << send_.status();
}

TEST_F(ShmFullRing, ANoticeWakesTheSender) {
  FillWhileTheSenderSleeps();
  ASSERT_EQ(pair_.receiver->PostNotice("over"), Posted::kAccepted);
  EXPECT_TRUE(IsAwake());
  ASSERT_TRUE(Ends([&] { return !pair_.a.notices.empty(); }));
  EXPECT_EQ(pair_.a.notices, std::vector<std::string>{"over"});
}

// ---- Coming and going

TEST(ShmLinks, ManyPeersTalkToOneAtOnce) {
  constexpr int kPeers = 40;
  ShmNode center(0);
  center.Open();
  std::vector<std::unique_ptr<ShmNode>> peers;
  std::vector<std::unique_ptr<SendLink>> links;
  std::vector<ShmNode*> all = {&center};
  std::vector<std::byte> out = RandomBytes(50000, 4);
  std::vector<std::vector<std::byte>> in(kPeers, std::vector<std::byte>(out.size()));
  std::vector<Request> sends(kPeers), receives(kPeers);
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<ShmNode>(static_cast<int>(i) + 1));
    peers[i]->Open();
    all.push_back(peers[i].get());
    links.push_back(peers[i]->transport->Connect(center.transport->address(), Rank(0), Now()));
    (void)links[i]->PostSend({9, 0}, View(*peers[i]->transport, out), &sends[i]);
  }
  ASSERT_TRUE(PumpUntil(all, [&] { return center.accepted.size() == kPeers; }));
  for (size_t i = 0; i < kPeers; ++i) {
    (void)center.accepted[i]->PostReceive({9, 0}, {View(*center.transport, in[i])}, &receives[i]);
  }
  ASSERT_TRUE(PumpUntil(all, [&] {
    return std::all_of(receives.begin(), receives.end(), [](auto& r) { return r.done(); });
  }));
  for (size_t i = 0; i < kPeers; ++i) EXPECT_TRUE(in[i] == out) << i;
}

TEST(ShmLinks, ARankThatComesBackReplacesItsFirstLink) {
  ShmPair pair;
  std::vector<std::byte> bytes(8);
  Request receive;
  (void)pair.receiver->PostReceive({1, 0}, {View(*pair.b.transport, bytes)}, &receive);
  ShmNode again(0);
  again.Open();
  auto link = again.transport->Connect(pair.b.transport->address(), Rank(1), Now());
  ASSERT_TRUE(PumpUntil({&again, &pair.b}, [&] { return !pair.b.accepted.empty(); }));
  EXPECT_TRUE(receive.done());
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(pair.b.broken.size(), 1u);
  EXPECT_TRUE(pair.Pump([&] { return pair.a.broken.size() == 1; }));
}

TEST(ShmLinks, AClosedLinkSaysSoOnBothSides) {
  ShmPair pair;
  std::vector<std::byte> bytes(8), in(8);
  Request send, receive, later;
  (void)pair.sender->PostSend({1, 0}, View(*pair.a.transport, bytes), &send);
  pair.sender.reset();
  EXPECT_EQ(send.status().code(), absl::StatusCode::kCancelled);
  (void)pair.receiver->PostReceive({2, 0}, {View(*pair.b.transport, in)}, &receive);
  ASSERT_TRUE(pair.Pump([&] { return receive.done(); }));
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(receive.status().message().find("rank 0 closed the link"), std::string::npos)
      << receive.status();
  EXPECT_EQ(pair.b.broken.size(), 1u);
  // What is posted now fails with the same words.
  ASSERT_EQ(pair.receiver->PostReceive({2, 0}, {View(*pair.b.transport, in)}, &later),
            Posted::kAccepted);
  EXPECT_FALSE(pair.b.transport->PrepareWait());
  pair.b.transport->FinishWait();
  pair.b.transport->Progress(Now());
  EXPECT_EQ(later.status(), receive.status());
}

absl::Status StatusOfConnecting(ShmNode* from, const std::string& address, int peer,
                                std::vector<ShmNode*> others = {}) {
  auto link = from->transport->Connect(address, Rank(peer), Now());
  others.push_back(from);
  EXPECT_TRUE(PumpUntil(others, [&] { return !link->status().ok(); }));
  EXPECT_EQ(from->broken.size(), 1u);
  from->broken.clear();
  return link->status();
}

// Processes that are forked have no sockets of their parent's (close_on_fork_test.cc). Here they
// have: _Fork() runs no handlers.
TEST(ShmLinks, EndThoughAForkedProcessHasTheirDescriptors) {
  for (const bool gives_up : {false, true}) {
    ShmPair pair;
    pair.Pump(
        [&] { return !pair.a.transport->Progress(Now()) && !pair.b.transport->Progress(Now()); });
    const pid_t child = _Fork();
    if (child == 0) {
      alarm(kAlarmSeconds);
      while (true) pause();
    }
    ASSERT_GT(child, 0);
    if (gives_up) pair.sender->Break(absl::AbortedError("the sender gives up"));
    pair.sender.reset();
    const bool is_told = PumpUntil({&pair.b}, [&] { return !pair.b.broken.empty(); });
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(is_told) << gives_up;
  }
}

// Nothing hangs its sockets up then.
TEST(ShmLinks, EndWhenTheirPeerIsKilledThoughAForkedProcessHasItsDescriptors) {
  ShmNode node(1);
  node.Open();
  const pid_t peer = fork();
  if (peer == 0) {
    alarm(kAlarmSeconds);
    ShmNode killed(0);
    killed.Open();
    auto link = killed.transport->Connect(node.transport->address(), Rank(1), Now());
    (void)link->PostNotice(killed.transport->address());
    SleepUntil(&killed, [&] { return !killed.notices.empty(); });
    const pid_t worker = _Fork();
    if (worker == 0) {
      alarm(kAlarmSeconds);
      while (true) pause();
    }
    (void)link->PostNotice(absl::StrCat(worker));
    SleepUntil(
        &killed, [] { return false; }, absl::Seconds(kAlarmSeconds));
    _exit(1);
  }
  ASSERT_GT(peer, 0);
  ASSERT_TRUE(SleepUntil(&node, [&] { return node.notices.size() == 1; }));
  auto back = node.transport->Connect(node.notices[0], Rank(0), Now());
  ASSERT_EQ(back->PostNotice("linked both ways"), Posted::kAccepted);
  ASSERT_TRUE(SleepUntil(&node, [&] { return node.notices.size() == 2; }));
  pid_t worker = 0;
  ASSERT_TRUE(absl::SimpleAtoi(node.notices[1], &worker));
  kill(peer, SIGKILL);
  const bool are_told = SleepUntil(&node, [&] { return node.broken.size() == 2; });
  kill(worker, SIGKILL);
  waitpid(peer, nullptr, 0);
  EXPECT_TRUE(are_told);
  for (const absl::Status& status : node.broken) {
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(absl::StrCat("rank 0 (process ", peer, " on ")));
  }
}

TEST(ShmLinks, AddressesThatLeadNowhereAreNamed) {
  ShmNode node(0);
  node.Open();
  std::string gone;
  {
    ShmNode other(1);
    other.Open();
    gone = other.transport->address();
  }
  EXPECT_EQ(StatusOfConnecting(&node, gone, 1).code(), absl::StatusCode::kUnavailable);
  for (std::string bad : {"", "tcp:127.0.0.1:1", "shm:", "shm:xyz", "shm:../../etc/passwd"}) {
    EXPECT_EQ(StatusOfConnecting(&node, bad, 1).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  ShmNode other(2);
  other.Open();
  EXPECT_EQ(StatusOfConnecting(&node, other.transport->address(), 1, {&other}).code(),
            absl::StatusCode::kNotFound);
}

TEST(ShmLinks, APeerThatMakesNoProgressIsGivenUpInTime) {
  ShmNode node(0), stopped(1);
  node.Open();
  stopped.Open();
  absl::Time start = Now();
  auto link = node.transport->Connect(stopped.transport->address(), Rank(1), start);
  node.transport->Progress(start);
  absl::Time deadline = node.transport->NextDeadline();
  EXPECT_LE(deadline, start + absl::Seconds(30));
  node.transport->Progress(deadline - absl::Milliseconds(1));
  EXPECT_TRUE(link->status().ok());
  node.transport->Progress(deadline);
  EXPECT_EQ(link->status().code(), absl::StatusCode::kDeadlineExceeded) << link->status();
}

// Leaves this process without a descriptor to open, and gives them back.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    limit_ = static_cast<rlim_t>(next);
    Allow(0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  void Allow(int more) const {
    rlimit few = before_;
    few.rlim_cur = limit_ + static_cast<rlim_t>(more);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  rlim_t limit() const { return limit_; }

 private:
  rlimit before_{};
  rlim_t limit_ = 0;
};

TEST(ShmLinks, DescriptorsThatRunOutOnlyDelayAConnection) {
  ShmNode node(0), other(1);
  node.Open();
  other.Open();
  auto link = node.transport->Connect(other.transport->address(), Rank(1), Now());
  node.transport->Progress(Now());  // dials: its own socket is open
  absl::Time now = Now();
  {
    NoDescriptors none;
    for (int i = 0; i < 100; ++i) {
      other.transport->Progress(now += absl::Milliseconds(10));
      node.transport->Progress(now);
    }
    EXPECT_TRUE(other.accepted.empty());
    EXPECT_TRUE(link->status().ok());
    for (int more = 1; more <= 8; ++more) {  // they come back one by one
      none.Allow(more);
      for (int i = 0; i < 20; ++i) {
        other.transport->Progress(now += absl::Milliseconds(10));
        node.transport->Progress(now);
      }
    }
  }
  EXPECT_EQ(other.accepted.size(), 1u);
  EXPECT_TRUE(link->status().ok()) << link->status();
}

// Both sides are told, long before transport.connect_timeout.
TEST(ShmLinks, DescriptorsThatDoNotComeBackAreTheErrorOfBothSides) {
  ShmNode node(0), other(1);
  node.Open();
  other.Open();
  auto link = node.transport->Connect(other.transport->address(), Rank(1), Now());
  node.transport->Progress(Now());
  NoDescriptors none;
  none.Allow(3);  // for accept() and what the acceptor passes, not for what the connector does
  const absl::Time begin = Now();
  absl::Time now = begin;
  for (int turn = 1; turn < 1000 && link->status().ok(); ++turn) {
    other.transport->Progress(now);
    node.transport->Progress(now);
    if (turn % 10 != 0) continue;  // until nothing moves any more
    now = std::max(now, std::min(other.transport->NextDeadline(), node.transport->NextDeadline()));
  }
  EXPECT_EQ(link->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(link->status().message()),
              testing::HasSubstr(absl::StrCat(
                  "process ", getpid(), " has no descriptors left for another link: its limit is ",
                  none.limit() + 3, "; raise it with ulimit -n")));
  EXPECT_LE(now - begin, absl::Seconds(3));
  EXPECT_TRUE(other.accepted.empty());
}

}  // namespace
}  // namespace weft::net
