// How a step is cut into micro-batches: arithmetic alone.
#include "trainer/parallel/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::train {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<StepPlan> PlanOf(std::vector<std::string> settings, const ParallelSizes& sizes) {
  settings.insert(settings.begin(), {"data.prefix=none", "train.precision=fp32"});
  absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
  EXPECT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 512;
  return StepPlan::Make(*config, sizes);
}

TEST(StepPlanTest, APipelineHasUpToFourMicroBatchesAStage) {
  const ParallelSizes two_stages{.pipeline = 2};
  const auto even = PlanOf({"train.global_batch=16"}, two_stages);
  ASSERT_TRUE(even.ok()) << even.status();
  EXPECT_EQ(even->pipeline.micro_batches, 8);
  EXPECT_EQ(even->micro_rows, 2);
  const auto odd = PlanOf({"train.global_batch=15"}, two_stages);
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_EQ(odd->pipeline.micro_batches, 5);
  const auto alone = PlanOf({"train.global_batch=16"}, {});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->pipeline.micro_batches, 1);
}

// Samples of 100 tokens, of which 8 ranks have equal parts of two together.
TEST(StepPlanTest, MicroBatchesAreSuchThatTheTensorAxisSharesTheirTokens) {
  const std::vector<std::string> settings = {"model.sequence=100", "model.heads=8",
                                             "train.global_batch=8"};
  const ParallelSizes sizes{.tensor = 8, .pipeline = 2};
  const auto plan = PlanOf(settings, sizes);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pipeline.micro_batches, 4);
  EXPECT_EQ(plan->micro_rows, 2);
  std::vector<std::string> given = settings;
  given.emplace_back("train.micro_batch=1");
  const auto refused = PlanOf(given, sizes);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("= 100 tokens on a rank of the context axis, which must be a multiple of "
                        "parallel.tensor = 8"));
}

}  // namespace
}  // namespace weft::train
