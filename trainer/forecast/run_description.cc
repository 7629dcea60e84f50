#include "trainer/forecast/run_description.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "topology/job/mesh.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/forecast/memory_check.h"
#include "trainer/forecast/memory_estimate.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/model/parameters.h"
#include "trainer/parallel/schedule_replan.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {
namespace {

absl::StatusOr<topology::PipelineTiming> TimePipeline(const ModelConfig& model,
                                                      const StepPlan& plan) {
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, plan.MakeSchedule(model));
  return RunPipelineSchedule(plan.pipeline, schedule, plan.Durations(model));
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

// When the lists are made anew, and what that may change.
std::string DescribeReplan(const TrainConfig& config) {
  return absl::StrFormat(
      "  lists are made anew once, before step %d of a start, for the durations of steps %d to %d, "
      "if passes then end 1 %% earlier: %s (parallel.replan)\n",
      ScheduleReplan::kLastMeasured + 1, ScheduleReplan::kFirstMeasured,
      ScheduleReplan::kLastMeasured,
      config.replan == ReplanKind::kAny && config.model.tied
          ? "the tied embedding's gradient may get other last bits"
          : "losses stay the same to the bit");
}

// Where the experts of a layer are, and what goes to them.
std::string DescribeExperts(const TrainConfig& config, const StepPlan& plan) {
  const ModelConfig& model = config.model;
  const int64_t ranks = int64_t{plan.sizes.tensor} * plan.sizes.expert;
  const int64_t bytes = SizeOf(config.precision);
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence) / plan.sizes.tensor;
  const double sent = Bytes(rows * model.top_k * model.hidden * bytes) / MiB(1);
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
  const int64_t bytes = SizeOf(config.precision);
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
      Bytes(2 * rows * kv_heads * width * bytes) / MiB(1));
}

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
        memory.parameters / MiB(1), memory.gradients / MiB(1), memory.optimizer / MiB(1),
        memory.activations / MiB(1), memory.packed / MiB(1), memory.snapshots / MiB(1),
        memory.pool / MiB(1), memory.total() / MiB(1));
    uneven = std::max(uneven, memory.uneven_routing);
    stages.push_back(memory);
  }
  if (config.model.HasExperts()) {
    absl::StrAppendFormat(&text,
                          "  Experts are counted with as many choices each. Where all choices that "
                          "can fall on one rank's\n  experts do, that rank takes up to %.1f MiB "
                          "more.\n",
                          uneven / MiB(1));
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
  const double needs = stages[fullest].on_device() / MiB(1);
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
        fullest, needs, gpu_memory / MiB(1)));
  }
  absl::StrAppendFormat(&text, "a GPU         1 rank: %.0f MiB of %.0f, of stage %d\n", needs,
                        gpu_memory / MiB(1), fullest);
  return absl::OkStatus();
}

// All lines but the last one, which says what the `here` ranks of a host need. Sets `tensors` to
// the part of that which tensors take.
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
    if (ScheduleReplan::IsWanted(config, plan.pipeline)) text += DescribeReplan(config);
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

CoreShare ForecastShare(const TrainConfig& config, int ranks, int ranks_per_host, int cores) {
  const int here = ranks_per_host > 0 ? std::min(ranks, ranks_per_host) : ranks;
  const int threads = config.threads > 0 ? config.threads : std::max(1, cores / here);
  std::vector<RankCores> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back({.host = rank / here, .cores = cores, .threads = threads});
  }
  return ShareOf(all, config.tensor_parallel);
}

absl::StatusOr<std::string> DescribeRun(const TrainConfig& given, int ranks, int ranks_per_host,
                                        bool keeps_snapshots, Bytes gpu_memory, int cores,
                                        TrainConfig* as_run) {
  WEFT_ASSIGN_OR_RETURN(const topology::Mesh mesh, MeshOf(given, ranks));
  const ParallelSizes sizes = SizesOf(mesh);
  const int here = ranks_per_host > 0 ? std::min(ranks, ranks_per_host) : ranks;
  const Bytes memory = HostMemory(given);
  MemoryNeed need{.ranks = here, .program = ProgramMemory() * here};
  TrainConfig config = given;
  CoreShare share;
  if (cores > 0) {
    share = ForecastShare(given, ranks, ranks_per_host, cores);
    FitToCores(config, sizes, share);
  }
  while (true) {
    const std::string by_cores = cores > 0 ? DescribeCores(given, config, sizes, share) : "";
    WEFT_ASSIGN_OR_RETURN(std::string text, DescribeAs(config, mesh, ranks, here, by_cores,
                                                       keeps_snapshots, gpu_memory, need.tensors));
    const absl::Status fits = CheckFits(config, "a host", need, memory);
    if (fits.ok()) {
      absl::StrAppendFormat(&text, "a host        %d ranks: %.0f MiB of %.0f%s\n", here,
                            need.total() / MiB(1), memory / MiB(1),
                            config.device == DeviceKind::kCuda ? ", beside the GPUs" : "");
      if (as_run != nullptr) *as_run = config;
      return text;
    }
    if (!TakeLessMemory(config, given)) return fits;  // as the run does
  }
}

absl::StatusOr<std::string> DrawPipeline(const TrainConfig& config, const StepPlan& plan) {
  if (plan.pipeline.stages == 1) return std::string();
  WEFT_ASSIGN_OR_RETURN(topology::PipelineTiming timing, TimePipeline(config.model, plan));
  return DrawSchedule(plan.pipeline, timing);
}

}  // namespace weft::train
