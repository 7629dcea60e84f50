#include "trainer/optimizer/learning_rate.h"

#include <gtest/gtest.h>

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

TEST(LearningRateTest, WarmUpLongerThanTheRunIsNoDivisionByZero) {
  OptimizerConfig config = Config();
  config.decay_steps = 10;
  EXPECT_DOUBLE_EQ(LearningRate(config, 10), 1e-3);
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
