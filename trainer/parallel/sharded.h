// This rank's part of the training state, and one step of it: what the parts do together.
//
//   forward pass     Enter(u) before unit u, Leave(u) behind it (parameter_gatherer.h)
//   backward pass    gradients() takes them (gradient_reducer.h)
//   FinishGradients  each rank holds its shard of the averages
//   Update           the optimizer on the shards (sharded_update.h); what is new is gathered
//
// The memory of it all is parameter_store.h. Used by one thread. The first failure of a collective
// is kept and returned by the next call. The groups count and trace the time that is spent blocked.
#ifndef WEFT_TRAINER_PARALLEL_SHARDED_H_
#define WEFT_TRAINER_PARALLEL_SHARDED_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/trace.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/model/parameters.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/parallel/parameter_gatherer.h"
#include "trainer/parallel/parameter_store.h"
#include "trainer/parallel/saved_share.h"
#include "trainer/parallel/sharded_update.h"

namespace weft::train {

class ShardedParameters {
 public:
  // `groups` and `trace` (may be null) must outlive this object. `all_parameters`: names of those
  // of the whole model. Parameters are uninitialised until Publish.
  ShardedParameters(std::vector<ParameterSpec> parameters, std::vector<std::string> all_parameters,
                    const ShardedOptions& options, const OptimizerConfig& optimizer,
                    const ParallelGroups* groups, Trace* trace);

  const Optimizer& optimizer() const { return *optimizer_; }
  // Its slices' values are to be filled before Publish, and to be saved.
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  GradientReducer& gradients() { return gradients_; }
  ParameterGatherer& gatherer() { return gatherer_; }
  const ParameterGatherer& gatherer() const { return gatherer_; }
  // What this rank writes into a checkpoint: its share of what other ranks hold as well.
  std::vector<SavedSlice> Saved() const;

  // Owned values -> parameters of every rank.
  absl::Status Publish();
  // `step.gradient_scale` contains the clipping.
  absl::Status Update(const OptimizerStep& step);

 private:
  const std::unique_ptr<Optimizer> optimizer_;
  const ParallelGroups& groups_;
  ParameterStore store_;
  GradientReducer gradients_;
  ParameterGatherer gatherer_;
  ShardedUpdate update_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_SHARDED_H_
