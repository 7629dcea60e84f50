// What a finished run tells its user: loss, speed, what was waited for, memory, and where all of it
// lies. On standard error; rank 0 prints.
#ifndef WEFT_TRAINER_LOOP_SUMMARY_H_
#define WEFT_TRAINER_LOOP_SUMMARY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/checkpoint_saver.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/step_account.h"
#include "trainer/loop/step_result.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// What a rank's memory grows by while it trains, beside what was expected.
class MemoryUse {
 public:
  MemoryUse(const TrainConfig& config, const ParallelGroups& groups, at::Device device,
            bool snapshots)
      : config_(config), groups_(groups), device_(device), snapshots_(snapshots) {}

  // Before any rank takes the memory: InvalidArgument, on all ranks, with the arithmetic, where
  // the run does not fit.
  absl::Status Check() const;
  void Begin();  // just before the model is made
  // A line a rank; all ranks call it together, after the last step.
  absl::StatusOr<std::vector<std::string>> Report(const StepPlan& plan,
                                                  const GemmLibraries& gemm) const;

 private:
  const TrainConfig& config_;
  const ParallelGroups& groups_;
  const at::Device device_;
  const bool snapshots_;
  Bytes resident_before_, tensors_before_;
};

struct RunSummary {
  std::string run_dir;
  std::string sample;  // text that the model wrote; may be empty
  ValidationLoss validation;
  double unigram_loss = 0;  // nats a token
  int64_t tokens_per_step = 0;
  RunTotals totals;
  bool has_snapshots = false;
  std::string pipeline;  // the schedule's name; empty: there is no pipeline, or a GPU runs it
  std::vector<std::string> memory;  // MemoryUse::Report
};

void PrintSummary(const RunSummary& summary, const CheckpointSaver& saver,
                  const RunCheckpoints& checkpoints);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SUMMARY_H_
