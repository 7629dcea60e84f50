// What a run will need, by arithmetic alone: memory of a rank and the pipeline's bubble. Printed by
// weft-train --check, and at the end of a run beside what was measured.
#ifndef WEFT_TRAINER_LOOP_FORECAST_H_
#define WEFT_TRAINER_LOOP_FORECAST_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/loop/step.h"

namespace weft {

struct MemoryEstimate {
  Bytes parameters;   // in the compute type
  Bytes gradients;    // whole, before they are reduced
  Bytes optimizer;    // this rank's shard: moments, and master values where they are others
  Bytes activations;  // kept for the backward passes that a stage holds at one time, and the logits
  Bytes total() const;
};

// Memory of the rank at `stage` of the pipeline and `tensor_rank` of the tensor axis.
// model.vocabulary is known.
absl::StatusOr<MemoryEstimate> EstimateMemory(const TrainConfig& config, const StepPlan& plan,
                                              int stage, int tensor_rank);

// Several lines for people: layout, micro-batches, bubble, memory of each stage. InvalidArgument
// where the layout cannot be, with the arithmetic.
absl::StatusOr<std::string> DescribeRun(const TrainConfig& config, int ranks);

// The schedule of the config's pipeline as a picture; "" without a pipeline.
absl::StatusOr<std::string> DrawPipeline(const StepPlan& plan);

// Memory of this process, from the kernel; 0 where /proc does not say.
Bytes ResidentMemory();      // now
Bytes PeakResidentMemory();  // the most so far

}  // namespace weft

#endif  // WEFT_TRAINER_LOOP_FORECAST_H_
