#include "trainer/optimizer/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft::train {
namespace {

OptimizerConfig Config() {
  OptimizerConfig config;
  config.learning_rate = 1e-2;
  config.min_learning_rate = 1e-3;
  config.warmup_steps = 10;
  config.decay_steps = 110;
  config.beta1 = 0.9;
  config.beta2 = 0.99;
  config.clip = 1;
  return config;
}

TEST(LearningRateTest, RisesThenFallsAsHalfACosineAndStays) {
  OptimizerConfig config = Config();
  EXPECT_DOUBLE_EQ(LearningRate(config, 1), 1e-3);
  EXPECT_DOUBLE_EQ(LearningRate(config, 5), 5e-3);
  EXPECT_DOUBLE_EQ(LearningRate(config, 10), 1e-2);
  EXPECT_NEAR(LearningRate(config, 60), (1e-2 + 1e-3) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(config, 110), 1e-3);
  EXPECT_DOUBLE_EQ(LearningRate(config, 100000), 1e-3);
  config.schedule = ScheduleKind::kConstant;
  EXPECT_DOUBLE_EQ(LearningRate(config, 100000), 1e-2);
}

TEST(LearningRateTest, EveryScheduleRisesLinearlyFromZero) {
  OptimizerConfig config = Config();
  config.wsd_steps = 20;
  for (const ScheduleKind schedule :
       {ScheduleKind::kCosine, ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kWsd,
        ScheduleKind::kInverseSqrt}) {
    config.schedule = schedule;
    EXPECT_EQ(LearningRate(config, 0), 0.0);
    EXPECT_DOUBLE_EQ(LearningRate(config, 1), 1e-3);
    EXPECT_DOUBLE_EQ(LearningRate(config, 9), 9e-3);
    EXPECT_DOUBLE_EQ(LearningRate(config, 10), 1e-2);
  }
}

TEST(LearningRateTest, FallsLinearlyAndStays) {
  OptimizerConfig config = Config();
  config.schedule = ScheduleKind::kLinear;
  EXPECT_DOUBLE_EQ(LearningRate(config, 11), 1e-2 - 9e-3 / 100);
  EXPECT_DOUBLE_EQ(LearningRate(config, 35), 1e-2 - 9e-3 / 4);
  EXPECT_DOUBLE_EQ(LearningRate(config, 60), 5.5e-3);
  EXPECT_NEAR(LearningRate(config, 109), 1e-3 + 9e-3 / 100, 1e-15);
  EXPECT_EQ(LearningRate(config, 110), 1e-3);
  EXPECT_EQ(LearningRate(config, 100000), 1e-3);
}

// A decay of 20 steps: 1 - sqrt(part) of the way is left.
TEST(LearningRateTest, WsdStaysUntilItsDecayAndFallsThen) {
  OptimizerConfig config = Config();
  config.schedule = ScheduleKind::kWsd;
  config.wsd_steps = 20;
  EXPECT_EQ(LearningRate(config, 11), 1e-2);
  EXPECT_EQ(LearningRate(config, 89), 1e-2);
  EXPECT_EQ(LearningRate(config, 90), 1e-2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 91), 1e-2 - 9e-3 * std::sqrt(1.0 / 20));
  EXPECT_DOUBLE_EQ(LearningRate(config, 95), 5.5e-3);
  EXPECT_NEAR(LearningRate(config, 109), 1e-2 - 9e-3 * std::sqrt(19.0 / 20), 1e-15);
  EXPECT_EQ(LearningRate(config, 110), 1e-3);
  EXPECT_EQ(LearningRate(config, 100000), 1e-3);
  config.wsd_steps = 0;  // no decay: down at once
  EXPECT_EQ(LearningRate(config, 109), 1e-2);
  EXPECT_EQ(LearningRate(config, 110), 1e-3);
  config.wsd_steps = 100;  // nothing is stable
  EXPECT_EQ(LearningRate(config, 10), 1e-2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 35), 5.5e-3);
}

TEST(LearningRateTest, InverseSqrtFallsWithoutAnEndButNotBelowTheLeast) {
  OptimizerConfig config = Config();
  config.schedule = ScheduleKind::kInverseSqrt;
  EXPECT_DOUBLE_EQ(LearningRate(config, 11), 1e-2 * std::sqrt(10.0 / 11));
  EXPECT_DOUBLE_EQ(LearningRate(config, 40), 5e-3);
  EXPECT_DOUBLE_EQ(LearningRate(config, 250), 2e-3);  // behind decay_steps
  EXPECT_DOUBLE_EQ(LearningRate(config, 1000), 1e-3);
  EXPECT_EQ(LearningRate(config, 1001), 1e-3);
}

TEST(LearningRateTest, WarmUpLongerThanTheRunIsNoDivisionByZero) {
  OptimizerConfig config = Config();
  config.decay_steps = 10;
  EXPECT_DOUBLE_EQ(LearningRate(config, 10), 1e-3);
  config.schedule = ScheduleKind::kLinear;
  EXPECT_DOUBLE_EQ(LearningRate(config, 10), 1e-3);
  config.schedule = ScheduleKind::kCosine;
  config.warmup_steps = 0;
  EXPECT_GT(LearningRate(config, 1), 9e-3);
}

TEST(ClipTest, ScalesLargeGradientsOnly) {
  OptimizerConfig config = Config();
  EXPECT_DOUBLE_EQ(ClipScale(config, 0.5), 1);
  EXPECT_DOUBLE_EQ(ClipScale(config, 4), 0.25);
  config.clip = 0;
  EXPECT_DOUBLE_EQ(ClipScale(config, 4), 1);
}

}  // namespace
}  // namespace weft::train
