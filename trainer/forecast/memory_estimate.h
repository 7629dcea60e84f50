// The memory of a rank by arithmetic, before any of it is taken.
#ifndef WEFT_TRAINER_FORECAST_MEMORY_ESTIMATE_H_
#define WEFT_TRAINER_FORECAST_MEMORY_ESTIMATE_H_

#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/model/product.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// The most that a rank holds at one time, by what it is for.
struct MemoryEstimate {
  Bytes parameters;   // in the compute type, and owned values that are kept apart from them
  Bytes gradients;    // those that are being reduced, whole, and this rank's shard
  Bytes optimizer;    // states of this rank's shard
  Bytes activations;  // and what passes make (activation_memory.h)
  // What activations take beyond that where all choices fall on this rank's experts; no part of the
  // sums below.
  Bytes uneven_routing;
  Bytes packed;     // copies of weights that products read (model/packed_weights.h)
  Bytes snapshots;  // of the last two steps, this rank's and, without replicas, another's
  Bytes pool;       // what a checkpoint is written from in the background; no tensor
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

}  // namespace weft::train

#endif  // WEFT_TRAINER_FORECAST_MEMORY_ESTIMATE_H_
