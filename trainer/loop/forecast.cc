#include "trainer/loop/forecast.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "trainer/model/parameters.h"

namespace weft {
namespace {

// The pipeline with stages of equal durations: backward passes take twice as long as forward
// passes, the halves of a split one as long.
absl::StatusOr<topology::PipelineTiming> TimePipeline(const topology::PipelineSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, MakePipelineSchedule(spec));
  return RunPipelineSchedule(spec, schedule, {.backward = SplitsBackward(spec.kind) ? 1.0 : 2.0});
}

// Elements that the forward pass of one block keeps for a row of activations, of those that are cut
// by rows and of those that are cut by columns: the inputs of norms and matrix products, and what
// attention and the activation need.
struct Kept {
  int64_t by_rows = 0;
  int64_t by_columns = 0;
};
Kept KeptByBlock(const ModelConfig& model) {
  const int64_t norms = model.block == BlockKind::kSerial ? 2 : 1;
  const int64_t gates = model.activation == ActivationKind::kSwiglu ? 2 : 1;
  // Each norm: its input and its output. Attention: queries, keys, values, its output twice.
  return {2 * norms * model.hidden,
          3 * model.hidden + 2 * model.KvHidden() + (gates + 1) * model.ffn};
}

double Mebibytes(Bytes bytes) { return static_cast<double>(bytes.count()) / (1 << 20); }

Bytes FromStatus(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    long long kibibytes = 0;
    if (absl::StartsWith(line, key) &&
        std::sscanf(line.c_str() + std::string(key).size(), " %lld kB", &kibibytes) == 1) {
      return KiB(kibibytes);
    }
  }
  return Bytes(0);
}

}  // namespace

Bytes MemoryEstimate::total() const { return parameters + gradients + optimizer + activations; }

absl::StatusOr<MemoryEstimate> EstimateMemory(const TrainConfig& config, const StepPlan& plan,
                                              int stage, int tensor_rank) {
  WEFT_ASSIGN_OR_RETURN(topology::PipelineTiming timing, TimePipeline(plan.pipeline));
  const ModelPart part = plan.PartOf(config, stage, tensor_rank);
  const int64_t elements = ElementCount(GptParameters(config.model, part));
  const bool bf16 = config.precision == Precision::kBf16;
  const int64_t width = bf16 ? 2 : 4;
  const bool reduces_fp32 = !bf16 || plan.ReducesInFp32(config);
  const int64_t shard = elements / plan.sizes.data;

  MemoryEstimate estimate;
  estimate.parameters = Bytes(elements * width);
  const int64_t whole = elements * (reduces_fp32 ? 4 : width);
  estimate.gradients =
      config.zero_stage == 2
          ? Bytes(std::min(whole, 3 * 2 * config.bucket_bytes.count()) + shard * 4)
          : Bytes(whole + (plan.sizes.data > 1 ? shard * (reduces_fp32 ? 4 : width) : 0));
  estimate.optimizer = Bytes(shard * (bf16 ? 12 : 8));

  const int64_t rows = plan.micro_rows * config.model.sequence;
  const Kept kept = KeptByBlock(config.model);
  const int64_t row_elements = (kept.by_rows + kept.by_columns) / plan.sizes.tensor;
  int64_t layers = 0;
  bool has_head = false;
  for (const ModelChunk& chunk : part.chunks) {
    layers += chunk.end_layer - chunk.first_layer;
    has_head = has_head || chunk.has_head;
  }
  // A chunk's share of the layers, for each chunk and micro-batch held.
  const int64_t held = timing.activations_held[static_cast<size_t>(stage)];
  const int64_t per_chunk = rows * row_elements * layers / plan.pipeline.chunks;
  const int64_t logits = has_head ? rows * config.model.vocabulary / plan.sizes.tensor : 0;
  estimate.activations = Bytes((held * per_chunk + logits) * width);
  return estimate;
}

absl::StatusOr<std::string> DescribeRun(const TrainConfig& config, int ranks) {
  WEFT_ASSIGN_OR_RETURN(topology::Mesh mesh, MeshOf(config, ranks));
  const ParallelSizes sizes = SizesOf(mesh);
  WEFT_ASSIGN_OR_RETURN(StepPlan plan, StepPlan::Make(config, sizes));
  WEFT_ASSIGN_OR_RETURN(topology::PipelineTiming timing, TimePipeline(plan.pipeline));
  std::string text = absl::StrFormat(
      "layout        %d ranks = tensor %d x data %d x pipeline %d\n"
      "parameters    %.2f M\n"
      "a step        %d samples of %d tokens; a data-parallel rank takes %d in %d micro-batches\n",
      ranks, sizes.tensor, sizes.data, sizes.pipeline,
      static_cast<double>(ElementCount(GptParameters(config.model))) / 1e6, config.global_batch,
      config.model.sequence, plan.local_rows, plan.pipeline.micro_batches);
  if (sizes.pipeline > 1) {
    absl::StrAppendFormat(&text,
                          "pipeline      %s, %d chunks a stage: bubble %.1f %% of the step\n",
                          ToString(plan.pipeline.kind), plan.pipeline.chunks, 100 * timing.bubble);
  }
  absl::StrAppend(&text, "memory of a rank, MiB (estimated, without the program itself)\n",
                  "  stage  parameters  gradients  optimizer  activations    total\n");
  for (int stage = 0; stage < sizes.pipeline; ++stage) {
    WEFT_ASSIGN_OR_RETURN(MemoryEstimate memory, EstimateMemory(config, plan, stage, 0));
    absl::StrAppendFormat(&text, "  %5d  %10.1f  %9.1f  %9.1f  %11.1f  %7.1f\n", stage,
                          Mebibytes(memory.parameters), Mebibytes(memory.gradients),
                          Mebibytes(memory.optimizer), Mebibytes(memory.activations),
                          Mebibytes(memory.total()));
  }
  return text;
}

absl::StatusOr<std::string> DrawPipeline(const StepPlan& plan) {
  if (plan.pipeline.stages == 1) return std::string();
  WEFT_ASSIGN_OR_RETURN(topology::PipelineTiming timing, TimePipeline(plan.pipeline));
  return DrawSchedule(plan.pipeline, timing);
}

Bytes ResidentMemory() { return FromStatus("VmRSS:"); }
Bytes PeakResidentMemory() { return FromStatus("VmHWM:"); }

}  // namespace weft
