// A pipeline's lists made anew, for durations of passes that are known better than when the lists
// were made: measured ones. Of the kinds of schedule zb-v alone is made for durations.
//
// List scheduling with the very durations is often longer than with others: a stage that has
// nothing else to do begins a weight pass just before an input comes. So lists are made for
// backward passes of several lengths, and the ones that are the shortest with the real durations
// are taken. For backward passes of 1 to 1.45 and weight passes of 0.75 to 1.05 forward passes,
// each chunk's within 3 %, and a last chunk with 0 to 20 % more work, that takes the bubble of the
// lists for 1.6 (trainer/parallel/step_plan.cc) from 0.042 to 0.028 with 2 stages and 8
// micro-batches, from 0.060 to 0.054 with 4 and 16, and changes little with 8 and 16 (averages of
// 40 draws; unequal stages alone cost 0.020 and 0.039 of the first two).
// Pure function; thread-safe.
#ifndef WEFT_TOPOLOGY_JOB_PIPELINE_REPLAN_H_
#define WEFT_TOPOLOGY_JOB_PIPELINE_REPLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::topology {

struct PipelineReplan {
  PipelineSchedule schedule;  // the new lists, or those that there were
  bool is_new = false;
  double bubble_before = 0;  // of the lists that there were, as a part of the makespan
  double bubble = 0;         // of `schedule`
  std::string refused;       // what the verifier found wrong with new lists; empty: nothing
};

// With durations of each chunk of the model, depth() of them. New lists pass the verifier, hold no
// more activations on any stage than `current` does, and are shorter by more than 1 %; else
// `current` stays. The same on every rank that asks with the same numbers. `kept`: as
// PlanZeroBubbleV's, in the order that `current` has. InvalidArgument, FailedPrecondition:
// `by_depth` or `current` is wrong.
absl::StatusOr<PipelineReplan> ReplanPipeline(const PipelineSpec& spec,
                                              const PipelineSchedule& current,
                                              absl::Span<const PassDurations> by_depth,
                                              absl::Span<const PipelinePass> kept = {});

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_PIPELINE_REPLAN_H_
