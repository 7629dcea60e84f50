#include "base/log_throttle.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(LogThrottle, AdmitsAFewLinesAPeriodAndCountsTheOthers) {
  LogThrottle throttle;
  absl::Time now = absl::UnixEpoch();
  const auto admitted = [&](int lines) {
    int count = 0;
    for (int i = 0; i < lines; ++i) count += throttle.Admit(now);
    return count;
  };
  EXPECT_EQ(admitted(100), LogThrottle::kLines);
  now += LogThrottle::kPeriod - absl::Milliseconds(1);
  EXPECT_EQ(admitted(1), 0);
  now += absl::Milliseconds(1);
  EXPECT_EQ(admitted(1), 1);
  EXPECT_EQ(throttle.LeftOut(), " (and 93 more such lines before it)");
  EXPECT_EQ(throttle.LeftOut(), "");
  EXPECT_EQ(throttle.due(), absl::InfiniteFuture());
  EXPECT_EQ(admitted(9), LogThrottle::kLines - 1);
  EXPECT_EQ(throttle.due(), now + LogThrottle::kPeriod);
  EXPECT_EQ(throttle.TakeLeftOut(), 2u);
  EXPECT_EQ(throttle.due(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace weft
