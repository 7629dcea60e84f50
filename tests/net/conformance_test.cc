// Messages: sizes, matching, order, limits. Notices and waiting: conformance_notices_test.cc.
#include "tests/net/conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

class Messages : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transport, Messages, kAllTransports, KindName);

constexpr size_t kSizes[] = {0,    1,    7,     63,     64,     65,      127,     128,
                             4095, 4096, 65537, 262144, 262145, 1 << 20, 3000001, 64 << 20};

TEST_P(Messages, EverySizeArrivesWhole) {
  Pair pair(GetParam());
  uint64_t seed = 0;
  for (size_t size : kSizes) {
    Buffer from(pair.a.transport(), size), to(pair.b.transport(), size);
    from.FillPattern(++seed);
    Request send, receive;
    ASSERT_EQ(pair.send->PostSend({seed, 5}, from.view(), &send), Posted::kAccepted);
    ASSERT_EQ(pair.receive->PostReceive({seed, 5}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_TRUE(pair.Done({&send, &receive})) << size;
    EXPECT_TRUE(send.status().ok() && receive.status().ok()) << receive.status();
    EXPECT_EQ(send.bytes(), size);
    EXPECT_EQ(receive.bytes(), size);
    EXPECT_EQ(to.CheckPattern(seed, size), "");
  }
}

TEST_P(Messages, EverySizeIsReduced) {
  Pair pair(GetParam());
  for (size_t size : kSizes) {
    for (bool in_place : {false, true}) {
      Buffer from(pair.a.transport(), size), to(pair.b.transport(), size);
      Buffer local(pair.b.transport(), size);
      from.FillPattern(size);
      (in_place ? to : local).FillPattern(77);
      Request send, receive;
      ReceiveTarget target{to.view(), in_place ? to.data() : local.data(), AddBytes};
      ASSERT_EQ(pair.receive->PostReceive({1, 2}, target, &receive), Posted::kAccepted);
      ASSERT_EQ(pair.send->PostSend({1, 2}, from.view(), &send), Posted::kAccepted);
      ASSERT_TRUE(pair.Done({&send, &receive})) << size;
      ASSERT_TRUE(receive.status().ok()) << receive.status();
      EXPECT_EQ(receive.bytes(), size);
      size_t wrong = 0;
      for (size_t i = 0; i < size; ++i) {
        auto sum = static_cast<uint8_t>(static_cast<uint8_t>(PatternByte(size, i)) +
                                        static_cast<uint8_t>(PatternByte(77, i)));
        wrong += static_cast<uint8_t>(to.data()[i]) != sum;
      }
      EXPECT_EQ(wrong, 0u) << size;
    }
  }
}

// Pieces of a reduced message are multiples of 64 bytes but for the last, aligned, each once.
struct Pieces {
  static inline std::byte* base;
  static inline size_t total;
  static inline std::vector<int> seen;
  static inline std::string wrong;
  static void Note(std::byte* out, const std::byte* local, const std::byte* incoming,
                   size_t bytes) {
    auto offset = static_cast<size_t>(out - base);
    if (bytes == 0 || offset % 64 != 0 || (bytes % 64 != 0 && offset + bytes != total)) {
      wrong = absl::StrCat(bytes, " bytes at ", offset);
    }
    if (reinterpret_cast<uintptr_t>(incoming) % 16 != 0) wrong = "incoming is not aligned";
    if (local != out) wrong = "local does not follow out";
    for (size_t i = offset; i < offset + bytes && i < total; ++i) ++seen[i];
    std::copy_n(incoming, bytes, out);
  }
};

TEST_P(Messages, ReducedPiecesAreWholeLinesAndComeOnce) {
  Pair pair(GetParam());
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    size_t size = random.Below(round < 150 ? 2000 : 700000) + 1;
    Buffer odd(pair.a.transport(), 1 + random.Below(100)), sink(pair.b.transport(), 128);
    Buffer from(pair.a.transport(), size), to(pair.b.transport(), size);
    from.FillPattern(round);
    Pieces::base = to.data(), Pieces::total = size, Pieces::wrong = "";
    Pieces::seen.assign(size, 0);
    Request requests[4];  // a message of an odd size in front shifts what follows it
    EXPECT_EQ(pair.receive->PostReceive({1, 0}, {sink.view()}, &requests[0]), Posted::kAccepted);
    EXPECT_EQ(pair.receive->PostReceive({2, 0}, {to.view(), to.data(), Pieces::Note}, &requests[1]),
              Posted::kAccepted);
    EXPECT_EQ(pair.send->PostSend({1, 0}, odd.view(), &requests[2]), Posted::kAccepted);
    EXPECT_EQ(pair.send->PostSend({2, 0}, from.view(), &requests[3]), Posted::kAccepted);
    ASSERT_TRUE(pair.Done({&requests[0], &requests[1], &requests[2], &requests[3]}));
    ASSERT_EQ(Pieces::wrong, "") << size;
    EXPECT_EQ(std::count(Pieces::seen.begin(), Pieces::seen.end(), 1),
              static_cast<ptrdiff_t>(size));
    EXPECT_EQ(to.CheckPattern(round, size), "");
  }
}

TEST_P(Messages, AShorterMessageIsFineAndLeavesTheRestAlone) {
  Pair pair(GetParam());
  Buffer from(pair.a.transport(), 1000), to(pair.b.transport(), 4096);
  from.FillPattern(1);
  to.Clear(0xEE);
  Request send, receive;
  ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  EXPECT_TRUE(receive.status().ok());
  EXPECT_EQ(receive.bytes(), 1000u);
  EXPECT_EQ(to.CheckPattern(1, 1000), "");
  for (size_t i = 1000; i < 4096; ++i) ASSERT_EQ(to.data()[i], std::byte{0xEE}) << i;
}

// How a sender hears that its message did not fit: by its request, or, where that was done before
// (shm, verbs), by an event.
absl::Status ToldToSender(Pair& pair, const Request& send) {
  if (!send.status().ok()) return send.status();
  const bool told = pair.Drive([&] { return !pair.a.mismatches.empty(); });
  return told ? pair.a.mismatches[0] : absl::UnknownError("it is not told");
}

TEST_P(Messages, ALongerMessageFailsBothAndTheLinkGoesOn) {
  Pair pair(GetParam());
  Buffer from(pair.a.transport(), 2000), to(pair.b.transport(), 2000);
  from.FillPattern(1);
  to.Clear(0xEE);
  Request send, receive;
  ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view().Slice(0, 1999)}, &receive),
            Posted::kAccepted);
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  for (const absl::Status& status : {ToldToSender(pair, send), receive.status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("2000"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1999"));
  }
  for (size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to.data()[i], std::byte{0xEE}) << i;
  ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(to.CheckPattern(1, 2000), "");
}

TEST_P(Messages, DifferentChecksFailBothBeforeAByteIsWritten) {
  Pair pair(GetParam());
  Buffer from(pair.a.transport(), 512), to(pair.b.transport(), 512);
  to.Clear(0xEE);
  Request send, receive;
  ASSERT_EQ(pair.send->PostSend({9, 111}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(pair.receive->PostReceive({9, 222}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  for (const absl::Status& status : {ToldToSender(pair, send), receive.status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("message check differs"));
  }
  for (size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to.data()[i], std::byte{0xEE}) << i;
  EXPECT_TRUE(pair.send->status().ok() && pair.receive->status().ok());
}

TEST_P(Messages, AnUnpostedReceiveHoldsUpNobodyElse) {
  Pair pair(GetParam());
  constexpr int kTags = 20;
  std::deque<Request> sends(kTags), receives(kTags);
  std::deque<Buffer> from, to;
  for (int i = 0; i < kTags; ++i) {
    from.emplace_back(pair.a.transport(), 300000);
    to.emplace_back(pair.b.transport(), 300000);
    from.back().FillPattern(i);
    ASSERT_EQ(pair.send->PostSend({static_cast<uint64_t>(i), 0}, from[i].view(), &sends[i]),
              Posted::kAccepted);
  }
  for (int i = kTags - 1; i >= 1; --i) {  // the last first, the first never
    ASSERT_EQ(
        pair.receive->PostReceive({static_cast<uint64_t>(i), 0}, {to[i].view()}, &receives[i]),
        Posted::kAccepted);
    ASSERT_TRUE(pair.Done({&sends[i], &receives[i]})) << i;
    EXPECT_EQ(to[i].CheckPattern(i, to[i].size()), "");
  }
  EXPECT_FALSE(sends[0].done());
  pair.a.Destroy(pair.send);
  EXPECT_EQ(sends[0].status().code(), absl::StatusCode::kCancelled);
}

TEST_P(Messages, WithinATagFirstPostedIsFirstMatched) {
  for (bool sends_first : {true, false}) {
    Pair pair(GetParam());
    constexpr int kCount = 300;
    std::deque<Request> sends(kCount), receives(kCount);
    std::deque<Buffer> from, to;
    Random random(1);
    for (int i = 0; i < kCount; ++i) {
      size_t size = random.Below(i % 10 == 0 ? 400000 : 500);
      from.emplace_back(pair.a.transport(), size);
      to.emplace_back(pair.b.transport(), size);
      from.back().FillPattern(i);
    }
    auto post_sends = [&] {
      for (int i = 0; i < kCount; ++i) {
        ASSERT_EQ(pair.send->PostSend({3, 0}, from[i].view(), &sends[i]), Posted::kAccepted);
      }
    };
    if (sends_first) post_sends();
    for (int i = 0; i < kCount; ++i) {
      ASSERT_EQ(pair.receive->PostReceive({3, 0}, {to[i].view()}, &receives[i]), Posted::kAccepted);
      if (i % 7 == 0) pair.b.Progress(), pair.a.Progress();
    }
    if (!sends_first) post_sends();
    ASSERT_TRUE(pair.Drive([&] {
      return std::all_of(receives.begin(), receives.end(), [](auto& r) { return r.done(); }) &&
             std::all_of(sends.begin(), sends.end(), [](auto& r) { return r.done(); });
    }));
    for (int i = 0; i < kCount; ++i) {
      ASSERT_TRUE(receives[i].status().ok()) << i << ": " << receives[i].status();
      EXPECT_EQ(receives[i].bytes(), from[i].size());
      EXPECT_EQ(to[i].CheckPattern(i, to[i].size()), "") << i;
    }
  }
}

TEST_P(Messages, ThousandsInFlightInAnyOrder) {
  Pair pair(GetParam(), {"transport.requests=5000"});
  constexpr int kCount = 5000;
  std::deque<Request> sends(kCount), receives(kCount);
  std::deque<Buffer> from, to;
  std::vector<int> send_order, receive_order;
  Random random(4);
  for (int i = 0; i < kCount; ++i) {
    size_t size = random.Below(3000);
    from.emplace_back(pair.a.transport(), size);
    to.emplace_back(pair.b.transport(), size);
    from.back().FillPattern(i);
    send_order.push_back(i), receive_order.push_back(i);
  }
  random.Shuffle(send_order);
  random.Shuffle(receive_order);
  for (int k = 0; k < kCount; ++k) {
    int i = send_order[k], j = receive_order[k];
    ASSERT_EQ(pair.send->PostSend({static_cast<uint64_t>(i), 0}, from[i].view(), &sends[i]),
              Posted::kAccepted);
    ASSERT_EQ(
        pair.receive->PostReceive({static_cast<uint64_t>(j), 0}, {to[j].view()}, &receives[j]),
        Posted::kAccepted);
  }
  ASSERT_TRUE(pair.Drive([&] {
    return std::all_of(receives.begin(), receives.end(), [](auto& r) { return r.done(); }) &&
           std::all_of(sends.begin(), sends.end(), [](auto& r) { return r.done(); });
  }));
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(receives[i].status().ok()) << receives[i].status();
    ASSERT_EQ(to[i].CheckPattern(i, to[i].size()), "") << i;
  }
}

TEST_P(Messages, AFullLinkSaysNotYetAndTakesMoreLater) {
  Pair pair(GetParam(), {"transport.requests=4"});
  Buffer from(pair.a.transport(), 100), to(pair.b.transport(), 100);
  Request sends[5], receives[5];
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(pair.send->PostSend({i, 0}, from.view(), &sends[i]), Posted::kAccepted);
    ASSERT_EQ(pair.receive->PostReceive({10 + i, 0}, {to.view()}, &receives[i]), Posted::kAccepted);
  }
  EXPECT_EQ(pair.send->PostSend({10, 0}, from.view(), &sends[4]), Posted::kNotYet);
  EXPECT_EQ(pair.receive->PostReceive({0, 0}, {to.view()}, &receives[4]), Posted::kNotYet);
  EXPECT_TRUE(sends[4].done() && receives[4].done()) << "nothing was kept of what was not taken";
  pair.b.Destroy(pair.receive);  // the only way to get rid of receives that nobody sends to
  ASSERT_TRUE(pair.Done({&sends[0], &sends[3]}));
}

TEST_P(Messages, NotYetTurnsIntoAcceptedAsRequestsComplete) {
  Pair pair(GetParam(), {"transport.requests=3"});
  Buffer from(pair.a.transport(), 5000), to(pair.b.transport(), 5000);
  constexpr int kCount = 200;
  std::deque<Request> sends(kCount), receives(kCount);
  int sent = 0, received = 0, refused = 0;
  ASSERT_TRUE(pair.Drive([&] {
    while (sent < kCount) {
      if (pair.send->PostSend({1, 0}, from.view(), &sends[sent]) == Posted::kNotYet) {
        ++refused;
        break;
      }
      ++sent;
    }
    while (received < kCount &&
           pair.receive->PostReceive({1, 0}, {to.view()}, &receives[received]) ==
               Posted::kAccepted) {
      ++received;
    }
    return sent == kCount && received == kCount && sends.back().done() && receives.back().done();
  }));
  EXPECT_GT(refused, 0);
}

TEST_P(Messages, WhatIsPostedBeforeTheConnectionStandsIsSentAfterwards) {
  Node a(GetParam(), 0, 2), b(GetParam(), 1, 2);
  SendLink* link = a.Connect(b.address(), 1);
  Buffer from(a.transport(), 70000), to(b.transport(), 70000);
  from.FillPattern(1);
  Request send, receive;
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(link->PostNotice("early"), Posted::kAccepted);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr; }));
  ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(
      DriveUntil({&a, &b}, [&] { return send.done() && receive.done() && !b.notices.empty(); }));
  EXPECT_EQ(to.CheckPattern(1, to.size()), "");
  EXPECT_EQ(b.notices[0].text, "early");
}

TEST_P(Messages, ManyPeersInOneProcess) {
  constexpr int kRanks = 16;
  std::deque<Node> nodes;
  std::vector<Node*> all;
  for (int i = 0; i < kRanks; ++i) {
    nodes.emplace_back(GetParam(), i, kRanks, std::vector<std::string>{"tcp.sockets=1"});
    all.push_back(&nodes.back());
  }
  std::vector<SendLink*> links;
  for (int i = 0; i < kRanks; ++i) {
    for (int j = 0; j < kRanks; ++j) {
      if (i != j) links.push_back(nodes[i].Connect(nodes[j].address(), j));
    }
  }
  ASSERT_TRUE(DriveUntil(all, [&] {
    return std::all_of(nodes.begin(), nodes.end(),
                       [](Node& node) { return node.accepted_count == kRanks - 1; });
  }));
  constexpr size_t kBytes = 50000;
  std::deque<Request> requests;
  std::deque<Buffer> from, to;
  size_t next = 0;
  for (int i = 0; i < kRanks; ++i) {
    for (int j = 0; j < kRanks; ++j) {
      if (i == j) continue;
      from.emplace_back(nodes[i].transport(), kBytes);
      to.emplace_back(nodes[j].transport(), kBytes);
      from.back().FillPattern(i * kRanks + j);
      EXPECT_EQ(links[next++]->PostSend({1, 1}, from.back().view(), &requests.emplace_back()),
                Posted::kAccepted);
      EXPECT_EQ(
          nodes[j].accepted(i)->PostReceive({1, 1}, {to.back().view()}, &requests.emplace_back()),
          Posted::kAccepted);
    }
  }
  ASSERT_TRUE(DriveUntil(all, [&] {
    return std::all_of(requests.begin(), requests.end(), [](auto& r) { return r.done(); });
  }));
  next = 0;
  for (int i = 0; i < kRanks; ++i) {
    for (int j = 0; j < kRanks; ++j) {
      if (i == j) continue;
      EXPECT_EQ(to[next++].CheckPattern(i * kRanks + j, kBytes), "") << i << "->" << j;
    }
  }
}

}  // namespace
}  // namespace weft::net
