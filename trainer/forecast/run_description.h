// What a run will be, for people, by arithmetic alone: weft-train --check prints it.
#ifndef WEFT_TRAINER_FORECAST_RUN_DESCRIPTION_H_
#define WEFT_TRAINER_FORECAST_RUN_DESCRIPTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/parallel/core_share.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// Several lines for people: layout, micro-batches, bubble, work and memory of each stage.
// InvalidArgument where the layout cannot be, or `ranks_per_host` of its ranks have no place in a
// host's memory, or one of them none on its GPU, with the arithmetic.
// With train.device = cuda, a rank has a GPU of `gpu_memory`, 0: of a size that is not known.
// `cores` of a host; 0: they are not known, and decide nothing. `as_run` (may be null): the config
// with what the run would choose by the cores and the memory.
absl::StatusOr<std::string> DescribeRun(const TrainConfig& given, int ranks, int ranks_per_host,
                                        bool keeps_snapshots, Bytes gpu_memory = Bytes(0),
                                        int cores = 0, TrainConfig* as_run = nullptr);
// How a job of `ranks` ranks shares the `cores` cores of its hosts; `ranks_per_host` 0: one host.
CoreShare ForecastShare(const TrainConfig& config, int ranks, int ranks_per_host, int cores);

// The schedule of the config's pipeline as a picture; "" without a pipeline.
absl::StatusOr<std::string> DrawPipeline(const TrainConfig& config, const StepPlan& plan);

}  // namespace weft::train

#endif  // WEFT_TRAINER_FORECAST_RUN_DESCRIPTION_H_
