#include "trainer/forecast/memory_estimate.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/forecast/activation_memory.h"
#include "trainer/model/packed_weights.h"
#include "trainer/model/parameters.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/parallel/layout.h"

namespace weft::train {
namespace {

// Sums over the buckets of a rank.
struct BucketBytes {
  int64_t shard = 0, whole = 0;              // elements
  int64_t reduced = 0;                       // elements of sums over ranks, beside the gradients
  int64_t held = 0;                          // elements of whole parameters, at one time
  int64_t apart = 0;                         // elements of owned values beside those
  int64_t pool_whole = 0, pool_shard = 0;    // elements of the buffers of stages 2 and 3
  int64_t matrices = 0, largest_matrix = 0;  // elements; of the shard, roughly, and of the whole
  int64_t saved = 0;                         // bytes that the rank writes into a checkpoint
};

int64_t StateBytes(const TrainConfig& config, const BucketBytes& bytes) {
  const std::unique_ptr<Optimizer> optimizer = MakeOptimizer(config.optimizer);
  int64_t elements = 0;
  for (const OptimizerState& state : optimizer->states()) {
    elements += bytes.shard - (state.of_matrices ? 0 : bytes.matrices);
  }
  return 4 * elements;
}

// The bytes of a rank's buckets where `holders` ranks hold the same parameters, and `ranks` of them
// share the training state.
BucketBytes MeasureBuckets(const TrainConfig& config, const StepPlan& plan,
                           const std::vector<ParameterSpec>& specs, int holders, int ranks) {
  BucketBytes bytes;
  const int64_t width = SizeOf(config.precision);
  const bool comes_and_goes = config.zero_stage == 3 && ranks > 1;
  const std::vector<BucketLayout> layouts =
      LayOut(specs, config.bucket_bytes, width, ranks, /*by_unit=*/comes_and_goes,
             plan.PutsAllOff(config));
  int64_t largest_shard = 0;
  std::map<int, int64_t> units;
  for (const BucketLayout& layout : layouts) {
    bytes.shard += layout.shard;
    bytes.whole += layout.shard * ranks;
    largest_shard = std::max(largest_shard, layout.shard);
    const ParameterSpec& first = specs[static_cast<size_t>(layout.entries[0].parameter)];
    units[first.unit] += layout.shard * ranks;
  }
  for (const ParameterSpec& spec : specs) {
    bytes.largest_matrix = std::max(bytes.largest_matrix, spec.elements());
    if (IsBlockMatrix(spec)) bytes.matrices += spec.elements() / ranks;
    if (spec.uses > 1) units[specs.back().unit] += spec.elements();
  }
  int64_t largest_pair = 0;  // of two units in a row
  for (auto unit = units.begin(); unit != units.end(); ++unit) {
    auto next = std::next(unit);
    largest_pair = std::max(largest_pair, unit->second + (next == units.end() ? 0 : next->second));
  }
  const bool is_view = (config.master_weights ? 4 : width) == width && !comes_and_goes;
  bytes.held = comes_and_goes ? largest_pair : bytes.whole;
  bytes.apart = is_view ? 0 : bytes.shard;
  // Replicas of a shard write equal parts of it.
  bytes.saved = (4 * bytes.shard + StateBytes(config, bytes)) / (holders / ranks);
  bytes.reduced = ranks > 1 ? bytes.shard : 0;
  bytes.pool_shard = largest_shard * std::min<int64_t>(static_cast<int64_t>(layouts.size()), 3);
  bytes.pool_whole = bytes.pool_shard * ranks;
  return bytes;
}

// Fewer ranks hold an expert than hold the other parameters.
BucketBytes MeasureAll(const TrainConfig& config, const StepPlan& plan,
                       const std::vector<ParameterSpec>& specs) {
  std::vector<ParameterSpec> shared, experts;
  for (const ParameterSpec& spec : specs) (spec.is_expert ? experts : shared).push_back(spec);
  const ShardSizes ranks = ShardSizesOf(config, plan.sizes);
  const int holders = plan.sizes.data * plan.sizes.context;
  BucketBytes all = MeasureBuckets(config, plan, shared, holders, ranks.shared);
  if (experts.empty()) return all;
  const BucketBytes more =
      MeasureBuckets(config, plan, experts, holders / plan.sizes.expert, ranks.experts);
  all.shard += more.shard;
  all.whole += more.whole;
  all.reduced += more.reduced;
  all.held += more.held;
  all.apart += more.apart;
  all.largest_matrix = std::max(all.largest_matrix, more.largest_matrix);
  all.pool_whole += more.pool_whole;
  all.pool_shard += more.pool_shard;
  all.matrices += more.matrices;
  all.saved += more.saved;
  return all;
}

int64_t GradientBytes(const TrainConfig& config, const StepPlan& plan, const BucketBytes& bytes,
                      int64_t width) {
  const int64_t reduced = plan.ReducesInFp32(config) ? 4 : width;
  // A product whose gradient is kept in another type is made before it is added.
  const int64_t made = reduced != width ? bytes.largest_matrix * width : 0;
  if (config.zero_stage == 1) return (bytes.whole + bytes.reduced) * reduced + made;
  const bool accumulates = plan.pipeline.micro_batches > 1;
  const int64_t pool = bytes.pool_whole + (accumulates ? bytes.pool_shard : 0);
  return bytes.shard * (accumulates ? 4 : reduced) + pool * reduced + made;
}

}  // namespace

Bytes MemoryEstimate::tensors() const {
  return parameters + gradients + optimizer + activations + packed + snapshots;
}

absl::StatusOr<MemoryEstimate> EstimateMemory(const TrainConfig& config, const StepPlan& plan,
                                              int stage, int tensor_rank, bool keeps_snapshots,
                                              const GemmLibraries* gemm) {
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, plan.MakeSchedule(config.model));
  const ModelPart part = plan.PartOf(stage, tensor_rank, tensor_rank);
  const std::vector<ParameterSpec> specs = GptParameters(config.model, part);
  const int64_t width = SizeOf(config.precision);
  const int ranks = ShardSizesOf(config, plan.sizes).shared;
  const BucketBytes buckets = MeasureAll(config, plan, specs);

  MemoryEstimate estimate;
  const int64_t owned_width = config.master_weights ? 4 : width;
  estimate.parameters = Bytes(buckets.held * width + buckets.apart * owned_width);
  estimate.gradients = Bytes(GradientBytes(config, plan, buckets, width));
  estimate.optimizer = Bytes(StateBytes(config, buckets));
  estimate.packed = PackedBytes(config.model, part, plan.PartPacked(config), config.precision,
                                gemm != nullptr ? *gemm : KernelLibrary::kWeft);
  // Ranks with the same state. Where there are experts, those of theirs are others.
  const int replicas = config.model.HasExperts() ? 1 : plan.sizes.data * plan.sizes.context / ranks;
  if (keeps_snapshots) {
    // Replicas are taken to be on other hosts, or all ranks on one: then each keeps its own alone.
    estimate.snapshots =
        (Bytes(buckets.shard * owned_width) + estimate.optimizer) * (replicas > 1 ? 2 : 4);
  }
  if (config.checkpoint_background) estimate.pool = Bytes(buckets.saved);
  const auto& passes = schedule[static_cast<size_t>(stage)];
  estimate.activations = ActivationMemory(config, plan, part, passes, RoutingLoad::kEven);
  estimate.uneven_routing =
      ActivationMemory(config, plan, part, passes, RoutingLoad::kWorst) - estimate.activations;
  return estimate;
}

}  // namespace weft::train
