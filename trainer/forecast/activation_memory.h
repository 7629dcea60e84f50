// What the passes of a pipeline stage keep and make, by arithmetic: no tensor is made.
#ifndef WEFT_TRAINER_FORECAST_ACTIVATION_MEMORY_H_
#define WEFT_TRAINER_FORECAST_ACTIVATION_MEMORY_H_

#include <cstdint>

#include "absl/types/span.h"
#include "base/units.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/config.h"
#include "trainer/model/parameters.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// How the tokens' choices fall on experts: the same number on each; or as many as can on those of
// one rank, up to the capacity where there is one.
enum class RoutingLoad : uint8_t { kEven, kWorst };

// The most bytes that a rank holds at one time for `passes`, in their order: activations kept for
// backward passes, the logits, what the pass under way makes, and messages to and from neighbouring
// stages. `part`: the rank's part of the model, whose chunks the passes count. model.vocabulary is
// known.
Bytes ActivationMemory(const TrainConfig& config, const StepPlan& plan, const ModelPart& part,
                       absl::Span<const topology::PipelinePass> passes, RoutingLoad load);

}  // namespace weft::train

#endif  // WEFT_TRAINER_FORECAST_ACTIVATION_MEMORY_H_
