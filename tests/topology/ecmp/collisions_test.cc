#include "topology/ecmp/collisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace weft::topology {
namespace {

struct Row {
  int flows, paths, cap;
  double max_mean, slowdown;
  int max_p99;
  double idle, share;
};

// Exact balls in bins, computed apart from this code; E[max] and slowdown to two digits.
constexpr Row kTable[] = {
    {4, 4, 1, 2.13, 2.13, 4, .316, .684},   {8, 8, 1, 2.60, 2.60, 4, .344, .656},
    {16, 16, 1, 3.08, 3.08, 5, .356, .644}, {32, 32, 1, 3.53, 3.53, 6, .362, .638},
    {64, 64, 1, 3.96, 3.96, 6, .365, .635}, {128, 128, 1, 4.38, 4.38, 6, .366, .634},
    {64, 32, 2, 5.41, 2.71, 8, .131, .734}, {128, 32, 4, 8.65, 2.16, 12, .017, .808},
    {32, 64, 2, 2.72, 1.36, 4, .604, .970}, {8, 32, 1, 1.66, 1.66, 3, .776, .897},
};

TEST(Collisions, GiveThePublishedTableToItsDigits) {
  for (const Row& row : kTable) {
    SCOPED_TRACE(testing::Message() << row.flows << "/" << row.paths << "/" << row.cap);
    Collisions found = *ExpectedCollisions(row.flows, row.paths, row.cap);
    EXPECT_NEAR(found.max_mean, row.max_mean, 0.0051);
    EXPECT_NEAR(found.slowdown, row.slowdown, 0.0051);
    EXPECT_EQ(found.max_p99, row.max_p99);
    EXPECT_NEAR(found.idle, row.idle, 0.00051);
    EXPECT_NEAR(found.share, row.share, 0.00051);
  }
}

TEST(Collisions, AgreeWithCountingByHand) {
  // Two flows, two paths: together with probability 1/2.
  Collisions two = *ExpectedCollisions(2, 2);
  EXPECT_DOUBLE_EQ(two.none, 0.5);
  EXPECT_NEAR(two.max_mean, 1.5, 1e-12);
  EXPECT_NEAR(two.share, 0.75, 1e-12);
  EXPECT_EQ(two.max_p99, 2);
  // Three of 23 flows on 365 paths: the birthday problem.
  EXPECT_NEAR(ExpectedCollisions(23, 365)->none, 0.4927, 5e-5);
  // One path takes all.
  Collisions one = *ExpectedCollisions(7, 1);
  EXPECT_NEAR(one.max_mean, 7, 1e-9);
  EXPECT_NEAR(one.share, 1.0 / 7, 1e-12);
  EXPECT_EQ(one.none, 0);
}

TEST(Collisions, AgreeWithSampling) {
  Random random(7);
  constexpr int kFlows = 48, kPaths = 16, kRuns = 20000;
  double sum = 0;
  for (int run = 0; run < kRuns; ++run) {
    int load[kPaths] = {}, worst = 0;
    for (int i = 0; i < kFlows; ++i) worst = std::max(worst, ++load[random.Below(kPaths)]);
    sum += worst;
  }
  // The largest load's deviation is about 1.1: the mean of 20,000 is good to 0.03 at four sigma.
  EXPECT_NEAR(ExpectedCollisions(kFlows, kPaths)->max_mean, sum / kRuns, 0.03);
}

TEST(Collisions, StaysExactForManyFlows) {
  std::vector<double> at_most = *MaxLoadDistribution(1024, 64);
  EXPECT_EQ(at_most[15], 0);  // 1024 on 64: one path has 16
  for (size_t k = 16; k + 1 < at_most.size(); ++k) EXPECT_LE(at_most[k], at_most[k + 1] + 1e-12);
  EXPECT_NEAR(at_most.back(), 1, 1e-12);
}

TEST(Collisions, RefusesNumbersOutOfRange) {
  EXPECT_THAT(std::string(ExpectedCollisions(0, 4).status().message()),
              testing::HasSubstr("1..4096"));
  EXPECT_FALSE(ExpectedCollisions(4, 0).ok());
  EXPECT_FALSE(ExpectedCollisions(4, 4, 0).ok());
}

}  // namespace
}  // namespace weft::topology
