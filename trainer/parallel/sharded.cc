#include "trainer/parallel/sharded.h"

#include <utility>

#include "base/status.h"

namespace weft::train {

ShardedParameters::ShardedParameters(std::vector<ParameterSpec> parameters,
                                     std::vector<std::string> all_parameters,
                                     const ShardedOptions& options,
                                     const OptimizerConfig& optimizer, const ParallelGroups* groups,
                                     Trace* trace)
    : optimizer_(MakeOptimizer(optimizer)),
      groups_(*groups),
      store_(std::move(parameters), options, *optimizer_, groups->shard_group().rank(),
             groups->shard_group().size()),
      gradients_(&store_, groups),
      gatherer_(&store_, &groups->shard_group()),
      update_(optimizer_.get(), &store_, &gradients_, groups, std::move(all_parameters), trace) {}

std::vector<SavedSlice> ShardedParameters::Saved() const {
  return SavedSlices(store_,
                     [this](SharedBy shared) { return PlaceAmongHolders(groups_, shared); });
}

absl::Status ShardedParameters::Publish() {
  WEFT_RETURN_IF_ERROR(gatherer_.WaitAll());
  for (size_t b = store_.buckets().size(); b-- > 0;) {
    WEFT_RETURN_IF_ERROR(gatherer_.Changed(static_cast<int>(b)));
  }
  return gatherer_.Prefetch();
}

absl::Status ShardedParameters::Update(const OptimizerStep& step) {
  WEFT_RETURN_IF_ERROR(update_.Run(step, [this](int bucket) { return gatherer_.Changed(bucket); }));
  return gatherer_.Prefetch();
}

}  // namespace weft::train
