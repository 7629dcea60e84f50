#include "net/cc/credit.h"

#include <gtest/gtest.h>

#include <map>

namespace weft::net {
namespace {

const Bandwidth kLink = Bandwidth::BytesPerSecond(1e9);
constexpr Bytes kQuantum{10'000};  // 10 us at kLink

TEST(CreditPacerTest, HandsOutTheLinksSpeedToSendersInTurn) {
  CreditPacer pacer(kLink, kQuantum, 1);
  for (CreditPacer::Sender sender = 0; sender < 4; ++sender) {
    pacer.Add(sender, Bytes(5'000));
    pacer.Demand(sender, Bytes(1'000'000));
  }
  absl::Time now = absl::UnixEpoch();
  absl::Time end = now + absl::Milliseconds(1);
  int grants = 0;
  while (now < end) {
    while (pacer.Next(now)) ++grants;
    ASSERT_GT(pacer.deadline(), now);
    now = pacer.deadline();
  }
  EXPECT_EQ(grants, 100);
  for (CreditPacer::Sender sender = 0; sender < 4; ++sender) {
    EXPECT_EQ(pacer.Granted(sender), Bytes(5'000 + 25 * 10'000));
  }
}

TEST(CreditPacerTest, GrantsNoMoreThanWasDemanded) {
  CreditPacer pacer(kLink, kQuantum, 1);
  pacer.Add(0, Bytes(1'000));
  pacer.Demand(0, Bytes(500));
  EXPECT_EQ(pacer.deadline(), absl::InfiniteFuture());
  pacer.Demand(0, Bytes(12'000));
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(pacer.Next(now)->limit, Bytes(11'000));
  now = pacer.deadline();
  EXPECT_EQ(pacer.Next(now)->limit, Bytes(12'000));
  EXPECT_EQ(pacer.deadline(), absl::InfiniteFuture());
}

// What was not handed out while nobody asked is not handed out later at once.
TEST(CreditPacerTest, DoesNotCatchUpOnIdleTime) {
  CreditPacer pacer(kLink, kQuantum, 1);
  pacer.Add(0, Bytes(0));
  pacer.Demand(0, Bytes(1'000'000));
  absl::Time now = absl::UnixEpoch() + absl::Seconds(1);
  EXPECT_TRUE(pacer.Next(now).has_value());
  EXPECT_FALSE(pacer.Next(now).has_value());
  EXPECT_EQ(pacer.deadline(), now + absl::Microseconds(10));
}

// First windows that arrive take the place of grants.
TEST(CreditPacerTest, FirstWindowsCountAgainstTheLink) {
  CreditPacer pacer(kLink, kQuantum, 1);
  pacer.Add(0, Bytes(20'000));
  pacer.Demand(0, Bytes(1'000'000));
  absl::Time now = absl::UnixEpoch();
  pacer.Arrived(0, Bytes(15'000), now);
  EXPECT_EQ(pacer.deadline(), now + absl::Microseconds(15));
  pacer.Arrived(0, Bytes(15'000), now);  // 5,000 of the first window, the rest was granted
  EXPECT_EQ(pacer.deadline(), now + absl::Microseconds(20));
  pacer.Arrived(0, Bytes(15'000), now);
  EXPECT_EQ(pacer.deadline(), now + absl::Microseconds(20));
}

TEST(CreditPacerTest, ForgetsSendersThatLeft) {
  CreditPacer pacer(kLink, kQuantum, 1);
  pacer.Add(0, Bytes(0));
  pacer.Demand(0, Bytes(50'000));
  pacer.Remove(0);
  EXPECT_FALSE(pacer.Next(absl::UnixEpoch()).has_value());
  EXPECT_EQ(pacer.deadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace weft::net
