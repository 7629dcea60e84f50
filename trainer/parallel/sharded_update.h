// The optimizer's step on this rank's shards of the parameters.
//
// An optimizer whose rule needs norms of whole parameters (LAMB) gets them from one all-reduce over
// all ranks, however a parameter is cut over data, tensor and pipeline axes. One that needs whole
// matrices (Muon) gets them bucket by bucket: an all-gather over the ranks that share the
// parameters, and over the tensor axis; each rank computes some of the matrices, and a
// reduce-scatter brings every shard its part. Values that are kept in bf16 alone are widened block
// by block, and rounded stochastically.
//
// Used by one thread.
#ifndef WEFT_TRAINER_PARALLEL_SHARDED_UPDATE_H_
#define WEFT_TRAINER_PARALLEL_SHARDED_UPDATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/trace.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/parallel/parameter_store.h"

namespace weft::train {

class ShardedUpdate {
 public:
  // All outlive this object; `trace` may be null. `all_parameters`: names of those of the whole
  // model, the same on every rank.
  ShardedUpdate(const Optimizer* optimizer, ParameterStore* store, const GradientReducer* gradients,
                const ParallelGroups* groups, std::vector<std::string> all_parameters,
                Trace* trace);

  // Calls `changed` for each bucket once its shard is new, in the order of the next forward pass.
  absl::Status Run(const OptimizerStep& step, const std::function<absl::Status(int)>& changed);

 private:
  Stretch StretchOf(const ParameterBucket& bucket, size_t index, const OwnedSlice& slice) const;
  // Whether values are rounded to the compute type in the pass that updates them, while they are in
  // the cache; else behind it, as on a GPU.
  bool WritesAtOnce(const ParameterBucket& bucket) const;
  // Calls body(stretch, offset) with the slice's values as fp32, at once or block by block, and
  // keeps what it makes of them where `changes`.
  void OnValues(const OptimizerStep& step, size_t bucket, const OwnedSlice& slice, bool changes,
                const std::function<void(const Stretch&, int64_t)>& body);
  std::vector<OwnedSlice> Merged(const ParameterBucket& bucket) const;
  absl::Status MeasureAll(const OptimizerStep& step);
  void UpdateBucket(const OptimizerStep& step, size_t bucket);
  absl::Status UpdateMatrices(const OptimizerStep& step, size_t bucket);
  absl::StatusOr<at::Tensor> Orthogonal(const OptimizerStep& step, size_t bucket);
  absl::Status OrthogonalizeOne(const ParameterSpec& spec, at::Tensor part) const;

  const Optimizer& optimizer_;
  ParameterStore& store_;
  const GradientReducer& gradients_;
  const ParallelGroups& groups_;
  std::vector<size_t> numbers_;        // of each parameter here, among those of the whole model
  std::vector<ParameterNorms> norms_;  // of the whole model's parameters
  Trace* const trace_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_SHARDED_UPDATE_H_
