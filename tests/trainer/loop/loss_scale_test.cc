// The scale of fp16's loss, and the steps that were left out.
#include "trainer/loop/loss_scale.h"

#include <gtest/gtest.h>

#include "trainer/config.h"

namespace weft::train {
namespace {

TrainConfig Config(Precision precision) {
  TrainConfig config;
  config.precision = precision;
  config.loss_scale = 1024;
  config.loss_scale_steps = 2;
  return config;
}

TEST(LossScaleTest, IsHalvedByAStepThatIsLeftOutAndDoubledByFiniteOnesInARow) {
  LossScale scale(Config(Precision::kFp16));
  EXPECT_TRUE(scale.Adapt(false));
  EXPECT_EQ(scale.value(), 512);
  scale.Adapt(true);
  EXPECT_EQ(scale.value(), 512);
  scale.Adapt(true);
  EXPECT_EQ(scale.value(), 1024);
  EXPECT_EQ(scale.left_out(), 1);
}

TEST(LossScaleTest, ACheckpointKeepsAllOfIt) {
  LossScale before(Config(Precision::kFp16)), after(Config(Precision::kFp16));
  for (const bool is_finite : {false, false, true}) before.Adapt(is_finite);
  ASSERT_TRUE(after.FromText(before.ToText()).ok());
  EXPECT_EQ(after.value(), 256);
  EXPECT_EQ(after.left_out(), 2);
  after.Adapt(true);
  EXPECT_EQ(after.value(), 512);
  ASSERT_TRUE(after.FromText("64 1").ok());  // of before steps left out were counted
  EXPECT_EQ(after.value(), 64);
  EXPECT_EQ(after.left_out(), 0);
  for (const char* text : {"", "64", "0.5 1 0", "nan 1 0", "64 x 0", "64 1 -1", "64 1 0 0"}) {
    EXPECT_FALSE(after.FromText(text).ok()) << text;
  }
}

// train.non_finite = skip is of every type.
TEST(LossScaleTest, IsOneWithOtherTypesThanFp16AndCountsAllTheSame) {
  LossScale before(Config(Precision::kBf16)), after(Config(Precision::kBf16));
  EXPECT_FALSE(before.Adapt(false));
  EXPECT_EQ(before.value(), 1);
  ASSERT_TRUE(after.FromText(before.ToText()).ok());
  EXPECT_EQ(after.value(), 1);
  EXPECT_EQ(after.left_out(), 1);
}

}  // namespace
}  // namespace weft::train
