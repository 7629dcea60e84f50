#include "net/cc/base_rtt.h"

#include <gtest/gtest.h>

namespace weft::net {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(BaseRttTest, ItIsTheLeastThatWasSeenAndNoLessThanWhatIsKnown) {
  BaseRtt base(kMs);
  EXPECT_EQ(base.value(), kMs);
  EXPECT_TRUE(base.Add(At(0), 7 * kMs, true));
  EXPECT_EQ(base.value(), 7 * kMs);
  EXPECT_FALSE(base.Add(At(1), 9 * kMs, true));
  EXPECT_TRUE(base.Add(At(2), 3 * kMs, false));
  EXPECT_EQ(base.value(), 3 * kMs);
  EXPECT_TRUE(base.Add(At(3), kMs / 2, false));
  EXPECT_EQ(base.value(), kMs);
}

// As a controller holds it, whose target grows with what is measured.
TEST(BaseRttTest, AQueueOfOnesOwnDoesNotRaiseIt) {
  BaseRtt base(kMs);
  base.Add(At(0), 2 * kMs, true);
  for (int i = 0; i < 10'000; ++i) base.Add(At(i * 0.01), base.value() * 2, false);
  EXPECT_EQ(base.value(), 2 * kMs);
}

TEST(BaseRttTest, APathThatBecomesLongerIsBelievedWhenPacketsThatAreAloneSaySo) {
  BaseRtt base(kMs);
  base.Add(At(0), 2 * kMs, true);
  for (int i = 0; i < 1100; ++i) base.Add(At(1 + i * 0.01), 6 * kMs, i % 10 == 0);
  EXPECT_EQ(base.value(), 6 * kMs);
  EXPECT_TRUE(base.Add(At(13), 2 * kMs, false));
  EXPECT_EQ(base.value(), 2 * kMs);
}

TEST(BaseRttTest, FewPacketsThatWereHeldUpSayNothing) {
  BaseRtt base(kMs);
  base.Add(At(0), 2 * kMs, true);
  for (int i = 1; i < 60; ++i) base.Add(At(i * 2), 50 * kMs, true);
  EXPECT_EQ(base.value(), 2 * kMs);
}

}  // namespace
}  // namespace weft::net
