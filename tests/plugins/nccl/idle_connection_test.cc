// NCCL stops calling a connection that has what it wanted. What the peer still needs of it does not
// wait for the next call, and what NCCL takes away under way is left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/plugins/nccl/pair.h"

namespace weft::harness {
namespace {

constexpr ptrdiff_t kSmall = 100;      // done once it is copied
constexpr ptrdiff_t kLarge = 1 << 20;  // done once the other side has taken it

constexpr Wire kTcp = {"tcp", WEFT_PLUGIN};

class NcclIdle : public testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(Transport, NcclIdle, testing::ValuesIn(Wires()), NameOfWire);

TEST_P(NcclIdle, AReceiverThatIsNotCalledAgainStillAnswers) {
  Pair pair(GetParam());
  void *receive = pair.Receive(kLarge, 1), *send = pair.Send(kLarge, 1);
  EXPECT_TRUE(pair.Await(&send, &send, nullptr));
  EXPECT_TRUE(pair.Await(&receive, nullptr, &receive));
  EXPECT_EQ(pair.Arrived(), kLarge);
}

// As NCCL does when it aborts; it frees the memory before it closes the connection.
TEST_P(NcclIdle, MemoryThatIsDeregisteredUnderWayIsLeftAlone) {
  Pair pair(GetParam());
  void *receive = pair.Receive(kLarge, 1), *small = pair.Receive(kSmall, 2);
  void* send = pair.Send(kSmall, 2);
  ASSERT_TRUE(pair.Await(&small, &send, &small));
  ASSERT_EQ(pair.Arrived(), kSmall);
  pair.Deregister(1);
  EXPECT_EQ(pair.SendUntilItFails(kLarge, 1), nccl::abi::kRemoteError);
  EXPECT_THAT(LastWarning(), testing::HasSubstr("it has finished or given up"));
  bool done = false;
  EXPECT_EQ(pair.Test(1, receive, &done), nccl::abi::kRemoteError);
  EXPECT_THAT(LastWarning(), testing::HasSubstr("deregistered with 1 request under way"));
  EXPECT_EQ(pair.Arrived(), kSmall);
}

// As it is when a collective is over for one rank and not for the other.
TEST(NcclTcpIdle, ASenderThatIsNotCalledAnyMoreSaysAgainWhatWasLost) {
  Pair pair(kTcp, {{"WEFT_TCP_SOCKETS", "1"}});
  pair.proxy().Hold(/*client=*/true, /*server=*/false);
  void *receive = pair.Receive(kSmall, 1), *send = pair.Send(kSmall, 1);
  ASSERT_TRUE(pair.Await(&send, &send, nullptr));
  pair.LoseSocket();
  EXPECT_TRUE(pair.Await(&receive, nullptr, &receive));
  EXPECT_EQ(pair.Arrived(), kSmall);
}

TEST(NcclTcpIdle, AReceiverThatIsNotCalledAnyMoreSaysAgainWhatItHas) {
  Pair pair(kTcp, {{"WEFT_TCP_SOCKETS", "1"}});
  void *large = pair.Receive(kLarge, 2), *small = pair.Receive(kSmall, 1);
  void* send = pair.Send(kSmall, 1);
  ASSERT_TRUE(pair.Await(&small, &send, &small));
  // The large one's clear-to-send has come before the small one's.
  pair.proxy().Hold(/*client=*/false, /*server=*/true);
  send = pair.Send(kLarge, 2);
  ASSERT_TRUE(pair.Await(&large, &send, &large));
  ASSERT_NE(send, nullptr) << "it has not been told that all is taken";
  pair.LoseSocket();
  EXPECT_TRUE(pair.Await(&send, &send, nullptr));
  EXPECT_EQ(pair.Arrived(), kLarge);
}

}  // namespace
}  // namespace weft::harness
