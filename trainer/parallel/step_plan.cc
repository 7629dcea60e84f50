// Arithmetic alone.
#include "trainer/parallel/step_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

// Where the config leaves their number open.
constexpr int64_t kMicroBatchesMost = 1 << 10;

// The tokens whose products take as long as what a micro-batch costs besides: it adds to the
// gradient of every weight, 8 bytes of memory for 6 FLOPs a token. With 10 to 45 GB/s and 90 to 250
// GFLOP/s of a core that is some 10 tokens in fp32; in bf16 products are two to five times as fast.
// A GPU of 400 TFLOP/s and 3 TB/s takes 180, and has to be kept busy besides.
int64_t TokensOfAMicroBatch(const TrainConfig& config) {
  if (config.device == DeviceKind::kCuda) return 512;
  return config.precision == Precision::kFp32 ? 12 : 64;
}

// The number of micro-batches with the shortest `time(spec, tokens at once)` of those that divide
// the samples and that the schedule can have, `least` or more if there are such; 0: there is none.
// Ranks of a tensor axis have equally many of a micro-batch's tokens.
template <typename Time>
int64_t FastestMicroBatches(const TrainConfig& config, const StepPlan& plan, int64_t least,
                            Time time) {
  const int stages = plan.sizes.pipeline;
  topology::PipelineSpec spec{
      .kind = config.pipeline_schedule, .stages = stages, .chunks = config.pipeline_chunks};
  const int64_t unit = spec.kind == topology::PipelineScheduleKind::kInterleaved ? stages : 1;
  const int64_t rows = plan.local_rows, tokens = plan.TokensHeld(config.model.sequence);
  int64_t best = 0;
  double shortest = std::numeric_limits<double>::infinity();
  for (int64_t count = 1; count <= std::min(rows, kMicroBatchesMost); ++count) {
    if (rows % count != 0 || count % unit != 0) continue;
    const int64_t at_once = rows / count * tokens;
    if (at_once % plan.sizes.tensor != 0) continue;
    spec.micro_batches = static_cast<int>(count);
    const double takes = time(spec, static_cast<double>(at_once));
    const bool is_enough = count >= least && best < least;
    if (takes >= shortest && !is_enough) continue;
    shortest = takes;
    best = count;
  }
  return best;
}

double BubbleOf(const topology::PipelineSpec& spec) {
  return topology::TheoreticalBubble(spec, {.backward = SplitsBackward(spec.kind) ? 1.0 : 2.0});
}

// The number of micro-batches where the config leaves it open: one without a pipeline; else that
// which makes the step shortest: many make the bubble small, and each costs something besides.
int64_t DefaultMicroBatches(const TrainConfig& config, const StepPlan& plan) {
  if (plan.sizes.pipeline == 1) return 1;
  const auto more = static_cast<double>(TokensOfAMicroBatch(config));
  const int64_t count = FastestMicroBatches(
      config, plan, /*least=*/1, [more](const topology::PipelineSpec& spec, double at_once) {
        return (1 + more / at_once) / (1 - BubbleOf(spec));
      });
  return std::max<int64_t>(count, 1);
}

// FLOPs of a token's forward and backward pass in the model's end (its output projection), in a
// layer, and the former over the latter.
double EndFlops(ModelConfig model) {
  model.layers = 0;
  return TrainingFlopsPerToken(model);
}
double LayerFlops(ModelConfig model) {
  model.layers = 1;
  return TrainingFlopsPerToken(model) - EndFlops(model);
}
double EndCost(const ModelConfig& model) { return EndFlops(model) / LayerFlops(model); }

// The tokens that a rank computes in the time that the exchanges of a micro-batch along the tensor
// axis take of a core that ranks share: in each, one of two peers gives the core away and gets it
// back. That is two switches of some microseconds, and filling caches of 1 to 2 MiB again at 10 to
// 20 GB/s. A layer has 8 exchanges: gathers before the products by outputs and reduce-scatters
// behind those by inputs, and for each one in the backward pass, which may gather rows once more;
// a parallel block has half of them.
double TokensOfExchanges(const TrainConfig& config, const ParallelSizes& sizes) {
  if (sizes.tensor == 1) return 0;
  constexpr double kTurn = 150e-6;                                           // seconds
  const double core = config.precision == Precision::kFp32 ? 100e9 : 400e9;  // FLOP/s
  const int again = config.tensor_gathered == GatheredRows::kKeep ? 0 : 1;
  const double exchanges = (config.model.block == BlockKind::kParallel ? 1 : 2) * (4 + again);
  return exchanges * kTurn * core * sizes.tensor / LayerFlops(config.model);
}

// Interleaved schedules take micro-batches in groups of as many as there are stages.
absl::Status CheckGroups(const TrainConfig& config, const StepPlan& plan, int64_t count) {
  const int64_t stages = plan.sizes.pipeline;
  if (config.pipeline_schedule != topology::PipelineScheduleKind::kInterleaved ||
      count % stages == 0) {
    return absl::OkStatus();
  }
  const std::string samples =
      absl::StrCat("parallel.schedule = interleaved needs a multiple of the ", stages,
                   " stages as micro-batches; the ", plan.local_rows,
                   " samples of a data-parallel rank (train.global_batch = ", config.global_batch,
                   " / ", plan.sizes.data, ")");
  if (config.micro_batch > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(samples, " make ", count, " of train.micro_batch = ", config.micro_batch));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(samples, " cannot be cut into so many equal ones",
                   plan.sizes.tensor == 1 ? ""
                                          : absl::StrCat(" whose tokens ", plan.sizes.tensor,
                                                         " ranks of the tensor axis can share")));
}

// FLOPs of a layer's attention and its projections, over those of the layer.
double AttentionCost(ModelConfig model) {
  const int64_t chosen = model.HasExperts() ? model.top_k : 1;
  const int64_t router = model.HasExperts() ? model.experts * model.hidden : 0;
  const double second = 6 * static_cast<double>(chosen * model.FeedForwardElements() + router);
  model.layers = 0;
  const double end = TrainingFlopsPerToken(model);
  model.layers = 1;
  return 1 - second / (TrainingFlopsPerToken(model) - end);
}

absl::StatusOr<std::vector<int64_t>> ChunkHalves(const TrainConfig& config,
                                                 const topology::PipelineSpec& spec) {
  const ModelConfig& model = config.model;
  if (config.pipeline_stages == "auto" || config.pipeline_stages == "even") {
    const double end = config.pipeline_stages == "auto" ? EndCost(model) : 0;
    if (end > 0 && model.block == BlockKind::kSerial) {
      return BalanceHalfLayers(spec, model.layers, AttentionCost(model), end);
    }
    std::vector<int64_t> halves = BalanceLayers(spec, model.layers, end);
    for (int64_t& count : halves) count *= 2;
    return halves;
  }
  auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.stages = ", config.pipeline_stages, ": ", what));
  };
  std::vector<int64_t> halves;
  int64_t sum = 0;
  for (absl::string_view text : absl::StrSplit(config.pipeline_stages, ',')) {
    double layers = 0;
    if (!absl::SimpleAtod(text, &layers) || layers < 0.5 || layers > 1 << 20 ||
        std::floor(2 * layers) != 2 * layers) {
      return refuse(absl::StrCat("'", text, "' is no number of layers or half layers"));
    }
    halves.push_back(static_cast<int64_t>(2 * layers));
    sum += halves.back();
    if (sum % 2 != 0 && model.block == BlockKind::kParallel) {
      return refuse("layers of parallel blocks have no halves to be cut into");
    }
  }
  if (static_cast<int>(halves.size()) != spec.depth()) {
    return refuse(absl::StrCat(halves.size(), " numbers; ", spec.stages, " stages x ", spec.chunks,
                               " chunks need ", spec.depth()));
  }
  if (sum != 2 * model.layers) {
    return refuse(absl::StrCat("their sum is ", 0.5 * static_cast<double>(sum),
                               "; model.layers = ", model.layers));
  }
  return halves;
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
                     sizes.context, " x data ", sizes.data, " x pipeline ", sizes.pipeline, "); ",
                     MultiplesAround(config.global_batch, sizes.data)));
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
  WEFT_RETURN_IF_ERROR(CheckGroups(config, plan, count));
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
  WEFT_ASSIGN_OR_RETURN(plan.chunk_halves, ChunkHalves(config, plan.pipeline));
  return plan;
}

int64_t MicroBatchesOn(const TrainConfig& config, const ParallelSizes& sizes, int ranks,
                       int cores) {
  if (sizes.pipeline == 1 || config.global_batch % sizes.data != 0) return 0;
  StepPlan plan{.sizes = sizes};
  plan.local_rows = config.global_batch / sizes.data;
  const double more =
      static_cast<double>(TokensOfAMicroBatch(config)) + TokensOfExchanges(config, sizes);
  return FastestMicroBatches(
      config, plan, /*least=*/sizes.pipeline,
      [=](const topology::PipelineSpec& spec, double at_once) {
        const double path = 1 / (1 - BubbleOf(spec));  // over the work of one rank
        return (1 + more / at_once) * (static_cast<double>(ranks) / cores + path - path / cores);
      });
}

bool StepPlan::PutsAllOff(const TrainConfig& config) const {
  return SplitsBackward(pipeline.kind) && config.zero_stage >= 2;
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
    const auto here = chunk_halves.begin() + depth;
    const int64_t begin = std::accumulate(chunk_halves.begin(), here, int64_t{0});
    const int64_t end = begin + *here;
    part.chunks.push_back({.first_layer = begin / 2,
                           .end_layer = (end + 1) / 2,
                           .has_embedding = depth == 0,
                           .has_head = depth == pipeline.depth() - 1,
                           .begins_halfway = begin % 2 != 0,
                           .ends_halfway = end % 2 != 0});
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
  const int64_t width = SizeOf(config.precision);
  const int64_t at_once = LossRows(rows, config.model.vocabulary / sizes.tensor, width,
                                   config.loss_rows, /*on_gpu=*/false);
  return at_once < rows && at_once <= kRowsMost ? PackedPart::kHead : PackedPart::kNone;
}

std::vector<double> StepPlan::ChunkCosts(const ModelConfig& model) const {
  return topology::CostsOfHalfLayers(chunk_halves, AttentionCost(model), EndCost(model));
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

absl::StatusOr<topology::PipelineSchedule> StepPlan::MakeSchedule(const ModelConfig& model) const {
  // The gradients of inputs take longer than those of weights, since those of attention, of
  // nonlinearities and of norms are among them; by how much, depends on the model and the machine.
  // Lists for 1.6 forward passes do well over a wide range: timed with backward passes of 1 to 1.45
  // and weight passes of 0.75 to 1.05 forward passes and a last chunk with 0 to 84 % more work than
  // the others, they take on average 1 to 9 % longer than the stage with the most work computes,
  // and lists for equal passes 8 to 16 % (8 micro-batches on 2 and 4 stages, 16 on 2, 4 and 8).
  constexpr double kBackward = 1.6;  // a split backward pass, over its forward pass
  std::vector<topology::PassDurations> durations = Durations(model);
  if (SplitsBackward(pipeline.kind)) {
    for (topology::PassDurations& chunk : durations) chunk.backward = kBackward * chunk.forward;
  }
  return MakePipelineSchedule(pipeline, durations);
}

}  // namespace weft::train
