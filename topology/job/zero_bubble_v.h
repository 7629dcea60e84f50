// The lists of zb-v (Qi et al., 2024, "Pipeline parallelism with controllable memory", section 3)
// by list scheduling, with the paper's limit of activations held but not from the paper's tables.
//
// A stage that is free runs a backward pass if one is ready (chunk 0 first: it frees what has been
// held longest), else a forward pass (chunk 1 first) while it holds fewer than 2p activations of a
// chunk, which is 1f1b's memory, else a weight pass. Chunk 0 has all but one of the 2p at most:
// with all of them a stage would have no room for the forward pass of chunk 1 that must run before
// any backward pass. The passes of one kind on one chunk are in the order of micro-batches.
// Pure function; thread-safe.
#ifndef WEFT_TOPOLOGY_JOB_ZERO_BUBBLE_V_H_
#define WEFT_TOPOLOGY_JOB_ZERO_BUBBLE_V_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::topology {

// `spec` is one that MakePipelineSchedule takes, `by_depth` one that CheckDurations does. `kept`:
// passes of stage 0 that run in this order; it has all passes of a kind on a chunk or none of them.
// FailedPrecondition where they cannot, as far as list scheduling finds; never without `kept`.
absl::StatusOr<PipelineSchedule> PlanZeroBubbleV(const PipelineSpec& spec,
                                                 absl::Span<const PassDurations> by_depth,
                                                 absl::Span<const PipelinePass> kept = {});

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_ZERO_BUBBLE_V_H_
