// Arithmetic alone.
#include "trainer/parallel/step_plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "trainer/data/batch_loader.h"
#include "trainer/model/gpt.h"

namespace weft::train {
namespace {

// The number of micro-batches where the config leaves it open: one without a pipeline; else the
// most that divides the samples and is no more than four a stage, for a bubble of a fifth or less.
// Ranks of a tensor axis have equally many of a micro-batch's tokens.
int DefaultMicroBatches(const TrainConfig& config, const StepPlan& plan) {
  const int stages = plan.sizes.pipeline;
  if (stages == 1) return 1;
  const int64_t unit =
      config.pipeline_schedule == topology::PipelineScheduleKind::kInterleaved ? stages : 1;
  const int64_t rows = plan.local_rows, tokens = plan.TokensHeld(config.model.sequence);
  for (int64_t count = 4 * int64_t{stages}; count > 1; --count) {
    if (rows % count != 0 || count % unit != 0) continue;
    if (rows / count * tokens % plan.sizes.tensor == 0) return static_cast<int>(count);
  }
  return 1;
}

// FLOPs of the model's end (its output projection), over those of a layer.
double EndCost(ModelConfig model) {
  model.layers = 0;
  const double end = TrainingFlopsPerToken(model);
  model.layers = 1;
  return end / (TrainingFlopsPerToken(model) - end);
}

absl::StatusOr<std::vector<int64_t>> ChunkLayers(const TrainConfig& config,
                                                 const topology::PipelineSpec& spec) {
  const ModelConfig& model = config.model;
  if (config.pipeline_stages == "auto") return BalanceLayers(spec, model.layers, EndCost(model));
  if (config.pipeline_stages == "even") return BalanceLayers(spec, model.layers, 0);
  auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.stages = ", config.pipeline_stages, ": ", what));
  };
  std::vector<int64_t> layers;
  int64_t sum = 0;
  for (absl::string_view text : absl::StrSplit(config.pipeline_stages, ',')) {
    if (!absl::SimpleAtoi(text, &layers.emplace_back()) || layers.back() < 1) {
      return refuse(absl::StrCat("'", text, "' is no number of layers, 1 or more"));
    }
    sum += layers.back();
  }
  if (static_cast<int>(layers.size()) != spec.depth()) {
    return refuse(absl::StrCat(layers.size(), " numbers; ", spec.stages, " stages x ", spec.chunks,
                               " chunks need ", spec.depth()));
  }
  if (sum != model.layers) {
    return refuse(absl::StrCat("their sum is ", sum, "; model.layers = ", model.layers));
  }
  return layers;
}

}  // namespace

absl::StatusOr<StepPlan> StepPlan::Make(const TrainConfig& config, const ParallelSizes& sizes) {
  StepPlan plan{.sizes = sizes};
  if (config.model.vocabulary < sizes.tensor) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.tensor = ", sizes.tensor,
                                                   " ranks cannot share a vocabulary of ",
                                                   config.model.vocabulary, " tokens"));
  }
  if (config.global_batch % sizes.data != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.global_batch = ", config.global_batch, " must be a multiple of the ",
                     sizes.data, " data-parallel ranks (tensor ", sizes.tensor, " x context ",
                     sizes.context, " x data ", sizes.data, " x pipeline ", sizes.pipeline, ")"));
  }
  plan.local_rows = config.global_batch / sizes.data;
  WEFT_RETURN_IF_ERROR(CheckBatchFits(plan.local_rows, config.model.sequence));
  const int64_t count = config.micro_batch == 0
                            ? DefaultMicroBatches(config, plan)
                            : plan.local_rows / std::min(plan.local_rows, config.micro_batch);
  plan.micro_rows = plan.local_rows / count;
  if (plan.micro_rows * count != plan.local_rows ||
      (config.micro_batch > 0 &&
       plan.micro_rows != std::min(plan.local_rows, config.micro_batch))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "each of ", sizes.data, " data-parallel ranks has ", plan.local_rows,
        " samples a step, which must be a multiple of train.micro_batch = ", config.micro_batch));
  }
  const int64_t rows = plan.micro_rows * plan.TokensHeld(config.model.sequence);
  if (rows % sizes.tensor != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch has ", plan.micro_rows, " x ", config.model.sequence, " / ", sizes.context,
        " = ", rows,
        " tokens on a rank of the context axis, which must be a multiple of parallel.tensor = ",
        sizes.tensor));
  }
  plan.pipeline = {.kind = config.pipeline_schedule,
                   .stages = sizes.pipeline,
                   .chunks = config.pipeline_chunks,
                   .micro_batches = static_cast<int>(count)};
  WEFT_ASSIGN_OR_RETURN(plan.chunk_layers, ChunkLayers(config, plan.pipeline));
  if (SplitsBackward(plan.pipeline.kind) && config.zero_stage >= 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.schedule = ", ToString(plan.pipeline.kind),
                     " puts gradients of weights off across micro-batches, and parallel.zero = ",
                     config.zero_stage, " reduces them with each; parallel.zero = 1 is right"));
  }
  return plan;
}

bool StepPlan::ReducesInFp32(const TrainConfig& config) const {
  return config.reduce_precision == ReducePrecision::kFp32 ||
         (config.reduce_precision == ReducePrecision::kAuto && pipeline.micro_batches > 1);
}

ModelPart StepPlan::PartOf(int stage, int tensor_rank, int expert_rank) const {
  ModelPart part{.tensor_rank = tensor_rank,
                 .tensor_size = sizes.tensor,
                 .expert_rank = expert_rank,
                 .expert_size = sizes.tensor * sizes.expert};
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    const int depth = DepthOf(pipeline, stage, chunk);
    const auto here = chunk_layers.begin() + depth;
    const int64_t first = std::accumulate(chunk_layers.begin(), here, int64_t{0});
    part.chunks.push_back({first, first + *here, depth == 0, depth == pipeline.depth() - 1});
  }
  return part;
}

PackedPart StepPlan::PartPacked(const TrainConfig& config) const {
  // Stage 3 does without memory for whole weights between their passes.
  if (!config.pack_weights || config.device != DeviceKind::kCpu || config.zero_stage == 3 ||
      config.gemm == KernelLibrary::kAten || config.gemm == KernelLibrary::kOneDnn ||
      config.precision == Precision::kFp16) {
    return PackedPart::kNone;
  }
  // Packing takes a part of a product that falls with the rows. Of a whole step it was 2.5 % with
  // 256 rows and 1.5 % with 512 (docs/benchmarks/train.md): with more it is not worth the memory.
  constexpr int64_t kRowsMost = 512;
  const int64_t rows = micro_rows * TokensHeld(config.model.sequence);
  if (pipeline.micro_batches > 1 && rows <= kRowsMost) return PackedPart::kAll;
  const int64_t width = config.precision == Precision::kFp32 ? 4 : 2;
  const int64_t at_once = LossRows(rows, config.model.vocabulary / sizes.tensor, width,
                                   config.loss_rows, /*on_gpu=*/false);
  return at_once < rows && at_once <= kRowsMost ? PackedPart::kHead : PackedPart::kNone;
}

std::vector<double> StepPlan::ChunkCosts(const ModelConfig& model) const {
  std::vector<double> costs(chunk_layers.begin(), chunk_layers.end());
  costs.back() += EndCost(model);
  return costs;
}

std::vector<topology::PassDurations> StepPlan::Durations(const ModelConfig& model) const {
  std::vector<topology::PassDurations> durations;
  for (double cost : ChunkCosts(model)) {
    durations.push_back({.forward = cost,
                         .backward = SplitsBackward(pipeline.kind) ? cost : 2 * cost,
                         .weight = cost});
  }
  return durations;
}

}  // namespace weft::train
