#include "net/verbs/sent_entries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "net/verbs/entry.h"

namespace weft::net {
namespace {

using ::testing::ElementsAre;

// Adds `count` entries, with payloads of their own of `length` bytes, and posts all on `lane`.
void SendOn(SentEntries& sent, int lane, int count, uint64_t length = 0) {
  for (int i = 0; i < count; ++i) {
    const uint64_t number = sent.Add({.length = length, .token = 100 + static_cast<uint32_t>(i)});
    ASSERT_EQ(sent.FirstWaiting(), number);
    sent.DropFirstWaiting();
    sent[number].lane = lane;
  }
}

std::vector<uint64_t> Waiting(SentEntries& sent) {
  std::vector<uint64_t> out;
  while (const auto number = sent.FirstWaiting()) {
    out.push_back(*number);
    sent.DropFirstWaiting();
  }
  return out;
}

TEST(SentEntries, WhatHasNotArrivedOfALostLaneWaitsAgainBeforeWhatIsYounger) {
  SentEntries sent;
  SendOn(sent, 0, 2);
  SendOn(sent, 1, 1);
  SendOn(sent, 0, 1);
  sent.Add({});  // 4 waits already
  ArrivalRecord record;
  record.Add(0);
  std::vector<uint32_t> arrived;
  const auto requeued =
      sent.Requeue(0, record, [&](SentEntry& entry) { arrived.push_back(entry.TakeToken()); });
  EXPECT_EQ(requeued.repeats, 2u);
  EXPECT_FALSE(requeued.lost.has_value());
  EXPECT_THAT(arrived, ElementsAre(100u));
  EXPECT_EQ(sent.WaitingBytes(), 3 * sizeof(EntryHeader));
  EXPECT_THAT(Waiting(sent), ElementsAre(1u, 3u, 4u)) << "what lane 1 has stays there";
}

TEST(SentEntries, WhatIsSentAgainOfSeveralLanesGoesInTheOrderOfItsNumbers) {
  SentEntries sent;
  SendOn(sent, 0, 1);
  SendOn(sent, 1, 1);
  SendOn(sent, 0, 1);
  for (int lane : {0, 1}) sent.Requeue(lane, ArrivalRecord(), [](SentEntry&) {});
  EXPECT_THAT(Waiting(sent), ElementsAre(0u, 1u, 2u));
}

TEST(SentEntries, WhatTheOtherSideHasAfterAllIsNotSentAgain) {
  SentEntries sent;
  SendOn(sent, 0, 3);
  sent.Requeue(0, ArrivalRecord(), [](SentEntry&) {});
  sent.TakeFirst();
  sent[1].arrived = true;
  EXPECT_THAT(Waiting(sent), ElementsAre(2u));
}

TEST(SentEntries, APayloadThatTheDeviceDeliveredAndNobodyHasIsLost) {
  SentEntries sent;
  SendOn(sent, 0, 2, /*length=*/4096);
  sent[1].delivered = true;
  EXPECT_EQ(sent.Requeue(0, ArrivalRecord(), [](SentEntry&) {}).lost, 1u);
  EXPECT_THAT(Waiting(sent), ElementsAre());
}

TEST(SentEntries, AnEntryWithoutAPayloadIsSentAgainThoughTheDeviceDeliveredIt) {
  SentEntries sent;
  SendOn(sent, 0, 1);
  sent[0].delivered = true;
  EXPECT_EQ(sent.Requeue(0, ArrivalRecord(), [](SentEntry&) {}).repeats, 1u);
  EXPECT_FALSE(sent[0].delivered);
  EXPECT_EQ(sent[0].lane, -1);
}

TEST(SentEntries, AnEntrysTokenIsGivenOnce) {
  SentEntry entry{.token = 7};
  EXPECT_EQ(entry.TakeToken(), 7u);
  EXPECT_EQ(entry.TakeToken(), SentEntry::kNoToken);
}

}  // namespace
}  // namespace weft::net
