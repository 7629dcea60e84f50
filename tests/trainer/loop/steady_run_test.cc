// A run takes no more memory the longer it lasts.
#include <algorithm>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

constexpr int kSteps = 200;
// What an allocator may keep for itself between two steps; a leak of 256 KiB a step is more in the
// second half of the run.
constexpr int64_t kSlack = 16 << 20;

struct Most {
  int64_t tensors = 0, anonymous = 0;
};
Most MostOf(const std::map<int, json>& rows, int first, int last) {
  Most most;
  for (int step = first; step <= last; ++step) {
    most.tensors = std::max(most.tensors, rows.at(step)["tensor_bytes"].get<int64_t>());
    most.anonymous = std::max(most.anonymous, rows.at(step)["anonymous_bytes"].get<int64_t>());
  }
  return most;
}

TEST_F(TrainRunTest, MemoryDoesNotGrowWithTheSteps) {
  const Outcome outcome =
      Run(2, "steady",
          {"train.steps=" + std::to_string(kSteps), "parallel.pipeline=2", "train.micro_batch=2",
           "checkpoint.every=0", "sample.tokens=0", "train.peak_tflops=0"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const std::map<int, json> rows = Metrics("steady");
  ASSERT_EQ(rows.size(), static_cast<size_t>(kSteps));
  const Most first = MostOf(rows, 20, kSteps / 2), second = MostOf(rows, kSteps / 2 + 1, kSteps);
  EXPECT_GT(first.tensors, 0);
  EXPECT_GT(first.anonymous, first.tensors);
  EXPECT_LE(second.tensors, first.tensors + (1 << 20));
  EXPECT_LE(second.anonymous, first.anonymous + kSlack);
}

// Activations of some MiB each, so that none is malloc's.
TEST_F(TrainRunTest, ASteadyStepAsksTheKernelForNoMemory) {
  for (const char* precision : {"train.precision=fp32", "train.precision=bf16"}) {
    const std::string name = std::string("kept_") + (precision + sizeof("train.precision=") - 1);
    const Outcome outcome =
        Run(1, name,
            {precision, "train.steps=14", "train.global_batch=32", "train.micro_batch=16",
             "model.sequence=128", "model.hidden=128", "train.threads=1", "validation.every=0",
             "checkpoint.every=0", "sample.tokens=0", "log.trace_steps=0", "train.peak_tflops=0"});
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    std::map<int, json> rows = Metrics(name);
    EXPECT_GT(rows[14]["tensor_bytes"], 1 << 20);
    int64_t faults = 0;
    for (int step = 5; step <= 14; ++step) {
      EXPECT_EQ(rows[step]["memory_mappings"], 0) << precision << " step " << step;
      faults += rows[step]["page_faults"].get<int64_t>();
    }
    EXPECT_LE(faults, 60) << precision << ": in ten steps";
  }
}

}  // namespace
}  // namespace weft::train
