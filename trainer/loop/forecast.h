// What a run will need, by arithmetic alone: memory of a rank and the pipeline's bubble. Printed by
// weft-train --check, and at the end of a run beside what was measured.
#ifndef WEFT_TRAINER_LOOP_FORECAST_H_
#define WEFT_TRAINER_LOOP_FORECAST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/device/device.h"
#include "trainer/groups/group.h"
#include "trainer/parallel/core_share.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// The largest that a rank takes together.
struct MemoryEstimate {
  Bytes parameters;   // in the compute type, and owned values that are kept apart from them
  Bytes gradients;    // whole ones on their way, and this rank's shard
  Bytes optimizer;    // states of this rank's shard
  Bytes activations;  // kept for the backward passes that a stage holds at one time, the logits,
                      // and what the pass under way makes
  Bytes
      uneven_routing;  // what activations take more where all choices fall on this rank's experts;
                       // part of no sum here
  Bytes packed;        // copies of weights that products read (model/packed_weights.h)
  Bytes snapshots;     // of the last two steps, this rank's and, without replicas, another's
  Bytes pool;          // what a checkpoint is written from in the background; no tensor
  Bytes tensors() const;
  Bytes total() const { return tensors() + pool; }
  // With train.device = cuda: what is on the GPU. The rest is in host memory.
  Bytes on_device() const { return tensors() - snapshots; }
};

// Memory of the rank at `stage` of the pipeline and `tensor_rank` of the tensor axis.
// model.vocabulary is known. `keeps_snapshots`: the last steps stay in memory. `gemm`: what
// multiplies; null: not known before the run, and counted as our own loops.
absl::StatusOr<MemoryEstimate> EstimateMemory(const TrainConfig& config, const StepPlan& plan,
                                              int stage, int tensor_rank, bool keeps_snapshots,
                                              const GemmLibraries* gemm = nullptr);

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

// Whether the ranks of a job that has been started have place in every host's memory. All
// ranks call it together and get the same outcome, InvalidArgument with the arithmetic.
absl::Status CheckHostMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                             int tensor_rank, bool keeps_snapshots, Group& world);

// The same of the GPUs, which ranks may share: whether each has the memory that is free on its own.
absl::Status CheckDeviceMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                               int tensor_rank, int gpu, const DeviceMemory& memory, Group& world);

// The schedule of the config's pipeline as a picture; "" without a pipeline.
absl::StatusOr<std::string> DrawPipeline(const TrainConfig& config, const StepPlan& plan);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_FORECAST_H_
