#include "tools/observe/detectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace weft::observe {
namespace {

using testing::Optional;

// About 1 with a standard deviation of `noise`.
double Near1(Random& random, double noise) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(random.Below(1 << 20)) / (1 << 20);
  return 1 + noise * (sum - 6);
}

// `slow` times as long for rank 5 of 8 from step 12 of 24 on; all drift by a tenth.
MetricSeries Series(uint64_t seed, double slow, double noise = 0.02) {
  Random random(seed);
  MetricSeries series;
  for (int rank = 0; rank < 8; ++rank) {
    for (int step = 0; step < 24; ++step) {
      const double factor = rank == 5 && step >= 12 ? slow : 1;
      series[rank].push_back(Near1(random, noise) * factor * (1 + 0.1 * step / 24));
    }
  }
  return series;
}

TEST(Minder, NamesTheOutlierAndNobodyElse) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    EXPECT_THAT(MinderOutlier(Series(seed, 1.5)), Optional(5)) << seed;
    EXPECT_EQ(MinderOutlier(Series(seed, 1)), std::nullopt) << seed;
  }
}

// One window that stands out is chance; several in a row are not.
TEST(Minder, WantsAnOutlierToStay) {
  MetricSeries series = Series(1, 1);
  series[3][23] = 3;
  EXPECT_EQ(MinderOutlier(series), std::nullopt);
  EXPECT_THAT(MinderOutlier(series, {.continuity = 1}), Optional(3));
}

// Where the noise is as large as the slowness, the model takes it away.
TEST(Minder, SeesThroughNoiseByItsModel) {
  int with = 0, without = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const MetricSeries series = Series(seed, 1.5, 0.12);
    with += MinderOutlier(series, {.window = 8, .components = 1}) == 5;
    without += MinderOutlier(series, {.window = 8, .denoise = false}) == 5;
  }
  EXPECT_GT(with, without);
}

TEST(Greyhound, FindsAShiftWhereItIs) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    std::vector<double> values;
    for (int step = 0; step < 30; ++step) {
      values.push_back(0.06 * Near1(random, 0.02) * (step >= 18 ? 1.3 : 1));
    }
    const std::optional<ChangePoint> change = LastChange(values);
    ASSERT_TRUE(change.has_value()) << seed;
    EXPECT_NEAR(static_cast<double>(change->at), 18, 1) << seed;
    EXPECT_NEAR(change->shift(), 0.3, 0.05) << seed;
  }
}

TEST(Greyhound, FindsNoneInNoiseNorAfterOneLongStep) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    std::vector<double> values;
    for (int step = 0; step < 30; ++step) values.push_back(0.06 * Near1(random, 0.03));
    std::optional<ChangePoint> change = LastChange(values);
    EXPECT_TRUE(!change.has_value() || std::abs(change->shift()) < 0.1) << seed;
    values[15] *= 3;
    change = LastChange(values);
    EXPECT_TRUE(!change.has_value() || change->shift() < 0.1) << seed;
  }
  EXPECT_EQ(LastChange({}), std::nullopt);
  EXPECT_EQ(LastChange(std::vector<double>(20, 0.0)), std::nullopt);
}

// The rows of Mycroft's table 4.
TEST(Mycroft, BlamesByTheTable) {
  EXPECT_EQ(BlameOf({0, 0, 0}, std::nullopt), FlowBlame::kNotStarted);
  EXPECT_EQ(BlameOf({9, 4, 4}, std::nullopt), FlowBlame::kLocalOrPeer);
  EXPECT_EQ(BlameOf({9, 4, 2}, std::nullopt), FlowBlame::kLocalOrPeer);
  EXPECT_EQ(BlameOf({9, 9, 4}, std::nullopt), FlowBlame::kNetwork);
  EXPECT_EQ(BlameOf({9, 9, 4}, FlowProgress{9, 6, 4}), FlowBlame::kNetwork);
  EXPECT_EQ(BlameOf({9, 9, 4}, FlowProgress{4, 4, 4}), FlowBlame::kReceiver);
  EXPECT_EQ(BlameOf({9, 9, 9}, FlowProgress{9, 9, 9}), FlowBlame::kDevice);
}

}  // namespace
}  // namespace weft::observe
