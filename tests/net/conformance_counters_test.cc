// What a link counts, on every transport alike (flow_counters.h).
#include "tests/net/conformance.h"

namespace weft::net {
namespace {

class Counters : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transport, Counters, kAllTransports, KindName);

constexpr size_t kLarge = 3000001;

TEST_P(Counters, AreOfWholeMessagesAtBothEnds) {
  Pair pair(GetParam());
  uint64_t bytes = 0;
  uint64_t messages = 0;
  for (size_t size : {size_t{0}, size_t{100}, size_t{65537}, kLarge}) {
    Buffer from(pair.a.transport(), size), to(pair.b.transport(), size);
    Request send, receive;
    ASSERT_EQ(pair.receive->PostReceive({1, 5}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_EQ(pair.send->PostSend({1, 5}, from.view(), &send), Posted::kAccepted);
    ASSERT_TRUE(pair.Done({&send, &receive})) << size;
    bytes += size;
    ++messages;
    for (const FlowCounters& counters : {pair.send->Counters(), pair.receive->Counters()}) {
      EXPECT_EQ(counters.messages_posted, messages);
      EXPECT_EQ(counters.messages_matched, messages);
      EXPECT_EQ(counters.messages_done, messages);
      EXPECT_EQ(counters.bytes_posted, bytes);
      EXPECT_EQ(counters.bytes_matched, bytes);
      EXPECT_EQ(counters.bytes_transmitted, bytes);
      EXPECT_EQ(counters.bytes_done, bytes);
      EXPECT_EQ(counters.outstanding(), 0u);
    }
  }
}

// The sender's numbers alone say that the receiver is what a large message waits for.
TEST_P(Counters, SayThatTheReceiverHasNotPosted) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.Drive([&] { return pair.send->connected(); }));
  Buffer from(pair.a.transport(), kLarge), to(pair.b.transport(), kLarge);
  Request send, receive;
  ASSERT_EQ(pair.send->PostSend({1, 5}, from.view(), &send), Posted::kAccepted);
  Turn(pair.a, 100);
  const FlowCounters before = pair.send->Counters();
  EXPECT_EQ(before.messages_posted, 1u);
  EXPECT_EQ(before.bytes_posted, kLarge);
  EXPECT_EQ(before.waiting_for_peer(), 1u);
  EXPECT_EQ(before.outstanding(), 1u);
  EXPECT_EQ(before.bytes_transmitted, 0u);
  ASSERT_EQ(pair.receive->PostReceive({1, 5}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  EXPECT_EQ(pair.send->Counters().waiting_for_peer(), 0u);
}

TEST_P(Counters, SayThatTheSenderHasNotPosted) {
  Pair pair(GetParam());
  Buffer to(pair.b.transport(), kLarge);
  Request receive;
  ASSERT_EQ(pair.receive->PostReceive({1, 5}, {to.view()}, &receive), Posted::kAccepted);
  for (int turn = 0; turn < 100; ++turn) pair.a.Progress(), pair.b.Progress();
  const FlowCounters counters = pair.receive->Counters();
  EXPECT_EQ(counters.messages_posted, 1u);
  EXPECT_EQ(counters.waiting_for_peer(), 1u);
  EXPECT_EQ(counters.bytes_transmitted, 0u);
  pair.receive->Break(absl::CancelledError("the test ends"));
}

TEST_P(Counters, LeaveNothingOutstandingOnABrokenLink) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.Drive([&] { return pair.send->connected(); }));
  Buffer from(pair.a.transport(), kLarge);
  Request send;
  ASSERT_EQ(pair.send->PostSend({1, 5}, from.view(), &send), Posted::kAccepted);
  pair.send->Break(absl::CancelledError("the test ends"));
  const FlowCounters counters = pair.send->Counters();
  EXPECT_EQ(counters.outstanding(), 0u);
  EXPECT_EQ(counters.waiting_for_peer(), 0u);
  EXPECT_EQ(counters.bytes_done, 0u);
}

TEST(FlowProgress, StandsStillOnlyWhileSomethingIsOutstanding) {
  FlowCounters counters;
  FlowProgress progress;
  EXPECT_TRUE(progress.Update(counters, 1000));
  EXPECT_FALSE(progress.Update(counters, 2000));
  EXPECT_EQ(progress.stuck_ns(2000), 0);
  counters.Post(10);
  EXPECT_TRUE(progress.Update(counters, 3000));
  EXPECT_EQ(progress.stuck_ns(5000), 2000);
  counters.Post(10);  // more that waits is no progress
  EXPECT_TRUE(progress.Update(counters, 6000));
  EXPECT_EQ(progress.stuck_ns(7000), 4000);
  counters.Match(10);
  EXPECT_TRUE(progress.Update(counters, 8000));
  EXPECT_EQ(progress.stuck_ns(9000), 1000);
  counters.FinishAll();
  EXPECT_TRUE(progress.Update(counters, 9000));
  EXPECT_EQ(progress.stuck_ns(99000), 0);
}

}  // namespace
}  // namespace weft::net
