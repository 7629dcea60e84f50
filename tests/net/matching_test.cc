// Which send goes to which receive, without a transport: SendMatching and ReceiveMatching.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "net/tcp/receive_matching.h"
#include "net/tcp/send_matching.h"
#include "net/transport.h"

namespace weft::net {
namespace {

using Outcome = SendMatching::Outcome;
using testing::HasSubstr;

class MatchingTest : public testing::Test {
 protected:
  RegionView View(size_t bytes) const { return region_.view().Slice(0, bytes); }
  Outcome Post(uint64_t tag, size_t bytes, Request* request, uint64_t check = 0,
               uint8_t urgency = 0) {
    return sends_.Post({tag, check}, {View(bytes), false, urgency}, request);
  }
  // Posts a receive and tells the sending end.
  Outcome Receive(uint64_t tag, size_t bytes, Request* request, uint64_t check = 0) {
    clear_ = receives_.Post({tag, check}, {View(bytes)}, request);
    return sends_.OnClearToSend(clear_);
  }
  std::vector<OutFrame> Take(size_t most) {
    std::vector<OutFrame> frames;
    for (OutFrame frame; sends_.NextData(most, &frame);) frames.push_back(frame);
    return frames;
  }
  void Deliver(const OutFrame& frame) {
    ASSERT_EQ(receives_.OnFrame(frame.header).status(), absl::OkStatus());
    ASSERT_TRUE(receives_.OnFrameDone(frame.header).ok());
    sends_.OnSent(frame.token);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  Region region_{memory_.data(), memory_.size(), nullptr};
  FlowCounters sent_, received_;
  SendMatching sends_{Rank(0), Rank(1), /*requests_max=*/4, sent_};
  ReceiveMatching receives_{Rank(1), Rank(0), /*requests_max=*/4, received_};
  FrameHeader clear_;
};

TEST_F(MatchingTest, PiecesOfMoreUrgentMessagesGoBeforeTheRestOfOthers) {
  std::array<Request, 4> sends, receives;
  const uint8_t urgencies[] = {0, 2, 1, 2};
  EXPECT_EQ(Post(0, 160, &sends[0], 0, urgencies[0]), Outcome::kWaits);
  EXPECT_EQ(Receive(0, 160, &receives[0]), Outcome::kMatched);
  OutFrame frame;
  ASSERT_TRUE(sends_.NextData(64, &frame));
  Deliver(frame);
  for (uint64_t tag : {1, 2, 3}) {
    EXPECT_EQ(Post(tag, 80, &sends[tag], 0, urgencies[tag]), Outcome::kWaits);
    EXPECT_EQ(Receive(tag, 80, &receives[tag]), Outcome::kMatched);
  }
  std::vector<std::pair<uint64_t, uint64_t>> order;  // tag and offset
  for (const OutFrame& one : Take(64)) {
    order.emplace_back(one.header.tag, one.header.offset);
    Deliver(one);
  }
  EXPECT_EQ(order, (std::vector<std::pair<uint64_t, uint64_t>>{
                       {1, 0}, {1, 64}, {3, 0}, {3, 64}, {2, 0}, {2, 64}, {0, 64}, {0, 128}}));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(sends[i].done() && receives[i].done()) << i;
}

TEST_F(MatchingTest, OfOneTagTheFirstPostedIsTheFirstMatched) {
  std::array<Request, 3> sends, receives;
  EXPECT_EQ(Post(7, 10, &sends[0]), Outcome::kWaits);
  EXPECT_EQ(Post(7, 20, &sends[1]), Outcome::kWaits);
  EXPECT_EQ(Receive(8, 100, &receives[2]), Outcome::kWaits);  // another tag
  EXPECT_EQ(Receive(7, 100, &receives[0]), Outcome::kMatched);
  EXPECT_EQ(Receive(7, 100, &receives[1]), Outcome::kMatched);
  EXPECT_EQ(Post(8, 30, &sends[2]), Outcome::kMatched);
  for (const OutFrame& frame : Take(1000)) Deliver(frame);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(sends[i].done() && receives[i].done()) << i;
    EXPECT_EQ(receives[i].bytes(), 10 * (i + 1));
  }
  EXPECT_EQ(sent_.messages_done, 3u);
  EXPECT_EQ(received_.bytes_done, 60u);
}

TEST_F(MatchingTest, AMessageEndsWithItsLastPieceInWhateverOrder) {
  Request send, receive;
  Post(1, 150, &send);
  Receive(1, 150, &receive);
  EXPECT_EQ(sends_.head().total, 150u);
  EXPECT_EQ(sends_.head().receive, clear_.receive);
  std::vector<OutFrame> pieces = Take(64);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_FALSE(sends_.HasData());
  for (size_t i = 3; i-- > 0;) {
    EXPECT_FALSE(send.done() || receive.done());
    Deliver(pieces[i]);
  }
  EXPECT_TRUE(send.done() && receive.done());
  EXPECT_EQ(receive.bytes(), 150u);
}

TEST_F(MatchingTest, WhatDoesNotFitEndsBothWithTheSameWords) {
  Request send, receive;
  Post(5, 64, &send, /*check=*/3);
  EXPECT_EQ(Receive(5, 64, &receive, /*check=*/4), Outcome::kMismatch);
  ASSERT_TRUE(receives_.OnFrame(sends_.mismatch()).ok());
  ASSERT_TRUE(receives_.OnFrameDone(sends_.mismatch()).ok());
  EXPECT_EQ(send.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(send.status(), receive.status());

  Request longer, shorter;
  Post(5, 65, &longer);
  EXPECT_EQ(Receive(5, 64, &shorter), Outcome::kMismatch);
  ASSERT_TRUE(receives_.OnFrameDone(sends_.mismatch()).ok());
  EXPECT_EQ(longer.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(longer.status(), shorter.status());
  EXPECT_FALSE(sends_.HasData());
}

TEST_F(MatchingTest, ASendIsTakenOverOnlyOnceAllBeforeItIsGivenAway) {
  Request first, second, receive;
  Post(2, 50, &first);
  Post(2, 8, &second);
  Receive(2, 50, &receive);
  const auto take = [](const MessageKey&, const RegionView&, Request* request) {
    request->Finish(absl::OkStatus(), 0);
    return true;
  };
  EXPECT_FALSE(sends_.IsIdle(2));
  EXPECT_EQ(sends_.TakeFirstWaiting(2, take), SendMatching::TakenOver::kNotYet);
  for (const OutFrame& frame : Take(1000)) Deliver(frame);
  EXPECT_EQ(sends_.TakeFirstWaiting(2, take), SendMatching::TakenOver::kTaken);
  EXPECT_TRUE(second.done());
  EXPECT_TRUE(sends_.IsIdle(2));
  EXPECT_EQ(sends_.TakeFirstWaiting(2, take), SendMatching::TakenOver::kNone);
}

TEST_F(MatchingTest, AFrameForAReceiveThatHasEndedIsRefused) {
  Request send, receive;
  Post(3, 10, &send);
  Receive(3, 10, &receive);
  const OutFrame frame = Take(100).front();
  Deliver(frame);
  EXPECT_THAT(receives_.OnFrame(frame.header).status().message(), HasSubstr("is not posted"));
  Request again;
  Receive(3, 10, &again);  // takes the place of the one before, under another id
  EXPECT_FALSE(receives_.OnFrame(frame.header).ok());
}

TEST_F(MatchingTest, AtMostSoManyAreHeldAndAllEndTogether) {
  std::array<Request, 4> sends;
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(sends_.IsFull());
    Post(i, 1, &sends[i]);
  }
  EXPECT_TRUE(sends_.IsFull());
  Request receive;
  Receive(2, 1, &receive);
  sends_.Fail(absl::UnavailableError("gone"));
  receives_.Fail(absl::UnavailableError("gone"));
  for (const Request& send : sends) EXPECT_EQ(send.status().message(), "gone");
  EXPECT_EQ(receive.status().message(), "gone");
  EXPECT_EQ(sends_.outstanding() + receives_.posted(), 0u);
  EXPECT_EQ(sent_.outstanding(), 0u);
  EXPECT_EQ(Receive(0, 1, &receive), Outcome::kWaits);  // nothing is left to match it with
}

}  // namespace
}  // namespace weft::net
