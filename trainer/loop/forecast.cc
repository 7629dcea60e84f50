#include "trainer/loop/forecast.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/host_name.h"
#include "base/status.h"
#include "trainer/memory/memory.h"
#include "trainer/model/gpt.h"
#include "trainer/model/parameters.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/parallel/layout.h"

namespace weft::train {
namespace {

absl::StatusOr<topology::PipelineTiming> TimePipeline(const ModelConfig& model,
                                                      const StepPlan& plan) {
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, MakePipelineSchedule(plan.pipeline));
  return RunPipelineSchedule(plan.pipeline, schedule, plan.Durations(model));
}

// Bytes of an element in the compute type.
int64_t WidthOf(const TrainConfig& config) { return config.precision == Precision::kFp32 ? 4 : 2; }

// ---- Activations ----

// Bytes of one micro-batch's tensors in one block.
struct BlockBytes {
  int64_t kept = 0;           // from its forward pass to its backward pass
  int64_t until_weights = 0;  // of them and of the backward pass, until its weight pass
  int64_t transient = 0;      // the most that its backward pass makes besides
  int64_t loss = 0;           // the most that the loss makes besides
};

// How choices fall on experts: as many on each, or, as can be where none is dropped, all that can
// on those of one rank.
enum class RoutingLoad : uint8_t { kEven, kWorst };

// Rows of hidden activations in a rank's exchange with the experts of a layer.
struct ExpertRows {
  int64_t sent = 0, received = 0;
};
ExpertRows RowsOfExperts(const TrainConfig& config, const StepPlan& plan, RoutingLoad load) {
  const ModelConfig& model = config.model;
  const int64_t sharers = int64_t{plan.sizes.tensor} * plan.sizes.expert;
  const int64_t tokens = plan.micro_rows * plan.TokensHeld(model.sequence) / plan.sizes.tensor;
  const double choices = static_cast<double>(tokens * model.top_k);
  const double places =
      model.capacity_factor > 0 ? choices * model.capacity_factor : tokens * sharers * model.top_k;
  const double even = std::min(choices, places);
  // A token chooses an expert once.
  const double worst = static_cast<double>(
      tokens * sharers * std::min(model.top_k, model.experts / std::max<int64_t>(1, sharers)));
  const double received = load == RoutingLoad::kEven ? even : std::min(worst, places);
  return {static_cast<int64_t>(even), static_cast<int64_t>(received)};
}

// What experts.cc and router.cc keep and make, in the place of a feed-forward part.
struct ExpertBytes {
  int64_t kept = 0, transient = 0, until_weights = 0;
};
ExpertBytes BytesOfExperts(const TrainConfig& config, const StepPlan& plan, RoutingLoad load) {
  const ModelConfig& model = config.model;
  const int64_t width = WidthOf(config);
  const int64_t tokens = plan.micro_rows * plan.TokensHeld(model.sequence) / plan.sizes.tensor;
  const int64_t here = model.experts / (int64_t{plan.sizes.tensor} * plan.sizes.expert);
  const int64_t inner = (model.IsGated() ? 2 : 1) * model.ffn;
  const auto [sent, received] = RowsOfExperts(config, plan, load);
  ExpertBytes bytes;
  // Probabilities and the load of experts; of each choice its number, whether it is kept, its
  // weight and its place.
  const int64_t routing =
      tokens * (2 * model.experts * 4 + 8) + tokens * model.top_k * (8 + 1 + 4 + 8);
  bytes.kept = received * (model.hidden + inner) * width + sent * model.hidden * width + routing;
  // Gradients of the rows: in fp32 as they come, weighted, and as they return; of those here on
  // both sides of the experts and inside. Then the sums by token, in fp32.
  const int64_t one = received / here * (inner + model.ffn + model.hidden) * width;
  const int64_t sums = (tokens + (width < 4 ? sent : 0)) * model.hidden * 4;
  bytes.transient = sent * model.hidden * (4 + 2 * width) +
                    received * (2 * model.hidden + inner) * width + std::max(one, sums);
  // Inputs of the experts' products, and gradients of their outputs.
  bytes.until_weights = received * (2 * model.hidden + model.ffn + inner) * width;
  return bytes;
}

// Of one block, or of a half of one.
BlockBytes BytesOfBlock(const TrainConfig& config, const StepPlan& plan, RecomputeKind recompute,
                        RoutingLoad load, bool has_attention, bool has_ffn) {
  const ModelConfig& model = config.model;
  const int64_t width = WidthOf(config);
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence);
  const int64_t parts = plan.sizes.tensor;
  const int64_t gates = model.IsGated() ? 2 : 1;
  const int64_t norms = has_attention && has_ffn && model.block == BlockKind::kSerial ? 2 : 1;
  const int64_t row = rows * width / parts;  // of one column of all ranks' activations
  // Inputs of norms and of the products behind them; their statistics, fp32.
  const int64_t by_norms = 2 * norms * model.hidden * row + norms * rows / parts * 8;
  const int64_t qkv = has_attention ? (model.hidden + 2 * model.KvHidden()) * row : 0;
  const int64_t mixed = has_attention ? model.hidden * row + rows * model.heads / parts * 4 : 0;
  const bool is_dense = has_ffn && !model.HasExperts();
  const int64_t inner = is_dense ? gates * model.ffn * row : 0;
  const int64_t activated = is_dense ? model.ffn * row : 0;
  BlockBytes bytes;
  bytes.kept = by_norms + qkv + mixed + inner + activated;
  // Other ranks' rows of what the products by outputs read.
  const bool keeps_gathered = parts > 1 && config.tensor_gathered == GatheredRows::kKeep;
  const int64_t gathers =
      model.block == BlockKind::kParallel ? 1 : int64_t{has_attention} + int64_t{is_dense};
  if (keeps_gathered) bytes.kept += gathers * model.hidden * (rows * width - row);
  // The second half of the backward pass: gradients of the residual stream, the nonlinearity's
  // input and output. A tensor axis gathers rows and adds them up.
  const int64_t exchanged = parts > 1 ? (keeps_gathered ? 1 : 2) * rows * width * model.hidden : 0;
  bytes.transient = 2 * model.hidden * row + (has_ffn ? inner : qkv) + exchanged;
  const int64_t outputs = has_attention && has_ffn ? 2 : 1;  // into the residual stream
  bytes.until_weights = norms * model.hidden * row + mixed + activated +  // the products' inputs
                        qkv + outputs * model.hidden * row + inner;  // their outputs' gradients
  // Other ranks' rows of the products' inputs, and as often of their outputs' gradients.
  if (parts > 1) bytes.until_weights += 2 * gathers * model.hidden * (rows * width - row);
  if (has_ffn && model.HasExperts()) {
    const ExpertBytes experts = BytesOfExperts(config, plan, load);
    bytes.kept += experts.kept;
    bytes.transient = 2 * model.hidden * row + experts.transient;
    bytes.until_weights += experts.until_weights;
  }
  if (recompute == RecomputeKind::kSelective) {
    bytes.kept -= mixed + activated;
    bytes.transient += mixed + activated;
  } else if (recompute == RecomputeKind::kFull) {
    bytes.transient += bytes.kept - model.hidden * row;
    bytes.kept = model.hidden * row;
  }
  return bytes;
}

// Bytes of one micro-batch's tensors in a chunk.
BlockBytes BytesOfChunk(const TrainConfig& config, const StepPlan& plan, const ModelChunk& chunk,
                        RoutingLoad load) {
  const ModelConfig& model = config.model;
  const int64_t width = WidthOf(config);
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence);
  const int64_t residual = rows * width * model.hidden / plan.sizes.tensor;
  BlockBytes bytes;
  for (int64_t layer = chunk.first_layer; layer < chunk.end_layer; ++layer) {
    const BlockBytes block = BytesOfBlock(
        config, plan, config.recompute[static_cast<size_t>(layer)], load,
        chunk.Has(layer, BlockHalf::kAttention), chunk.Has(layer, BlockHalf::kFeedForward));
    bytes.kept += block.kept;
    bytes.until_weights += block.until_weights;
    bytes.transient = std::max(bytes.transient, block.transient);
  }
  bytes.kept += residual;  // the last block's output
  // The gradient of the positions' table, in fp32.
  if (plan.PutsAllOff(config) && chunk.has_embedding && model.position == PositionKind::kLearned) {
    bytes.until_weights += model.sequence * model.hidden * 4;
  }
  if (!chunk.has_head) return bytes;
  // The norm's output is read by the loss alone, and its gradient is there from then on.
  bytes.kept += residual;
  const int64_t vocabulary = model.vocabulary / plan.sizes.tensor;
  const int64_t at_once =
      LossRows(rows, vocabulary, width, config.loss_rows, config.device == DeviceKind::kCuda);
  // The gradient of the output projection where it cannot be added up in its place.
  const bool adds_up = at_once < rows;
  const bool is_apart =
      config.zero_stage >= 2 || (adds_up && width < 4 && !plan.ReducesInFp32(config));
  const int64_t gathered = plan.sizes.tensor > 1 ? 2 * rows * width * model.hidden : 0;
  bytes.loss = residual + at_once * width * vocabulary + gathered +
               (is_apart ? vocabulary * model.hidden * (adds_up ? 4 : width) : 0);
  return bytes;
}

// The most that the passes of a stage hold at one time, in the order in which it runs them.
int64_t ActivationBytes(const TrainConfig& config, const StepPlan& plan, const ModelPart& part,
                        absl::Span<const topology::PipelinePass> passes, RoutingLoad load) {
  std::vector<BlockBytes> chunks;
  for (const ModelChunk& chunk : part.chunks) {
    chunks.push_back(BytesOfChunk(config, plan, chunk, load));
  }
  const bool splits = SplitsBackward(plan.pipeline.kind);
  int64_t held = 0, most = 0;
  for (const topology::PipelinePass& pass : passes) {
    const BlockBytes& chunk = chunks[static_cast<size_t>(pass.chunk)];
    switch (pass.kind) {
      case topology::PassKind::kForward:
        held += chunk.kept;
        most = std::max(most, held + chunk.loss);
        break;
      case topology::PassKind::kBackward:
        most = std::max(most, held + chunk.transient);
        held -= chunk.kept;
        if (splits) held += chunk.until_weights;
        most = std::max(most, held);
        break;
      case topology::PassKind::kWeight:
        held -= chunk.until_weights;
        break;
    }
  }
  // Messages that are on their way: receives that are posted ahead, and sends.
  const int64_t width = WidthOf(config);
  const int64_t message = plan.micro_rows * plan.TokensHeld(config.model.sequence) * width *
                          config.model.hidden / plan.sizes.tensor;
  return most + (plan.pipeline.stages > 1 ? 2 * message : 0);
}

// ---- Parameters ----

// Sums over the buckets of a rank.
struct BucketBytes {
  int64_t shard = 0, whole = 0;              // elements
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

// Of `holders` ranks that hold the parameters, `ranks` share the training state.
BucketBytes MeasureBuckets(const TrainConfig& config, const StepPlan& plan,
                           const std::vector<ParameterSpec>& specs, int holders, int ranks) {
  BucketBytes bytes;
  const int64_t width = WidthOf(config);
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
                      int ranks, int64_t width) {
  const int64_t reduced = plan.ReducesInFp32(config) ? 4 : width;
  // A product whose gradient is kept in another type is made before it is added.
  const int64_t made = reduced != width ? bytes.largest_matrix * width : 0;
  if (config.zero_stage == 1) {
    return bytes.whole * reduced + (ranks > 1 ? bytes.shard * reduced : 0) + made;
  }
  const bool accumulates = plan.pipeline.micro_batches > 1;
  const int64_t pool = bytes.pool_whole + (accumulates ? bytes.pool_shard : 0);
  return bytes.shard * (accumulates ? 4 : reduced) + pool * reduced + made;
}

// Says each stage's layers, chunk by chunk, its share of the FLOPs of a step, and how many forward
// passes' activations it holds at one time.
void AppendStages(const TrainConfig& config, const StepPlan& plan, absl::Span<const int> held,
                  std::string& text) {
  const std::vector<double> costs = plan.ChunkCosts(config.model);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  for (int stage = 0; stage < plan.pipeline.stages; ++stage) {
    std::vector<std::string> pieces;
    double work = 0;
    for (int chunk = 0; chunk < plan.pipeline.chunks; ++chunk) {
      const size_t depth = static_cast<size_t>(DepthOf(plan.pipeline, stage, chunk));
      const bool is_end = depth + 1 == costs.size();
      pieces.push_back(absl::StrCat(0.5 * static_cast<double>(plan.chunk_halves[depth]),
                                    is_end ? " + output" : ""));
      work += costs[depth];
    }
    absl::StrAppendFormat(
        &text, "  stage %-4d  layers %s: %.1f %% of the work; holds %d of %d forward passes\n",
        stage, absl::StrJoin(pieces, ", "), 100 * work / all, held[static_cast<size_t>(stage)],
        plan.pipeline.micro_batches * plan.pipeline.chunks);
  }
}

double Mebibytes(Bytes bytes) { return static_cast<double>(bytes.count()) / (1 << 20); }

// Where the experts of a layer are, and what goes to them.
std::string DescribeExperts(const TrainConfig& config, const StepPlan& plan) {
  const ModelConfig& model = config.model;
  const int64_t ranks = int64_t{plan.sizes.tensor} * plan.sizes.expert;
  const int64_t bytes = WidthOf(config);
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence) / plan.sizes.tensor;
  const double sent = Mebibytes(Bytes(rows * model.top_k * model.hidden * bytes));
  return absl::StrFormat(
      "experts       %d a layer, %d a token; %d of the %d data-parallel ranks x tensor %d share "
      "them, %d each; a layer sends %.2f MiB to them and back\n",
      model.experts, model.top_k, plan.sizes.expert, plan.sizes.data, plan.sizes.tensor,
      model.experts / ranks, sent * static_cast<double>(ranks - 1) / static_cast<double>(ranks));
}

// What a rank holds of a sample, and what attention exchanges for it.
std::string DescribeContext(const TrainConfig& config, const StepPlan& plan) {
  const ModelConfig& model = config.model;
  const int64_t tokens = plan.TokensHeld(model.sequence), width = model.hidden / model.heads;
  const int64_t bytes = WidthOf(config);
  const int64_t rows = plan.micro_rows * tokens;
  const int64_t kv_heads = std::max<int64_t>(1, model.KvHeads() / plan.sizes.tensor);
  if (config.context_method == ContextMethod::kUlysses) {
    return absl::StrFormat(
        "context       ulysses: a rank has %d tokens of a sample; in attention all tokens of %d "
        "heads\n",
        tokens, model.heads / plan.sizes.tensor / plan.sizes.context);
  }
  return absl::StrFormat(
      "context       ring: a rank has %d tokens of a sample, 2 stretches of %d; a layer passes "
      "keys "
      "and values on, %d times %.2f MiB\n",
      tokens, tokens / 2, plan.sizes.context - 1,
      Mebibytes(Bytes(2 * rows * kv_heads * width * bytes)));
}

// What this process takes beside the tensors of a run: of anonymous memory what it had before the
// first one. When a run goes on after a failure, the process has the pages of the tensors before.
Bytes ProgramMemory() {
  static const Bytes before = AnonymousMemory();
  return before;
}

Bytes HostMemory(const TrainConfig& config) {
  return config.host_memory.count() > 0 ? config.host_memory : MachineMemory();
}

absl::Status NoPlace(const TrainConfig& config, const std::string& host, int ranks, Bytes tensors,
                     Bytes program, Bytes memory) {
  return AsAgreed(absl::InvalidArgumentError(absl::StrFormat(
      "%s: %d ranks need %.0f MiB for tensors and copies of the state and %.0f MiB for the "
      "programs, together %.0f MiB; "
      "%s %.0f MiB. Fewer ranks a host, a smaller train.micro_batch, train.recompute = full or a "
      "higher parallel.zero take less",
      host, ranks, Mebibytes(tensors), Mebibytes(program), Mebibytes(tensors + program),
      config.host_memory.count() > 0 ? "train.host_memory is" : "the machine has",
      Mebibytes(memory))));
}

}  // namespace

Bytes MemoryEstimate::tensors() const {
  return parameters + gradients + optimizer + activations + packed + snapshots;
}

absl::StatusOr<MemoryEstimate> EstimateMemory(const TrainConfig& config, const StepPlan& plan,
                                              int stage, int tensor_rank, bool keeps_snapshots,
                                              const GemmLibraries* gemm) {
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, MakePipelineSchedule(plan.pipeline));
  const ModelPart part = plan.PartOf(stage, tensor_rank, tensor_rank);
  const std::vector<ParameterSpec> specs = GptParameters(config.model, part);
  const int64_t width = WidthOf(config);
  const int ranks = ShardSizesOf(config, plan.sizes).shared;
  const BucketBytes buckets = MeasureAll(config, plan, specs);

  MemoryEstimate estimate;
  const int64_t owned_width = config.master_weights ? 4 : width;
  estimate.parameters = Bytes(buckets.held * width + buckets.apart * owned_width);
  estimate.gradients = Bytes(GradientBytes(config, plan, buckets, ranks, width));
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
  estimate.activations = Bytes(ActivationBytes(config, plan, part, passes, RoutingLoad::kEven));
  estimate.uneven_routing =
      Bytes(ActivationBytes(config, plan, part, passes, RoutingLoad::kWorst)) -
      estimate.activations;
  return estimate;
}

namespace {

// A line a stage, into `text`; the estimates of the stages' first ranks.
absl::StatusOr<std::vector<MemoryEstimate>> AppendMemory(const TrainConfig& config,
                                                         const StepPlan& plan, bool keeps_snapshots,
                                                         std::string& text) {
  absl::StrAppend(&text, "memory of a rank, MiB (estimated)\n",
                  "  stage  parameters  gradients  optimizer  activations   packed  snapshots  "
                  "checkpoints    total\n");
  std::vector<MemoryEstimate> stages;
  Bytes uneven;
  for (int stage = 0; stage < plan.sizes.pipeline; ++stage) {
    WEFT_ASSIGN_OR_RETURN(const MemoryEstimate memory,
                          EstimateMemory(config, plan, stage, 0, keeps_snapshots));
    absl::StrAppendFormat(
        &text, "  %5d  %10.1f  %9.1f  %9.1f  %11.1f  %7.1f  %9.1f  %11.1f  %7.1f\n", stage,
        Mebibytes(memory.parameters), Mebibytes(memory.gradients), Mebibytes(memory.optimizer),
        Mebibytes(memory.activations), Mebibytes(memory.packed), Mebibytes(memory.snapshots),
        Mebibytes(memory.pool), Mebibytes(memory.total()));
    uneven = std::max(uneven, memory.uneven_routing);
    stages.push_back(memory);
  }
  if (config.model.HasExperts()) {
    absl::StrAppendFormat(&text,
                          "  Experts are counted with as many choices each. Where all choices that "
                          "can fall on one rank's\n  experts do, that rank takes up to %.1f MiB "
                          "more.\n",
                          Mebibytes(uneven));
  }
  return stages;
}

// A rank of each GPU, and what it takes of the host beside it.
absl::Status AppendGpus(const std::vector<MemoryEstimate>& stages, Bytes gpu_memory,
                        std::string& text) {
  size_t fullest = 0;
  for (size_t stage = 1; stage < stages.size(); ++stage) {
    if (stages[stage].on_device() > stages[fullest].on_device()) fullest = stage;
  }
  const double needs = Mebibytes(stages[fullest].on_device());
  if (gpu_memory.count() == 0) {
    absl::StrAppendFormat(
        &text,
        "a GPU         1 rank: %.0f MiB, of stage %d (--gpu-memory says what a GPU "
        "has)\n",
        needs, fullest);
    return absl::OkStatus();
  }
  if (stages[fullest].on_device() > gpu_memory) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a GPU: a rank of stage %d needs %.0f MiB for tensors; the GPU has %.0f MiB. More ranks to "
        "a model, a smaller train.micro_batch, train.recompute = full or a higher parallel.zero "
        "take less",
        fullest, needs, Mebibytes(gpu_memory)));
  }
  absl::StrAppendFormat(&text, "a GPU         1 rank: %.0f MiB of %.0f, of stage %d\n", needs,
                        Mebibytes(gpu_memory), fullest);
  return absl::OkStatus();
}

}  // namespace

CoreShare ForecastShare(const TrainConfig& config, int ranks, int ranks_per_host, int cores) {
  const int here = ranks_per_host > 0 ? std::min(ranks, ranks_per_host) : ranks;
  const int threads = config.threads > 0 ? config.threads : std::max(1, cores / here);
  std::vector<RankCores> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back({.host = rank / here, .cores = cores, .threads = threads});
  }
  return ShareOf(all, config.tensor_parallel);
}

namespace {

// All that is said of `config` but for its `here` ranks on a host, which need `tensors`.
absl::StatusOr<std::string> DescribeAs(const TrainConfig& config, const topology::Mesh& mesh,
                                       int ranks, int here, const std::string& by_cores,
                                       bool keeps_snapshots, Bytes gpu_memory, Bytes& tensors) {
  const ParallelSizes sizes = SizesOf(mesh);
  WEFT_ASSIGN_OR_RETURN(StepPlan plan, StepPlan::Make(config, sizes));
  WEFT_ASSIGN_OR_RETURN(topology::PipelineTiming timing, TimePipeline(config.model, plan));
  std::string text = absl::StrFormat(
      "layout        %d ranks = tensor %d x context %d x data %d x pipeline %d\n"
      "mesh          %s (weft-plan order --layout)\n"
      "parameters    %.2f M\n"
      "a step        %d samples of %d tokens; a data-parallel rank takes %d in %d micro-batches\n",
      ranks, sizes.tensor, sizes.context, sizes.data, sizes.pipeline, mesh.ToText(),
      static_cast<double>(ElementCount(GptParameters(config.model))) / 1e6, config.global_batch,
      config.model.sequence, plan.local_rows, plan.pipeline.micro_batches);
  if (!by_cores.empty()) absl::StrAppend(&text, "cores         ", by_cores, "\n");
  if (config.model.HasExperts()) text += DescribeExperts(config, plan);
  if (sizes.context > 1) text += DescribeContext(config, plan);
  if (sizes.pipeline > 1) {
    absl::StrAppendFormat(&text,
                          "pipeline      %s, %d chunks a stage: bubble %.1f %% of the step\n",
                          ToString(plan.pipeline.kind), plan.pipeline.chunks, 100 * timing.bubble);
    AppendStages(config, plan, timing.activations_held, text);
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<MemoryEstimate> stages,
                        AppendMemory(config, plan, keeps_snapshots, text));
  const bool on_gpu = config.device == DeviceKind::kCuda;
  if (on_gpu) WEFT_RETURN_IF_ERROR(AppendGpus(stages, gpu_memory, text));
  // Ranks of a host are neighbours: the stages of the fullest host are at most as large as the
  // largest one.
  Bytes largest, all;
  for (const MemoryEstimate& memory : stages) {
    const Bytes on_host = on_gpu ? memory.total() - memory.on_device() : memory.total();
    largest = std::max(largest, on_host);
    all += on_host * (ranks / sizes.pipeline);
  }
  tensors = here == ranks ? all : largest * here;
  return text;
}

}  // namespace

absl::StatusOr<std::string> DescribeRun(const TrainConfig& given, int ranks, int ranks_per_host,
                                        bool keeps_snapshots, Bytes gpu_memory, int cores,
                                        TrainConfig* as_run) {
  WEFT_ASSIGN_OR_RETURN(const topology::Mesh mesh, MeshOf(given, ranks));
  const ParallelSizes sizes = SizesOf(mesh);
  const int here = ranks_per_host > 0 ? std::min(ranks, ranks_per_host) : ranks;
  const Bytes program = ProgramMemory() * here, memory = HostMemory(given);
  TrainConfig config = given;
  CoreShare share;
  if (cores > 0) {
    share = ForecastShare(given, ranks, ranks_per_host, cores);
    FitToCores(config, sizes, share);
  }
  while (true) {
    const std::string by_cores = cores > 0 ? DescribeCores(given, config, sizes, share) : "";
    Bytes tensors;
    WEFT_ASSIGN_OR_RETURN(std::string text, DescribeAs(config, mesh, ranks, here, by_cores,
                                                       keeps_snapshots, gpu_memory, tensors));
    if (memory.count() == 0 || tensors + program <= memory) {
      absl::StrAppendFormat(&text, "a host        %d ranks: %.0f MiB of %.0f%s\n", here,
                            Mebibytes(tensors + program), Mebibytes(memory),
                            config.device == DeviceKind::kCuda ? ", beside the GPUs" : "");
      if (as_run != nullptr) *as_run = config;
      return text;
    }
    // As the run would do.
    if (GiveBackMemory(config, given)) continue;
    if (!config.pack_weights) return NoPlace(config, "a host", here, tensors, program, memory);
    config.pack_weights = false;
  }
}

namespace {

// What a rank takes of a place that it may share with others, and what is there.
struct Share {
  std::string place;
  Bytes tensors, program, memory;
};

// The shares of each place's ranks, added up; of memory the least that one of them sees. All ranks
// call it together.
struct Shares {
  Share sum;
  int ranks = 0;
};
absl::StatusOr<std::map<std::string, Shares>> GatherShares(const Share& mine, Group& world) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all,
                        world.Gather(absl::StrCat(mine.tensors.count(), " ", mine.program.count(),
                                                  " ", mine.memory.count(), " ", mine.place)));
  std::map<std::string, Shares> places;
  for (const std::string& text : all) {
    const std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 3));
    std::array<int64_t, 3> numbers = {};
    for (size_t i = 0; i < numbers.size(); ++i) (void)absl::SimpleAtoi(fields[i], &numbers[i]);
    Shares& place = places[fields[3]];
    place.sum.tensors += Bytes(numbers[0]);
    place.sum.program += Bytes(numbers[1]);
    const Bytes memory(numbers[2]);
    place.sum.memory = place.ranks == 0 ? memory : std::min(place.sum.memory, memory);
    ++place.ranks;
  }
  return places;
}

}  // namespace

absl::Status CheckHostMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                             int tensor_rank, bool keeps_snapshots, Group& world) {
  absl::StatusOr<MemoryEstimate> mine =
      EstimateMemory(config, plan, stage, tensor_rank, keeps_snapshots);
  WEFT_RETURN_IF_ERROR(world.Agree(mine.status()));
  WEFT_ASSIGN_OR_RETURN(const auto hosts,
                        GatherShares({absl::StrCat("host ", HostName()), mine->total(),
                                      ProgramMemory(), HostMemory(config)},
                                     world));
  for (const auto& [host, need] : hosts) {
    const Share& sum = need.sum;
    if (sum.memory.count() == 0 || sum.tensors + sum.program <= sum.memory) continue;
    return NoPlace(config, host, need.ranks, sum.tensors, sum.program, sum.memory);
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                               int tensor_rank, int gpu, const DeviceMemory& memory, Group& world) {
  absl::StatusOr<MemoryEstimate> mine =
      EstimateMemory(config, plan, stage, tensor_rank, /*keeps_snapshots=*/false);
  WEFT_RETURN_IF_ERROR(world.Agree(mine.status()));
  WEFT_ASSIGN_OR_RETURN(const auto gpus,
                        GatherShares({absl::StrCat("GPU ", gpu, " of host ", HostName()),
                                      mine->on_device(), Bytes(0), memory.free},
                                     world));
  for (const auto& [place, need] : gpus) {
    if (need.sum.tensors <= need.sum.memory) continue;
    return AsAgreed(absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d ranks need %.0f MiB for tensors; %.0f MiB of it are free. Fewer ranks a GPU, a "
        "smaller train.micro_batch, train.recompute = full or a higher parallel.zero take less",
        place, need.ranks, Mebibytes(need.sum.tensors), Mebibytes(need.sum.memory))));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DrawPipeline(const TrainConfig& config, const StepPlan& plan) {
  if (plan.pipeline.stages == 1) return std::string();
  WEFT_ASSIGN_OR_RETURN(topology::PipelineTiming timing, TimePipeline(config.model, plan));
  return DrawSchedule(plan.pipeline, timing);
}

}  // namespace weft::train
