#include "net/cc/hpcc.h"

#include <gtest/gtest.h>

#include <array>

namespace weft::net {
namespace {

const PathFacts kFacts{.base_rtt = absl::Microseconds(10),
                       .bandwidth = Bandwidth::BytesPerSecond(1e10),
                       .packet = Bytes(1000)};  // product 100 KB
const absl::Time kStart = absl::UnixEpoch();

// One hop that has carried `use` of its speed all the time, with a standing queue.
class Hop {
 public:
  AckSample Ack(double use, Bytes queue) {
    now_ += absl::Microseconds(10);
    sent_ += Bytes(static_cast<int64_t>(use * 100'000));
    hop_[0] = {Bandwidth::BytesPerSecond(1e10), queue, sent_, now_};
    return {.now = now_, .rtt = absl::Microseconds(10), .acked = Bytes(1000), .telemetry = hop_};
  }

 private:
  absl::Time now_ = kStart;
  Bytes sent_;
  std::array<HopTelemetry, 1> hop_;
};

TEST(HpccTest, ShrinksInProportionToTheUtilisation) {
  Hpcc hpcc(kFacts, {});
  Hop hop;
  hpcc.OnAck(hop.Ack(1, Bytes(100'000)));
  EXPECT_EQ(hpcc.window(), Bytes(100'000)) << "one sample tells no rate";
  hpcc.OnAck(hop.Ack(1, Bytes(100'000)));  // U = 1 + 1
  double additive = 100'000 * 0.05 / 100;
  EXPECT_NEAR(static_cast<double>(hpcc.window().count()), 100'000 / (2 / 0.95) + additive, 2);
}

TEST(HpccTest, GrowsAdditivelyThenByProportionAfterMaxStage) {
  HpccParameters parameters;
  parameters.flows = 5;  // W_AI = 1 KB
  Hpcc hpcc(kFacts, parameters);
  Hop hop;
  hpcc.OnAck(hop.Ack(1, Bytes(300'000)));
  hpcc.OnAck(hop.Ack(1, Bytes(300'000)));  // U = 4: 23,750 + 1,000
  double window = 100'000 / (4 / 0.95) + 1'000;
  ASSERT_NEAR(static_cast<double>(hpcc.window().count()), window, 2);
  for (int stage = 1; stage <= 5; ++stage) {
    hpcc.OnAck(hop.Ack(0.475, Bytes(0)));
    window += 1'000;
    EXPECT_NEAR(static_cast<double>(hpcc.window().count()), window, 2) << stage;
  }
  hpcc.OnAck(hop.Ack(0.475, Bytes(0)));
  EXPECT_NEAR(static_cast<double>(hpcc.window().count()), window / 0.5 + 1'000, 2);
}

TEST(HpccTest, KeepsItsWindowWithoutTelemetry) {
  Hpcc hpcc(kFacts, {});
  hpcc.OnAck({.now = kStart, .rtt = absl::Milliseconds(1), .acked = Bytes(1000), .marked = true});
  EXPECT_EQ(hpcc.window(), Bytes(100'000));
}

}  // namespace
}  // namespace weft::net
