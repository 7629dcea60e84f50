#include "base/clock.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(SystemClock, NeverGoesBack) {
  SystemClock clock;
  absl::Time last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    absl::Time now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SystemClock, NowAndNanosecondsAreOneReading) {
  SystemClock clock;
  int64_t before = SystemClock::Nanoseconds();
  int64_t between = absl::ToUnixNanos(clock.Now());
  int64_t after = SystemClock::Nanoseconds();
  EXPECT_LE(before, between);
  EXPECT_LE(between, after);
}

TEST(ManualClock, StandsStillUntilAdvanced) {
  ManualClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), absl::FromUnixMillis(101'500));
}

}  // namespace
}  // namespace weft
