#include "net/cc/nscc.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/random.h"
#include "tests/net/cc/nscc_reference.h"

namespace weft::net {
namespace {

// The network of its constants: all scales are 1. Product 150,000 bytes.
const PathFacts kFacts{.base_rtt = absl::Microseconds(12),
                       .bandwidth = Bandwidth::GigabitsPerSecond(100),
                       .packet = Bytes(4000)};
constexpr double kProduct = 150'000;

class NsccTest : public testing::Test {
 protected:
  // Acknowledges `packets` packets, 1 us apart.
  void Acks(int packets, double delay_us, bool marked) {
    for (int i = 0; i < packets; ++i) {
      now_ += absl::Microseconds(1);
      nscc_.OnAck({.now = now_,
                   .rtt = absl::Microseconds(12 + delay_us),
                   .acked = Bytes(4000),
                   .in_flight = nscc_.window(),
                   .marked = marked});
    }
  }
  double Window() const { return static_cast<double>(nscc_.window().count()); }
  // From the top down to something that can grow.
  void Shrink() {
    while (Window() > 0.6 * kProduct) Acks(1, 40, true);
    ASSERT_GT(Window(), 0.25 * kProduct);
  }

  Nscc nscc_{kFacts, {}};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(NsccTest, StartsWithTheLargestWindow) { EXPECT_EQ(Window(), 1.5 * kProduct); }

TEST_F(NsccTest, MarksBelowTheTargetLeaveTheWindowAlone) {
  Acks(5, 3, true);
  EXPECT_EQ(Window(), 1.5 * kProduct);
}

// The average must exceed the target too, and a cut is at most a half, once a round trip.
TEST_F(NsccTest, MarkedAndLateCutsByTheAveragesExcessOnceARoundTrip) {
  Acks(1, 200, true);  // average 200 / 80: below 12
  EXPECT_EQ(Window(), 1.5 * kProduct);
  Acks(40, 40, true);
  double after = Window();
  EXPECT_LT(after, 1.5 * kProduct);
  EXPECT_GT(after, 1.5 * kProduct / 8 * 0.9) << "three round trips: three halvings at most";
}

// The window after 80 acknowledgements, by eights, each adding `each` bytes times bytes; and eta.
double Grown(double window, double each) {
  double start = window;
  for (int i = 0; i < 10; ++i) window += each * 8 / window;
  return window - start + 600.0 * 80 / 12;
}

TEST_F(NsccTest, GrowsInProportionToTheRoom) {
  Shrink();
  double start = Window();
  Acks(80, 9, false);
  // alpha acked (Q - d), with alpha = 4 MSS / Q.
  EXPECT_NEAR(Window() - start, Grown(start, 4.0 * 4000 * 4000 * 3 / 12),
              0.15 * (Window() - start));
}

TEST_F(NsccTest, FairIncreaseWithoutMarksAboveTheTarget) {
  Shrink();
  double start = Window();
  Acks(80, 20, false);
  EXPECT_NEAR(Window() - start, Grown(start, 5.0 * 4000 * 4000), 0.15 * (Window() - start));
}

TEST_F(NsccTest, FastIncreaseAfterAWindowWithoutDelay) {
  Shrink();
  Acks(60, 0, false);
  double start = Window();
  Acks(4, 0, false);
  EXPECT_GE(Window() - start, 4 * 0.25 * 4000);
}

TEST_F(NsccTest, LossesTakeTheirBytesOff) {
  nscc_.OnLoss(now_, Bytes(8000), Bytes(0));
  EXPECT_EQ(Window(), 1.5 * kProduct - 8000);
}

// After a period (24 us) in which next to nothing came through, the window is what came through.
TEST_F(NsccTest, QuickAdaptFallsToWhatWasDelivered) {
  Acks(1, 5, false);
  now_ += absl::Microseconds(10);
  Acks(2, 100, true);
  now_ += absl::Microseconds(30);
  nscc_.OnLoss(now_, Bytes(4000), Bytes(0));
  EXPECT_EQ(Window(), 2 * 4000) << "what was delivered since the period began";
}

// What was in flight at the cut tells of the congestion that was answered by it; what comes behind
// it counts again.
TEST_F(NsccTest, LossesOfWhatWasInFlightAtTheCutTakeNothingOff) {
  Acks(1, 5, false);
  now_ += absl::Microseconds(10);
  Acks(5, 100, true);
  now_ += absl::Microseconds(30);
  nscc_.OnLoss(now_, Bytes(4000), Bytes(20'000));
  ASSERT_EQ(Window(), 5 * 4000);
  for (int i = 0; i < 5; ++i) nscc_.OnLoss(now_, Bytes(4000), Bytes(20'000));
  Acks(1, 100, true);
  double window = Window();
  EXPECT_GE(window, 5 * 4000);
  nscc_.OnLoss(now_, Bytes(4000), Bytes(20'000));
  EXPECT_EQ(Window(), window - 4000);
}

// Delays without marks are of queues that drain: they are no reason for a cut later.
TEST_F(NsccTest, LongDelaysWithoutMarksHardlyCount) {
  Acks(200, 40, false);
  EXPECT_EQ(Window(), 1.5 * kProduct);
  Acks(10, 40, true);
  EXPECT_EQ(Window(), 1.5 * kProduct);
}

// Both from one series of acknowledgements, losses and timeouts, on a path drawn at random. The two
// round differently, so that windows agree to a billionth, not to the bit.
void ExpectSameWindows(uint64_t seed) {
  Random random(seed, 0x6e736363);
  const int64_t round_trip = 1'000'000 * static_cast<int64_t>(2 + random.Below(40));  // ps
  const double gigabits = 25.0 * static_cast<double>(1 + random.Below(16));
  const int64_t packet = 1000 * static_cast<int64_t>(1 + random.Below(4)) + 64;
  const bool trimming = random.Below(2) == 0;
  Nscc nscc({.base_rtt = absl::Nanoseconds(round_trip / 1000),
             .bandwidth = Bandwidth::GigabitsPerSecond(gigabits),
             .packet = Bytes(packet),
             .trimming = trimming},
            {});
  NsccReference reference({round_trip, gigabits / 8000, packet, trimming});
  // Spells of one kind of signal, as a network gives them; times are odd nanoseconds, so that none
  // falls on a bound to the picosecond.
  int64_t now = 10 * round_trip + 1000;
  uint64_t congestion = 0;
  for (int i = 0; i < 5000; ++i) {
    if (i % 97 == 0) congestion = random.Below(5);
    now +=
        1000 * static_cast<int64_t>(1 + random.Below(static_cast<uint64_t>(round_trip) / 20'000));
    const absl::Time time = absl::UnixEpoch() + absl::Nanoseconds(now / 1000);
    const auto in_flight = static_cast<int64_t>(random.Below(20)) * packet;
    if (congestion == 4 && random.Below(3) == 0) {
      nscc.OnLoss(time, Bytes(packet), Bytes(in_flight));
      reference.OnLoss(now, packet, in_flight);
    } else if (random.Below(400) == 0) {
      nscc.OnTimeout(time, 1);
      reference.OnTimeout(now);
    } else {
      const int64_t most = round_trip / 1000 * static_cast<int64_t>(congestion) * 2;
      const int64_t delay =
          most == 0 ? 0 : 1000 * static_cast<int64_t>(random.Below(static_cast<uint64_t>(most)));
      const bool marked = random.Below(5) < congestion;
      nscc.OnAck({.now = time,
                  .rtt = absl::Nanoseconds((round_trip + delay) / 1000),
                  .acked = Bytes(packet),
                  .in_flight = Bytes(in_flight),
                  .marked = marked});
      reference.OnAck({now, round_trip + delay, packet, in_flight, marked});
    }
    double window = 0;
    nscc.Visit([&](absl::string_view name, double value) {
      if (name == "window_bytes") window = value;
    });
    ASSERT_NEAR(window, reference.window(), 1e-9 * window) << "seed " << seed << ", signal " << i;
  }
}

TEST(NsccReferenceTest, AnotherImplementationGivesTheSameWindows) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    ExpectSameWindows(seed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace weft::net
