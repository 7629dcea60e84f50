// Steps over a tensor axis that does not divide the vocabulary, whose ranks hold more and fewer
// tokens of it: the losses are those of one rank. Steps of a pipeline whose lists of passes change
// on the way. Jobs are threads of this process.
#include "trainer/loop/step.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/job.h"
#include "topology/job/pipeline_replan.h"
#include "trainer/config.h"
#include "trainer/data/batch_loader.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/parallel/schedule_replan.h"

namespace weft::train {
namespace {

Batch BatchOf(const TrainConfig& config, int64_t step) {
  Batch batch;
  batch.rows = config.global_batch;
  batch.columns = config.model.sequence + 1;
  for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
    batch.tokens.push_back((i * i + 7 * i + step) % config.model.vocabulary);
  }
  return batch;
}

// The losses of the first steps, as one rank of the job knows them. `before`: called before each
// step.
std::vector<double> LossesOf(
    const TrainConfig& config, ParallelGroups& groups, int64_t steps,
    const std::function<void(Stepper&, int64_t step)>& before = [](Stepper&, int64_t) {}) {
  std::vector<double> losses;
  at::set_num_threads(1);
  const auto stepper = Stepper::Create(config, &groups, nullptr);
  EXPECT_TRUE(stepper.ok()) << stepper.status();
  if (!stepper.ok()) return losses;
  EXPECT_TRUE((*stepper)->Initialize().ok());
  EXPECT_TRUE((*stepper)->parameters().Publish().ok());
  for (int64_t step = 1; step <= steps; ++step) {
    before(**stepper, step);
    const absl::StatusOr<StepResult> result = (*stepper)->Step(step, BatchOf(config, step), false);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) {
      groups.Fail(result.status());
      return losses;
    }
    losses.push_back(result->loss);
  }
  return losses;
}

struct UnevenCase {
  const char* name;
  int64_t vocabulary;
  std::vector<std::string> settings;
};

class UnevenVocabularyTest : public ::testing::TestWithParam<UnevenCase> {
 protected:
  static TrainConfig ConfigOf(int tensor) {
    std::vector<std::string> settings = {"model.heads=2", "train.precision=fp32",
                                         "optimizer.warmup_steps=0", "optimizer.learning_rate=1e-3",
                                         "parallel.tensor=" + std::to_string(tensor)};
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = GetParam().vocabulary;
    return *config;
  }
};

TEST_P(UnevenVocabularyTest, HasTheLossesOfOneRank) {
  ParallelGroups alone = ParallelGroups::Alone();
  const std::vector<double> one = LossesOf(ConfigOf(1), alone, 3);
  ASSERT_EQ(one.size(), 3U);
  collectives::RunRanks(
      2, {"collective.timeout=60s"}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
        const TrainConfig config = ConfigOf(2);
        absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(config, endpoint);
        ASSERT_TRUE(groups.ok()) << groups.status();
        const std::vector<double> cut = LossesOf(config, *groups, 3);
        ASSERT_EQ(cut.size(), one.size());
        for (size_t step = 0; step < one.size(); ++step) {
          EXPECT_NEAR(cut[step], one[step], 1e-4) << "step " << step + 1;
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, UnevenVocabularyTest,
    ::testing::Values(
        // Logits of 2,048 rows: with 2,048 tokens they are made at one time, with 2,049 in two.
        UnevenCase{"ChunksOfTheLoss",
                   4097,
                   {"model.layers=1", "model.hidden=16", "model.ffn=32", "model.sequence=256",
                    "train.global_batch=16"}},
        // Buckets that close one matrix later with 38 tokens than with 39, were these in them.
        UnevenCase{"BucketsOfMatrices",
                   77,
                   {"model.layers=2", "model.hidden=32", "model.ffn=40", "model.sequence=8",
                    "train.global_batch=4", "model.tied=false", "optimizer.name=muon",
                    "parallel.bucket_bytes=10KiB"}}),
    [](const auto& test) { return test.param.name; });

// Lists for passes that took other times, from the second step on.
class NewListsTest : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  static std::vector<double> Train(bool replans) {
    std::vector<std::string> settings = {"model.heads=2",
                                         "train.precision=fp32",
                                         "model.layers=4",
                                         "model.hidden=16",
                                         "model.ffn=64",
                                         "model.sequence=16",
                                         "train.global_batch=8",
                                         "train.micro_batch=1",
                                         "optimizer.warmup_steps=0",
                                         "optimizer.learning_rate=1e-2",
                                         "parallel.pipeline=2",
                                         "parallel.schedule=zb-v",
                                         "parallel.stages=even"};
    settings.insert(settings.end(), GetParam().begin(), GetParam().end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 64;
    std::vector<double> losses;
    collectives::RunRanks(
        2, {"collective.timeout=60s"}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
          absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(*config, endpoint);
          ASSERT_TRUE(groups.ok()) << groups.status();
          const std::vector<double> own =
              LossesOf(*config, *groups, 4, [&](Stepper& stepper, int64_t step) {
                if (step == 2 && replans) TakeNewLists(*config, stepper);
              });
          if (groups->world->rank() == 0) losses = own;
        });
    return losses;
  }

 private:
  // As ranks do that measured backward passes of three forward passes.
  static void TakeNewLists(const TrainConfig& config, Stepper& stepper) {
    const topology::PipelineSpec& spec = stepper.plan().pipeline;
    const std::vector<topology::PassDurations> measured(static_cast<size_t>(spec.depth()),
                                                        {.backward = 3});
    const auto replan = ReplanPipeline(spec, stepper.schedule(), measured,
                                       OrderOfTiedGradients(config, spec, stepper.schedule()));
    ASSERT_TRUE(replan.ok()) << replan.status();
    EXPECT_TRUE(replan->is_new);
    const absl::Status taken = stepper.SetSchedule(replan->schedule);
    EXPECT_TRUE(taken.ok()) << taken;
    // Lists of another pipeline are refused, and those that there are stay.
    EXPECT_FALSE(stepper.SetSchedule({}).ok());
    EXPECT_EQ(stepper.schedule(), replan->schedule);
  }
};

TEST_P(NewListsTest, GiveTheLossesOfTheFirstOnesToTheBit) {
  const std::vector<double> first = Train(/*replans=*/false), replanned = Train(/*replans=*/true);
  ASSERT_EQ(first.size(), 4U);
  ASSERT_EQ(replanned.size(), 4U);
  for (size_t step = 0; step < first.size(); ++step) {
    EXPECT_EQ(replanned[step], first[step]) << "step " << step + 1;
  }
}

using Settings = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(ScheduleReplan, NewListsTest,
                         ::testing::Values(Settings{"model.tied=true"},
                                           Settings{"model.tied=true", "parallel.zero=2"},
                                           Settings{"model.tied=false"},
                                           Settings{"model.tied=true", "train.recompute=full"}));

}  // namespace
}  // namespace weft::train
