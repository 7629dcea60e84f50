// What a step of this rank waited for: communication, by axis, and the pipeline's schedule
// (parallel/pipeline_bubble.h).
#ifndef WEFT_TRAINER_LOOP_STEP_WAITS_H_
#define WEFT_TRAINER_LOOP_STEP_WAITS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/trace.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/step_result.h"
#include "trainer/parallel/pipeline_bubble.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// In each step Begin, SendPassTimes and Account are called in this order, by all ranks. Used by one
// thread.
class StepWaits {
 public:
  // All of it outlives this object; `trace` may be null.
  StepWaits(const StepPlan& plan, const topology::PipelineSchedule& schedule,
            ParallelGroups* groups, Trace* trace)
      : plan_(plan), schedule_(schedule), groups_(groups), trace_(trace) {}

  // What was waited for until now is no part of the step.
  void Begin() { TakeExposed(); }
  // After the passes, for the bubble: sends the durations of this stage's passes to the other
  // stages, and returns while they are on their way. `times` live until Account returns. Does
  // nothing where `on_gpu` (a host's times are those of launches), or without a pipeline.
  absl::Status SendPassTimes(absl::Span<const PassTime> times, bool on_gpu);
  // Sets `exposed` and `bubble` of the result of `step`, and records the bubble in the trace.
  absl::Status Account(int64_t step, StepResult& result);

 private:
  ExposedSeconds TakeExposed();
  // Moves from `exposed` to the result what the schedule has made this rank wait for.
  absl::StatusOr<StepResult::Bubble> TakeBubble(int64_t step, ExposedSeconds& exposed);

  const StepPlan& plan_;
  const topology::PipelineSchedule& schedule_;
  ParallelGroups* const groups_;
  Trace* const trace_;
  absl::Span<const PassTime> times_;  // of the step under way
  at::Tensor pass_seconds_;           // [stages, passes], double: the others' are 0 until Wait
  std::optional<Pending> under_way_;  // of pass_seconds_
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_STEP_WAITS_H_
