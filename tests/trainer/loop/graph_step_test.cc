// Steps whose passes go through PassGraphs have the losses and gradients of those that do not, to
// the bit, over every layout that may have graphs. The device plays: a launch runs the pass again,
// on the tensors that its graph would read.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/collectives/job.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/step.h"

namespace weft::train {
namespace {

constexpr int kSteps = 7;

class Again final : public GraphDevice {
 public:
  explicit Again(int* launches, bool fails) : launches_(*launches), fails_(fails) {}
  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
      uint64_t /*pool*/, const std::function<absl::Status()>& body) override {
    const absl::Status status = body();
    if (!status.ok()) return status;
    if (fails_ && ++captures_ == 2) return absl::InternalError("not permitted in a capture");
    return std::make_unique<Graph>(body, &launches_);
  }

 private:
  struct Graph final : DeviceGraph {
    Graph(std::function<absl::Status()> the_body, int* count)
        : body(std::move(the_body)), launches(*count) {}
    absl::Status Launch() override {
      ++launches;
      return body();
    }
    const std::function<absl::Status()> body;
    int& launches;
  };
  int& launches_;
  const bool fails_;
  int captures_ = 0;
};

enum class Graphs { kNone, kAll, kFail };

struct Case {
  const char* name;
  int ranks = 1;
  int launches = 0;  // of a rank in a step
  std::vector<std::string> settings;
};

class GraphStepTest : public ::testing::TestWithParam<Case> {
 protected:
  static TrainConfig ConfigOf() {
    std::vector<std::string> settings = {"model.layers=2",
                                         "model.hidden=32",
                                         "model.heads=4",
                                         "model.sequence=16",
                                         "train.global_batch=8",
                                         "train.precision=fp32",
                                         "optimizer.warmup_steps=0",
                                         "optimizer.learning_rate=1e-2",
                                         "parallel.bucket_bytes=8KiB"};
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 61;
    return *config;
  }

  // Losses and gradient norms of all steps.
  static std::vector<double> Train(const TrainConfig& config, ParallelGroups& groups,
                                   Graphs graphs) {
    at::set_num_threads(1);
    std::vector<double> numbers;
    int launches = 0;
    const auto stepper = Stepper::Create(config, &groups, nullptr);
    EXPECT_TRUE(stepper.ok()) << stepper.status();
    if (!stepper.ok()) return numbers;
    EXPECT_TRUE((*stepper)->Initialize().ok());
    EXPECT_TRUE((*stepper)->parameters().Publish().ok());
    if (graphs != Graphs::kNone) {
      (*stepper)->SetGraphs(std::make_unique<Again>(&launches, graphs == Graphs::kFail));
    }
    const int64_t rows = (*stepper)->plan().local_rows;
    for (int64_t step = 1; step <= kSteps; ++step) {
      Batch batch;
      batch.rows = rows;
      batch.columns = config.model.sequence + 1;
      for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
        const int64_t at = i + groups.replica * batch.rows * batch.columns;
        batch.tokens.push_back((at * at + 7 * at + step) % config.model.vocabulary);
      }
      const absl::StatusOr<StepResult> result = (*stepper)->Step(step, batch, false);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) {
        groups.Fail(result.status());
        return numbers;
      }
      numbers.push_back(result->loss);
      numbers.push_back(result->gradient_norm);
    }
    EXPECT_EQ(launches, graphs == Graphs::kAll
                            ? (kSteps - PassGraphs::kWarmUpSteps) * GetParam().launches
                            : 0);
    return numbers;
  }

  // The numbers of each rank.
  static std::vector<std::vector<double>> TrainAll(const TrainConfig& config, Graphs graphs) {
    std::vector<std::vector<double>> numbers(static_cast<size_t>(GetParam().ranks));
    if (GetParam().ranks == 1) {
      ParallelGroups alone = ParallelGroups::Alone();
      numbers[0] = Train(config, alone, graphs);
      return numbers;
    }
    collectives::RunRanks(
        GetParam().ranks, {"collective.timeout=60s"},
        [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
          absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(config, endpoint);
          ASSERT_TRUE(groups.ok()) << groups.status();
          numbers[static_cast<size_t>(groups->world->rank())] = Train(config, *groups, graphs);
        });
    return numbers;
  }
};

TEST_P(GraphStepTest, HasTheNumbersOfStepsWithoutGraphs) {
  const TrainConfig config = ConfigOf();
  const std::vector<std::vector<double>> plain = TrainAll(config, Graphs::kNone);
  for (const std::vector<double>& of_rank : plain) ASSERT_EQ(of_rank.size(), 2U * kSteps);
  EXPECT_EQ(TrainAll(config, Graphs::kAll), plain);
  // The step at which a capture failed, too.
  EXPECT_EQ(TrainAll(config, Graphs::kFail), plain);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GraphStepTest,
    ::testing::Values(
        Case{"OneMicroBatch", 1, 2, {}}, Case{"FourMicroBatches", 1, 8, {"train.micro_batch=2"}},
        Case{"Bf16", 1, 8, {"train.micro_batch=2", "train.precision=bf16"}},
        Case{"Llama", 1, 8, {"train.micro_batch=2", "model.style=llama", "model.kv_heads=2"}},
        Case{"LossInChunks", 1, 4, {"train.micro_batch=4", "train.loss_rows=16"}},
        // Two of four micro-batches wait for the other rank.
        Case{"Data", 2, 4, {"train.micro_batch=1"}},
        Case{"DataUnsharded", 2, 4, {"train.micro_batch=1", "parallel.zero=0"}},
        Case{"Pipeline", 2, 16, {"train.micro_batch=1", "parallel.pipeline=2"}},
        Case{"Gpipe",
             2,
             8,
             {"train.micro_batch=2", "parallel.pipeline=2", "parallel.schedule=gpipe"}},
        Case{"Interleaved",
             2,
             16,
             {"model.layers=4", "train.micro_batch=2", "parallel.pipeline=2",
              "parallel.schedule=interleaved", "parallel.chunks=2"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace weft::train
