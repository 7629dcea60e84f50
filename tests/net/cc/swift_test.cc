#include "net/cc/swift.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "net/cc/hybrid.h"

namespace weft::net {
namespace {

// A product of 1,000 packets: above fs_max, so that the target is base (1 + 0.15) = 11.5 us.
const PathFacts kFacts{.base_rtt = absl::Microseconds(10),
                       .bandwidth = Bandwidth::BytesPerSecond(1e11),
                       .packet = Bytes(1000),
                       .hops = 1};
constexpr double kProduct = 1000;

AckSample Ack(absl::Time now, double rtt_us, int packets = 1, bool marked = false) {
  return {.now = now,
          .rtt = absl::Microseconds(rtt_us),
          .acked = Bytes(1000 * packets),
          .marked = marked};
}

TEST(SwiftTargetTest, FlowScalingRunsFromItsRangeToNothing) {
  const SwiftParameters parameters;
  auto added = [&](double packets) {
    return absl::ToDoubleMicroseconds(SwiftTarget(kFacts, parameters, packets)) - 11.5;
  };
  EXPECT_NEAR(added(100), 0, 1e-3);
  EXPECT_NEAR(added(1000), 0, 1e-3);
  EXPECT_NEAR(added(0.1), 50, 1e-3);
  EXPECT_NEAR(added(0.001), 50, 1e-3);
  // fs_alpha = 50 / (1 / sqrt(0.1) - 0.1) us, fs_beta = -fs_alpha / 10.
  double alpha = 50 / (1 / std::sqrt(0.1) - 0.1);
  EXPECT_NEAR(added(4), alpha / 2 - alpha / 10, 1e-3);
}

TEST(SwiftTest, GrowsByAiEachRoundTripBelowTheTarget) {
  Swift swift(kFacts, {});
  ASSERT_EQ(swift.packets(), kProduct);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 1000; ++i) swift.OnAck(Ack(now, 10));
  EXPECT_NEAR(swift.packets(), kProduct + 1, 0.01);
}

TEST(SwiftTest, CutsByTheExcessOnceARoundTrip) {
  Swift swift(kFacts, {});
  absl::Time now = absl::UnixEpoch();
  swift.OnAck(Ack(now, 23));  // excess (23 - 11.5) / 23 = 1/2, beta 0.8
  EXPECT_NEAR(swift.packets(), kProduct * 0.6, 1e-6);
  swift.OnAck(Ack(now + absl::Microseconds(22), 23));
  EXPECT_NEAR(swift.packets(), kProduct * 0.6, 1e-6);
  swift.OnAck(Ack(now + absl::Microseconds(23), 23));
  EXPECT_NEAR(swift.packets(), kProduct * 0.36, 1e-6);
}

TEST(SwiftTest, NoCutIsLargerThanMaxMdf) {
  Swift swift(kFacts, {});
  swift.OnAck(Ack(absl::UnixEpoch(), 10'000));
  EXPECT_NEAR(swift.packets(), kProduct * 0.5, 1e-6);
}

TEST(SwiftTest, BelowOnePacketItPaces) {
  Swift swift(kFacts, {});
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 12; ++i) swift.OnAck(Ack(now += absl::Seconds(1), 10'000));
  ASSERT_LT(swift.packets(), 1);
  EXPECT_EQ(swift.window(), Bytes(1000));
  EXPECT_NEAR(swift.rate().bytes_per_second(), swift.packets() * 1000 / 0.01, 1);
  double before = swift.packets();
  swift.OnAck(Ack(now, 10));
  EXPECT_NEAR(swift.packets(), before + 1, 1e-9);
}

TEST(SwiftTest, FifthTimeoutCollapsesTheWindow) {
  Swift swift(kFacts, {});
  absl::Time now = absl::UnixEpoch();
  for (int i = 1; i <= 4; ++i) swift.OnTimeout(now += absl::Seconds(1), i);
  EXPECT_NEAR(swift.packets(), kProduct / 16, 1e-6);
  swift.OnTimeout(now, 5);
  EXPECT_EQ(swift.packets(), 0.001);
}

TEST(SwiftTest, EndpointDelayHasAWindowOfItsOwn) {
  Swift swift(kFacts, {});
  AckSample ack = Ack(absl::UnixEpoch(), 10);
  ack.endpoint = absl::Microseconds(200);  // target 100: cut by 0.4
  swift.OnAck(ack);
  EXPECT_NEAR(swift.packets(), 0.6 * 4 * kProduct < kProduct ? 0.6 * 4 * kProduct : kProduct, 1);
  for (int i = 1; i < 6; ++i) {
    ack.now += absl::Milliseconds(1);
    swift.OnAck(ack);
  }
  EXPECT_NEAR(swift.packets(), 4 * kProduct * std::pow(0.6, 6), 5);
}

// On a slow link an acknowledgement waits for the packet before it, which is no congested host.
TEST(SwiftTest, TheEndpointsTargetIsNotBelowTheBaseRoundTrip) {
  PathFacts slow = kFacts;
  slow.base_rtt = absl::Milliseconds(5);
  Swift swift(slow, {});
  const double before = swift.packets();
  AckSample ack = Ack(absl::UnixEpoch(), 5000);
  ack.endpoint = absl::Milliseconds(4);
  swift.OnAck(ack);
  EXPECT_GT(swift.packets(), before);
  ack.endpoint = absl::Milliseconds(50);  // of 5: cut by half at most
  for (int i = 1; i <= 6; ++i) {
    ack.now += absl::Milliseconds(5);
    swift.OnAck(ack);
  }
  EXPECT_LT(swift.packets(), before / 2);
}

// Eight paths, one of them slow: an eighth of the samples are late. Plain Swift cuts every round
// trip; the median does not see it.
double AfterSpray(double samples) {
  SwiftParameters parameters;
  parameters.samples = samples;
  Swift swift(kFacts, parameters);
  Random random(7);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 200'000; ++i) {
    now += absl::Nanoseconds(20);
    swift.OnAck(Ack(now, random.Below(8) == 0 ? 30 : 10.5));
  }
  return swift.packets();
}

TEST(MswiftTest, TheMedianDoesNotSeeOneSlowPathOfEight) {
  EXPECT_LT(AfterSpray(0), 0.1 * kProduct);
  EXPECT_GT(AfterSpray(31), 0.9 * kProduct);
}

TEST(RecentMedianTest, IsTheMedianOfTheNewest) {
  RecentMedian median(5);
  Random random(3);
  std::vector<int64_t> all;
  for (int i = 0; i < 300; ++i) {
    all.push_back(static_cast<int64_t>(random.Below(20)));
    absl::Duration got = median.Add(absl::Microseconds(all.back()));
    std::vector<int64_t> newest(all.end() - std::min<std::ptrdiff_t>(5, std::ssize(all)),
                                all.end());
    std::sort(newest.begin(), newest.end());
    ASSERT_EQ(got, absl::Microseconds(newest[(newest.size() - 1) / 2])) << i;
  }
}

// Above the target, how much of the last round trip was marked decides where the delay alone would
// cut less; and the other way round.
TEST(HybridTest, TheLargerOfBothCutsCounts) {
  for (const auto& [marked_every, delay_us, kept] :
       {std::tuple{1000, 23, 0.6}, {4, 14, 0.875}, {1, 14, 0.5}}) {
    Hybrid hybrid(kFacts, {});
    absl::Time now = absl::UnixEpoch();
    for (int i = 0; i < 400; ++i) {
      hybrid.OnAck(Ack(now += absl::Microseconds(1), 10, 1, i % marked_every == 0));
    }
    auto window = static_cast<double>(hybrid.window().count());
    hybrid.OnAck(Ack(now += absl::Milliseconds(1), delay_us));
    EXPECT_NEAR(static_cast<double>(hybrid.window().count()) / window, kept, 0.06)
        << "rounds of ten or eleven, one of every " << marked_every << " marked";
  }
}

TEST(HybridTest, MarksBelowTheTargetStopGrowth) {
  Hybrid hybrid(kFacts, {});
  absl::Time now = absl::UnixEpoch();
  Bytes window = hybrid.window();
  for (int i = 0; i < 100; ++i) hybrid.OnAck(Ack(now + absl::Microseconds(1), 10, 1, true));
  EXPECT_EQ(hybrid.window(), window);
  for (int i = 0; i < 1000; ++i) hybrid.OnAck(Ack(now + absl::Microseconds(1), 10));
  EXPECT_GT(hybrid.window(), window);
}

// A share F of marked bytes, round after round, brings alpha to F.
TEST(HybridTest, AlphaIsTheShareOfMarkedBytes) {
  Hybrid hybrid(kFacts, {});
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 4000; ++i) hybrid.OnAck(Ack(now += absl::Microseconds(1), 10, 1, i % 4 == 0));
  double alpha = 0;
  hybrid.Visit([&](absl::string_view name, double value) {
    if (name == "alpha") alpha = value;
  });
  EXPECT_NEAR(alpha, 0.25, 0.05);
}

}  // namespace
}  // namespace weft::net
