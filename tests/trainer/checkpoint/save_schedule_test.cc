#include "trainer/checkpoint/save_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace weft::train {
namespace {

// Expected time of a run per time of computing, where failures come by chance (exponentially) with
// mean M, a save takes c after each t of computing, and a failure throws back to the last save:
// M (exp((t + c) / M) - 1) / t (Daly 2006, eq. 20, without the time of a restart).
double Overhead(double interval, double cost, double mean) {
  return mean * std::expm1((interval + cost) / mean) / interval;
}

// The least of that on a fine grid.
double BestByTrial(double cost, double mean) {
  double best = 0;
  for (double interval = cost / 100; interval < 4 * mean; interval *= 1.001) {
    if (best == 0 || Overhead(interval, cost, mean) < Overhead(best, cost, mean)) best = interval;
  }
  return best;
}

TEST(SaveSchedule, TheIntervalIsThatOfTheLeastExpectedTime) {
  for (const double mean : {10.0, 600.0, 86400.0}) {
    for (const double part : {1e-6, 1e-4, 1e-2, 0.1}) {
      const double cost = mean * part;
      const double interval =
          absl::ToDoubleSeconds(BestSaveInterval(absl::Seconds(cost), absl::Seconds(mean)));
      EXPECT_NEAR(interval / BestByTrial(cost, mean), 1, 0.02) << cost << " of " << mean;
    }
  }
}

TEST(SaveSchedule, ASaveThatTakesLongerThanTheRunLastsIsMadeOnceAFailure) {
  EXPECT_EQ(BestSaveInterval(absl::Seconds(30), absl::Seconds(10)), absl::Seconds(10));
  EXPECT_EQ(BestSaveInterval(absl::Seconds(20), absl::Seconds(10)), absl::Seconds(10));
}

TEST(SaveSchedule, WhatIsExpectedCountsAsOneFailure) {
  EXPECT_EQ(MeanTimeBetweenFailures(absl::Hours(6), absl::ZeroDuration(), 0), absl::Hours(6));
  EXPECT_EQ(MeanTimeBetweenFailures(absl::Hours(6), absl::Hours(6), 5), absl::Hours(2));
  EXPECT_EQ(MeanTimeBetweenFailures(absl::Hours(6), absl::Hours(12), 0), absl::Hours(18));
}

TEST(SaveSchedule, GoesOnFromTheSaveWithAnotherInterval) {
  SaveSchedule schedule(5);
  std::vector<int64_t> due;
  for (int64_t step = 1; step <= 20; ++step) {
    if (!schedule.IsDue(step)) continue;
    due.push_back(step);
    schedule.Follow(step, step == 5 ? 3 : 7);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{5, 8, 15}));
  EXPECT_FALSE(SaveSchedule(0).IsDue(1));
  EXPECT_FALSE(SaveSchedule(4).IsDue(0));
}

}  // namespace
}  // namespace weft::train
