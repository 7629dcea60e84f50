// The end of a run, when its steps are done or it was stopped: waits for what is under way in the
// background, and writes what a run leaves in its folder beside checkpoints and metrics: time line,
// sample text, the model, the summary.
#ifndef WEFT_TRAINER_LOOP_RUN_END_H_
#define WEFT_TRAINER_LOOP_RUN_END_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/kernel_choice/kernel_choice.h"
#include "trainer/loop/checkpoint_saver.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/metrics_log.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/step.h"
#include "trainer/loop/step_account.h"
#include "trainer/loop/step_trace.h"
#include "trainer/loop/summary.h"

namespace weft::train {

// What the run has then.
struct EndedRun {
  const std::string& run_dir;
  const TrainConfig& config;
  const at::Device device;
  Group& group;  // everybody
  Stepper& stepper;
  const RunData& data;
  RunCheckpoints& checkpoints;
  const CheckpointSaver& saver;
  const StepAccount& account;
  const MemoryUse& memory;
  const KernelChoice& gemm;
  StepTrace* trace = nullptr;     // not null where log.trace_steps > 0
  MetricsLog* metrics = nullptr;  // this and the next: on rank 0; else null
  Progress* progress = nullptr;
  int64_t step = 0;      // the last that was done
  bool stopped = false;  // before the last step of the config: then there is no model to export
  bool has_snapshots = false;
  // After the last step. Called where the run was not stopped, by all ranks together.
  std::function<absl::StatusOr<ValidationLoss>()> validation;
};

// Called by all ranks together. The files that could not be written, each with the reason, the same
// on all ranks. An error: the group failed, or the validation loss could not be computed.
absl::StatusOr<std::vector<std::string>> EndRun(const EndedRun& run);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RUN_END_H_
