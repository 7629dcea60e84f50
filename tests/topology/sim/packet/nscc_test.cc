// NSCC's answers to each of its signals.
#include "topology/sim/packet/transports/nscc.h"

#include <gtest/gtest.h>

#include "tests/topology/sim/packet/fabrics.h"

namespace weft::topology {
namespace {

using packet::Nscc;
using packet::Picoseconds;

constexpr Picoseconds kRoundTrip = 8 * packet::kMicrosecond;
constexpr double kProduct = 0.05 * 8e6;  // bytes: 400 Gb/s times the round trip

FlowFacts Facts() { return {kRoundTrip, 0.05, kFrame, true}; }

// Acknowledges `bytes`, one packet each, `delay` over the empty round trip; a packet time apart.
Picoseconds Acknowledge(Nscc& nscc, Picoseconds now, int64_t bytes, Picoseconds delay,
                        bool marked) {
  for (; bytes > 0; bytes -= kFrame, now += 83'200) {
    nscc.OnAck({now, kRoundTrip + delay, kFrame, nscc.window(), marked});
  }
  return now;
}

TEST(Nscc, ShrinksOnMarksWithDelayOnceARoundTripAndNotBelowHalf) {
  Nscc nscc(Facts());
  int64_t before = nscc.window();
  EXPECT_NEAR(static_cast<double>(before), 1.5 * kProduct - kFrame, 2);
  Picoseconds now = Acknowledge(nscc, kRoundTrip, 300 * kFrame, 2 * kRoundTrip, true);
  // Three round trips of packets, of whose delay the average knows after half of one: three cuts,
  // at most by half each.
  EXPECT_LT(nscc.window(), before * 9 / 10);
  EXPECT_GE(nscc.window(), before / 8);
  int64_t shrunk = nscc.window();
  Acknowledge(nscc, now, 3 * kFrame, 2 * kRoundTrip, true);
  EXPECT_EQ(nscc.window(), shrunk);
}

TEST(Nscc, KeepsItsWindowOnMarksWithoutDelayAndGrowsWithout) {
  Nscc nscc(Facts());
  Picoseconds now = Acknowledge(nscc, kRoundTrip, 200 * kFrame, 2 * kRoundTrip, true);
  int64_t shrunk = nscc.window();
  now = Acknowledge(nscc, now, 50 * kFrame, 2 * packet::kMicrosecond, true);
  EXPECT_NEAR(static_cast<double>(nscc.window()), static_cast<double>(shrunk), 2 * kFrame);
  Acknowledge(nscc, now, 200 * kFrame, 2 * packet::kMicrosecond, false);
  EXPECT_GT(nscc.window(), shrunk + 4 * kFrame);
}

// The trimmed packets of one overload must not take the window down again and again: who lost most
// would be left with one packet, and others with the link.
TEST(Nscc, QuickAdaptCutsToWhatWasDeliveredAndPassesOverWhatWasInFlight) {
  Nscc nscc(Facts());
  const Picoseconds period = kRoundTrip + kRoundTrip * 3 / 4;
  nscc.OnLoss(kRoundTrip, kFrame, 100 * kFrame);  // opens the period
  Picoseconds now = Acknowledge(nscc, kRoundTrip + 1, 6 * kFrame, 3 * kRoundTrip, true);
  now = std::max(now, kRoundTrip + period + 1);
  nscc.OnLoss(now, kFrame, 90 * kFrame);
  int64_t cut = nscc.window();
  EXPECT_EQ(cut, 6 * kFrame - kFrame + 1);
  for (int i = 0; i < 80; ++i) nscc.OnLoss(now + i, kFrame, 90 * kFrame);
  EXPECT_EQ(nscc.window(), cut);
  for (int i = 0; i < 20; ++i) nscc.OnLoss(now + 100 + i, kFrame, 10 * kFrame);
  EXPECT_LT(nscc.window(), cut);
}

// htsim's UEC, whose mean is 0.92 to 0.94 of its maximum here, treats the senders of a large incast
// about alike.
TEST(Nscc, LargeIncastIsShared) {
  constexpr int kSenders = 96;
  Fabric fabric = LeafSpine(4, 32, 32);
  Workload workload;
  for (int i = 0; i < kSenders; ++i) workload.Add(Send(i + 1, 0, 500'000));
  PacketOptions options;
  options.transport = TransportKind::kSelective;
  options.congestion = CongestionKind::kNscc;
  options.load_balance = LoadBalance::kSpray;
  options.trimming = options.ecn.enabled = true;
  options.ecn.min_round_trips = 0.2;
  options.ecn.max_round_trips = 0.8;
  options.ecn.probability_max = 1;
  auto result = SimulatePackets(fabric, workload, options);
  ASSERT_TRUE(result.ok()) << result.status();
  double sum = 0, last = 0;
  for (const OperationResult& one : result->operations) {
    double time = absl::ToDoubleMicroseconds(one.acknowledged - one.started);
    sum += time;
    last = std::max(last, time);
  }
  EXPECT_GT(sum / kSenders, 0.86 * last);
}

}  // namespace
}  // namespace weft::topology
