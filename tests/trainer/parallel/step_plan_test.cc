// How a step is cut into micro-batches: arithmetic alone.
#include "trainer/parallel/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
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

TEST(StepPlanTest, APipelineHasMicroBatchesThatDivideTheSamples) {
  const ParallelSizes two_stages{.pipeline = 2};
  const auto even = PlanOf({"model.sequence=32", "train.global_batch=16"}, two_stages);
  ASSERT_TRUE(even.ok()) << even.status();
  EXPECT_EQ(even->pipeline.micro_batches, 8);
  EXPECT_EQ(even->micro_rows, 2);
  const auto odd = PlanOf({"model.sequence=32", "train.global_batch=15"}, two_stages);
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_EQ(odd->pipeline.micro_batches, 5);
  const auto alone = PlanOf({"train.global_batch=16"}, {});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->pipeline.micro_batches, 1);
}

// More of them where they stay large, and where the schedule idles for longer.
TEST(StepPlanTest, MicroBatchesWeighTheBubbleAgainstTheirSize) {
  auto count_of = [](const std::string& sequence, const std::string& schedule,
                     const std::string& precision) {
    const auto plan = PlanOf({"train.global_batch=16", "model.sequence=" + sequence,
                              "parallel.schedule=" + schedule, "train.precision=" + precision},
                             {.pipeline = 2});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->pipeline.micro_batches : 0;
  };
  EXPECT_EQ(count_of("32", "1f1b", "fp32"), 8);
  EXPECT_EQ(count_of("256", "1f1b", "fp32"), 16);
  EXPECT_EQ(count_of("256", "zb-h1", "fp32"), 8);
  EXPECT_EQ(count_of("256", "1f1b", "bf16"), 8);
  EXPECT_EQ(count_of("1024", "1f1b", "bf16"), 16);
}

// Where backward passes take longer than weight passes, lists for equal passes wait for them.
TEST(StepPlanTest, ZeroBubbleVIsPlannedForBackwardPassesLongerThanWeightPasses) {
  auto config = LoadTrainConfig(
      "",
      {"data.prefix=none", "train.precision=fp32", "model.layers=8", "model.hidden=384",
       "model.heads=6", "model.ffn=1536", "model.sequence=256", "train.global_batch=8",
       "train.micro_batch=1", "parallel.schedule=zb-v", "parallel.stages=even"},
      "tiny");
  ASSERT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 512;
  const auto plan = StepPlan::Make(*config, {.pipeline = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<topology::PassDurations> taken = plan->Durations(config->model);
  for (topology::PassDurations& chunk : taken) {
    chunk.backward *= 1.2;
    chunk.weight *= 0.8;
  }
  auto bubble = [&](const absl::StatusOr<topology::PipelineSchedule>& schedule) {
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    const auto timing = RunPipelineSchedule(plan->pipeline, *schedule, taken);
    EXPECT_TRUE(timing.ok()) << timing.status();
    return timing.ok() ? timing->bubble : 1;
  };
  EXPECT_LT(bubble(plan->MakeSchedule(config->model)), 0.07);
  EXPECT_GT(bubble(MakePipelineSchedule(plan->pipeline)), 0.1);
}

// A stage that waits has a core to give, and each micro-batch costs exchanges.
TEST(StepPlanTest, RanksThatShareCoresHaveFewMicroBatchesButOneAStage) {
  auto count_of = [](const std::vector<std::string>& more, const ParallelSizes& sizes, int ranks) {
    std::vector<std::string> settings = {
        "data.prefix=none", "train.precision=fp32", "model.layers=6",     "model.hidden=384",
        "model.heads=6",    "model.ffn=1536",       "model.sequence=256", "train.global_batch=16"};
    settings.insert(settings.end(), more.begin(), more.end());
    const absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? MicroBatchesOn(*config, sizes, ranks, /*cores=*/2) : -1;
  };
  const ParallelSizes cube{.tensor = 2, .data = 2, .pipeline = 2};
  EXPECT_EQ(count_of({}, cube, 8), 2);
  // Small layers make exchanges dear; a stage each has one nevertheless.
  EXPECT_EQ(count_of({"model.hidden=48", "model.ffn=192"}, {.tensor = 2, .pipeline = 4}, 8), 4);
  // Nothing is exchanged but between stages.
  EXPECT_EQ(count_of({}, {.data = 2, .pipeline = 4}, 8), 8);
  EXPECT_EQ(count_of({"parallel.schedule=interleaved"}, {.data = 2, .pipeline = 4}, 8) % 4, 0);
  EXPECT_EQ(count_of({}, {.tensor = 2}, 2), 0);
  EXPECT_EQ(count_of({}, {.data = 3, .pipeline = 2}, 6), 0);
}

// The output projection is as much as a good half of a layer here.
TEST(StepPlanTest, StagesAreCutInsideOfALayerWhereThatMakesThemMoreEqual) {
  const std::vector<std::string> settings = {"train.global_batch=16", "model.layers=6",
                                             "model.hidden=64", "model.sequence=32"};
  auto chunks_of = [&](const std::string& more) {
    std::vector<std::string> all = settings;
    all.push_back(more);
    const auto plan = PlanOf(all, {.pipeline = 2});
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<ModelChunk> chunks;
    for (int stage = 0; plan.ok() && stage < 2; ++stage) {
      chunks.push_back(plan->PartOf(stage, 0, 0).chunks[0]);
    }
    return chunks;
  };
  const std::vector<ModelChunk> serial = chunks_of("model.block=serial");
  ASSERT_EQ(serial.size(), 2U);
  EXPECT_EQ(serial[0].end_layer, 4);
  EXPECT_TRUE(serial[0].Has(3, BlockHalf::kAttention));
  EXPECT_FALSE(serial[0].Has(3, BlockHalf::kFeedForward));
  EXPECT_EQ(serial[1].first_layer, 3);
  EXPECT_FALSE(serial[1].Has(3, BlockHalf::kAttention));
  EXPECT_TRUE(serial[1].Has(3, BlockHalf::kFeedForward));
  // Nothing lies between the branches of a parallel block.
  const std::vector<ModelChunk> parallel = chunks_of("model.block=parallel");
  ASSERT_EQ(parallel.size(), 2U);
  EXPECT_FALSE(parallel[0].ends_halfway);
  EXPECT_FALSE(parallel[1].begins_halfway);
  EXPECT_EQ(parallel[0].end_layer, parallel[1].first_layer);
}

TEST(StepPlanTest, StagesGivenByHandMayHaveHalfLayers) {
  const std::vector<std::string> settings = {"train.global_batch=16", "model.layers=4",
                                             "parallel.stages=2.5,1.5"};
  const auto plan = PlanOf(settings, {.pipeline = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->chunk_halves, (std::vector<int64_t>{5, 3}));
  for (const auto& [stages, what] :
       {std::pair{"2.5,2.5", "their sum is 5; model.layers = 4"},
        std::pair{"2.25,1.75", "'2.25' is no number of layers or half layers"}}) {
    std::vector<std::string> wrong = settings;
    wrong.back() = std::string("parallel.stages=") + stages;
    EXPECT_THAT(std::string(PlanOf(wrong, {.pipeline = 2}).status().message()), HasSubstr(what));
  }
  std::vector<std::string> parallel = settings;
  parallel.emplace_back("model.block=parallel");
  EXPECT_THAT(std::string(PlanOf(parallel, {.pipeline = 2}).status().message()),
              HasSubstr("have no halves"));
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
