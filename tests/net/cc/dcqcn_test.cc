#include "net/cc/dcqcn.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft::net {
namespace {

const double kLine = 5e9;  // 40 Gb/s in bytes a second
const PathFacts kFacts{.base_rtt = absl::Microseconds(10),
                       .bandwidth = Bandwidth::BytesPerSecond(kLine),
                       .packet = Bytes(1000)};

AckSample Marked(absl::Time now) {
  return {.now = now, .rtt = absl::Microseconds(10), .acked = Bytes(1000), .marked = true};
}

double Rate(const Dcqcn& dcqcn) { return dcqcn.rate().bytes_per_second() / kLine; }

class DcqcnTest : public testing::Test {
 protected:
  double Alpha() const {
    double alpha = -1;
    dcqcn_.Visit([&](absl::string_view name, double value) {
      if (name == "alpha") alpha = value;
    });
    return alpha;
  }
  const DcqcnParameters parameters_;
  Dcqcn dcqcn_{kFacts, parameters_};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(DcqcnTest, StartsAtLineRateAndStaysThereWithoutMarks) {
  dcqcn_.OnSent(now_, Bytes(100'000'000));
  dcqcn_.Advance(now_ + absl::Seconds(1));
  EXPECT_EQ(Rate(dcqcn_), 1);
}

TEST_F(DcqcnTest, FirstNotificationHalvesTheRate) {
  dcqcn_.OnAck(Marked(now_));
  EXPECT_DOUBLE_EQ(Rate(dcqcn_), 0.5);  // 1 - alpha / 2 with alpha = 1
}

TEST_F(DcqcnTest, MarksWithinANotificationIntervalCountOnce) {
  dcqcn_.OnAck(Marked(now_));
  dcqcn_.OnAck(Marked(now_ + absl::Microseconds(49)));
  EXPECT_DOUBLE_EQ(Rate(dcqcn_), 0.5);
  dcqcn_.OnAck(Marked(now_ + absl::Microseconds(50)));
  EXPECT_DOUBLE_EQ(Rate(dcqcn_), 0.25);
}

TEST_F(DcqcnTest, AlphaDecaysByEquation2) {
  dcqcn_.OnAck(Marked(now_));
  dcqcn_.Advance(now_ + absl::Microseconds(55 * 10));
  EXPECT_NEAR(Alpha(), std::pow(1 - 1.0 / 256, 10), 1e-12);
}

TEST_F(DcqcnTest, FastRecoveryHalvesTheDistanceToTheTarget) {
  dcqcn_.OnAck(Marked(now_));
  double expected = 0.5;
  for (int step = 1; step < 5; ++step) {
    dcqcn_.Advance(now_ + step * absl::Microseconds(55));
    expected = (1 + expected) / 2;
    EXPECT_DOUBLE_EQ(Rate(dcqcn_), expected) << step;
  }
}

// Two cuts, so that the target is below the line rate and growth of it shows.
TEST_F(DcqcnTest, AdditiveIncreaseFollowsFastRecovery) {
  dcqcn_.OnAck(Marked(now_));
  now_ += absl::Microseconds(50);
  dcqcn_.OnAck(Marked(now_));
  double target = 0.5, rate = 0.25;
  for (int step = 1; step <= 8; ++step) {
    dcqcn_.Advance(now_ + step * absl::Microseconds(55));
    if (step >= 5) target += parameters_.additive;
    rate = (target + rate) / 2;
    EXPECT_NEAR(Rate(dcqcn_), rate, 1e-12) << step;
  }
}

// Hyper increase wants both counters beyond F; its step grows with the smaller.
TEST_F(DcqcnTest, HyperIncreaseNeedsBothCounters) {
  dcqcn_.OnAck(Marked(now_));
  now_ += absl::Microseconds(50);
  dcqcn_.OnAck(Marked(now_));
  for (int i = 0; i < 6; ++i) dcqcn_.OnSent(now_, Bytes(10'000'000));
  double before = 0, after = 0;
  dcqcn_.Advance(now_ + 5 * absl::Microseconds(55));
  dcqcn_.Visit([&](absl::string_view name, double value) {
    if (name == "target_gbps") before = value;
  });
  dcqcn_.Advance(now_ + 6 * absl::Microseconds(55));  // min(6, 6) > 5: i = 1
  dcqcn_.Visit([&](absl::string_view name, double value) {
    if (name == "target_gbps") after = value;
  });
  EXPECT_NEAR(after - before, 40 * parameters_.hyper, 1e-9);
}

// Else every connection that was marked once would wake its host's thread each 55 us for ever.
TEST_F(DcqcnTest, WakesNobodyOnceItHasRecovered) {
  dcqcn_.OnAck(Marked(now_));
  EXPECT_EQ(dcqcn_.deadline(), now_ + absl::Microseconds(55));
  int wakes = 0;
  for (; dcqcn_.deadline() < absl::InfiniteFuture() && wakes < 1'000'000; ++wakes) {
    now_ = dcqcn_.deadline();
    dcqcn_.Advance(now_);
  }
  EXPECT_EQ(dcqcn_.deadline(), absl::InfiniteFuture());
  EXPECT_DOUBLE_EQ(Rate(dcqcn_), 1);
  EXPECT_LT(Alpha(), 1e-20);
  now_ += absl::Hours(1000);
  dcqcn_.Advance(now_);
  dcqcn_.OnAck(Marked(now_));  // a cut by an alpha of nothing
  EXPECT_DOUBLE_EQ(Rate(dcqcn_), 1);
  EXPECT_EQ(Alpha(), parameters_.g);
  EXPECT_EQ(dcqcn_.deadline(), now_ + absl::Microseconds(55));
}

// With a notification every interval the rate goes down to the floor and no further.
TEST_F(DcqcnTest, NeverFallsBelowItsFloor) {
  for (int i = 0; i < 1000; ++i) dcqcn_.OnAck(Marked(now_ + i * absl::Microseconds(50)));
  EXPECT_DOUBLE_EQ(Rate(dcqcn_), parameters_.rate_min);
}

}  // namespace
}  // namespace weft::net
