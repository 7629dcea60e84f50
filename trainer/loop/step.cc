#include "trainer/loop/step.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "trainer/groups/status_error.h"
#include "trainer/optimizer/learning_rate.h"

namespace weft {
namespace {

struct Tokens {
  at::Tensor inputs;   // [rows, T]
  at::Tensor targets;  // [rows * T]
};

// Rows [first, first + rows) of [.., columns] tokens, inputs and the tokens after them.
Tokens Cut(const int64_t* tokens, int64_t columns, int64_t first, int64_t rows) {
  at::Tensor all =
      at::from_blob(const_cast<int64_t*>(tokens) + first * columns, {rows, columns}, at::kLong);
  return {all.narrow(1, 0, columns - 1).contiguous(),
          all.narrow(1, 1, columns - 1).contiguous().view({-1})};
}

double SumOf(const at::Tensor& losses) { return losses.sum(at::kDouble).item<double>(); }

// The number of micro-batches where the config leaves it open: one without a pipeline; else the
// most that divides the samples and is no more than four a stage, for a bubble of a fifth or less.
int DefaultMicroBatches(const TrainConfig& config, int64_t rows, int stages) {
  if (stages == 1) return 1;
  const int64_t unit =
      config.pipeline_schedule == topology::PipelineScheduleKind::kInterleaved ? stages : 1;
  for (int64_t count = 4 * int64_t{stages}; count > 1; --count) {
    if (rows % count == 0 && count % unit == 0) return static_cast<int>(count);
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

// Micro-batch by micro-batch through all chunks of a stage: the order of validation.
std::vector<topology::PipelinePass> ForwardPasses(const topology::PipelineSpec& spec) {
  std::vector<topology::PipelinePass> passes;
  for (int micro = 0; micro < spec.micro_batches; ++micro) {
    for (int chunk = 0; chunk < spec.chunks; ++chunk) {
      passes.push_back({topology::PassKind::kForward, chunk, micro});
    }
  }
  return passes;
}

}  // namespace

absl::StatusOr<StepPlan> StepPlan::Make(const TrainConfig& config, const ParallelSizes& sizes) {
  StepPlan plan{.sizes = sizes};
  if (config.global_batch % sizes.data != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.global_batch = ", config.global_batch, " must be a multiple of the ",
                     sizes.data, " data-parallel ranks (tensor ", sizes.tensor, " x data ",
                     sizes.data, " x pipeline ", sizes.pipeline, ")"));
  }
  plan.local_rows = config.global_batch / sizes.data;
  const int64_t count = config.micro_batch == 0
                            ? DefaultMicroBatches(config, plan.local_rows, sizes.pipeline)
                            : plan.local_rows / std::min(plan.local_rows, config.micro_batch);
  plan.micro_rows = plan.local_rows / count;
  if (plan.micro_rows * count != plan.local_rows ||
      (config.micro_batch > 0 &&
       plan.micro_rows != std::min(plan.local_rows, config.micro_batch))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "each of ", sizes.data, " data-parallel ranks has ", plan.local_rows,
        " samples a step, which must be a multiple of train.micro_batch = ", config.micro_batch));
  }
  const int64_t rows = plan.micro_rows * config.model.sequence;
  if (rows % sizes.tensor != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch has ", plan.micro_rows, " x ", config.model.sequence, " = ", rows,
        " tokens, which must be a multiple of parallel.tensor = ", sizes.tensor));
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

ModelPart StepPlan::PartOf(int stage, int tensor_rank) const {
  ModelPart part{.tensor_rank = tensor_rank, .tensor_size = sizes.tensor};
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    const int depth = DepthOf(pipeline, stage, chunk);
    const auto here = chunk_layers.begin() + depth;
    const int64_t first = std::accumulate(chunk_layers.begin(), here, int64_t{0});
    part.chunks.push_back({first, first + *here, depth == 0, depth == pipeline.depth() - 1});
  }
  return part;
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

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const TrainConfig& config,
                                                         ParallelGroups* groups, Trace* trace) {
  WEFT_ASSIGN_OR_RETURN(StepPlan plan, StepPlan::Make(config, SizesOf(groups->mesh)));
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, MakePipelineSchedule(plan.pipeline));
  // Proved before any rank trains.
  WEFT_RETURN_IF_ERROR(
      RunPipelineSchedule(plan.pipeline, schedule, topology::PassDurations{}).status());
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<Stepper>> {
    return std::unique_ptr<Stepper>(new Stepper(config, plan, std::move(schedule), groups, trace));
  });
}

Stepper::Stepper(const TrainConfig& config, const StepPlan& plan,
                 topology::PipelineSchedule schedule, ParallelGroups* groups, Trace* trace)
    : config_(config),
      plan_(plan),
      passes_(schedule[static_cast<size_t>(groups->pipeline->rank())]),
      forward_passes_(ForwardPasses(plan.pipeline)),
      groups_(groups),
      trace_(trace),
      runner_(plan.pipeline, groups->pipeline.get(),
              plan.micro_rows * config.model.sequence / plan.sizes.tensor, config.model.hidden,
              TypeOf(config.precision)),
      loss_scale_(config),
      held_(static_cast<size_t>(plan.pipeline.chunks * plan.pipeline.micro_batches)) {
  ShardedOptions options;
  options.precision = config_.precision;
  options.stochastic_rounding = !config_.master_weights;
  options.micro_steps = plan_.pipeline.micro_batches;
  options.reduce_fp32 = plan_.ReducesInFp32(config_);
  options.zero_stage = config_.zero_stage;
  options.bucket_bytes = config_.bucket_bytes;
  options.decay_all = config_.optimizer.decay_all;
  const ModelPart part = plan_.PartOf(stage(), groups_->tensor->rank());
  options.seed = config_.seed;
  std::vector<std::string> names;
  for (const ParameterSpec& spec : GptParameters(config_.model)) names.push_back(spec.name);
  parameters_ =
      std::make_unique<ShardedParameters>(GptParameters(config_.model, part), std::move(names),
                                          options, config_.optimizer, groups_, trace_);
  if (plan_.sizes.tensor > 1) axis_.emplace(groups_->tensor.get(), config_.tensor_chunks);
  for (int chunk = 0; chunk < plan_.pipeline.chunks; ++chunk) {
    chunks_.push_back(
        std::make_unique<Gpt>(config_.model, part, chunk, parameters_->store().parameters(),
                              parameters_->store().tensors(), axis_ ? &*axis_ : nullptr));
  }
}

Gpt* Stepper::whole_model() {
  const bool is_whole = plan_.sizes.tensor == 1 && plan_.pipeline.depth() == 1 &&
                        !parameters_->store().ComesAndGoes();
  return is_whole ? chunks_[0].get() : nullptr;
}

absl::Status Stepper::Initialize() {
  ParameterStore& store = parameters_->store();
  std::vector<float> values, own;
  int last = -1;
  for (const ParameterBucket& bucket : store.buckets()) {
    for (const OwnedSlice& slice : bucket.slices) {
      const ParameterSpec& spec = store.parameters()[static_cast<size_t>(slice.parameter)];
      if (slice.parameter != last) {
        values.resize(static_cast<size_t>(spec.whole_elements()));
        InitializeParameter(spec, config_.seed, absl::MakeSpan(values));
        last = slice.parameter;
      }
      own.resize(static_cast<size_t>(slice.elements));
      for (const ElementRuns& runs : RunsOf(spec, slice.begin, slice.elements)) {
        for (int64_t run = 0; run < runs.count; ++run) {
          const float* source = values.data() + runs.begin + run * runs.stride;
          std::copy(source, source + runs.length,
                    own.data() + (runs.local - slice.begin) + run * runs.length);
        }
      }
      store.Write(slice, 0, own);
    }
  }
  return absl::OkStatus();
}

double Stepper::LossOf(const at::Tensor& logits, const at::Tensor& targets, double scale) const {
  return SumOf(
      axis_ ? SplitCrossEntropy(logits, targets, chunks_.back()->first_token(), *axis_, scale)
            : CrossEntropy(logits, targets, scale));
}

void Stepper::SetHooks(ForwardOptions& options) {
  ParameterGatherer& gatherer = parameters_->gatherer();
  options.before_unit = [&gatherer](int unit) { ThrowIfError(gatherer.Enter(unit, false)); };
  if (!parameters_->store().ComesAndGoes()) return;
  options.after_unit = [&gatherer](int unit) { gatherer.Leave(unit); };
  options.before_backward = [&gatherer](int unit) { ThrowIfError(gatherer.Enter(unit, true)); };
  options.after_backward = options.after_unit;
}

absl::StatusOr<at::Tensor> Stepper::Forward(int chunk, int micro_batch, at::Tensor input) {
  TraceScope scope(trace_, "forward", kComputeTrack, step_);
  Held& held = HeldOf(chunk, micro_batch);
  const int64_t first_row = micro_batch * plan_.micro_rows;
  Tokens data = Cut(tokens_, columns_, first_row, plan_.micro_rows);
  ForwardOptions options;
  SetHooks(options);
  if (training_) {
    options.recompute = &config_.recompute;
    options.sink = &parameters_->gradients();
    if (SplitsBackward(plan_.pipeline.kind)) options.deferred = &held.deferred;
    // Drawn anew for each step, so that there is no state to save.
    uint64_t key = config_.seed + static_cast<uint64_t>(step_) * 1000003;
    const int64_t sample = groups_->data->rank() * plan_.local_rows + first_row;
    options.dropout = DropoutKey{SplitMix64(key), sample * (columns_ - 1)};
  }
  if (IsFirst(chunk)) input = data.inputs;
  if (training_ && !IsFirst(chunk)) input.requires_grad_(true);
  at::Tensor output = chunks_[static_cast<size_t>(chunk)]->Run(input, columns_ - 1, options);
  if (IsLast(chunk)) {
    const double tokens = static_cast<double>(plan_.local_rows * (columns_ - 1));
    loss_ += LossOf(output, data.targets, training_ ? loss_scale_.value() / tokens : 0);
  }
  if (training_) {
    held.input = std::move(input);
    held.output = output;
  }
  return output.detach();
}

absl::StatusOr<at::Tensor> Stepper::Backward(int chunk, int micro_batch, at::Tensor gradient) {
  TraceScope scope(trace_, "backward", kComputeTrack, step_);
  Held& held = HeldOf(chunk, micro_batch);
  // The last chunk's logits have become their gradient.
  if (IsLast(chunk)) gradient = held.output.detach();
  torch::autograd::backward({held.output}, {gradient});
  parameters_->gatherer().LeaveAll();
  held.output = at::Tensor();
  at::Tensor input = std::move(held.input);
  held.input = at::Tensor();
  return IsFirst(chunk) ? at::Tensor() : input.grad();
}

absl::Status Stepper::Weight(int chunk, int micro_batch) {
  TraceScope scope(trace_, "weight gradients", kComputeTrack, step_);
  at::NoGradGuard no_grad;
  HeldOf(chunk, micro_batch).deferred.Run();
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Stepper::Step(int64_t step, const absl::StatusOr<Batch>& batch,
                                         bool stop_requested) {
  return Guarded([&]() -> absl::StatusOr<StepResult> {
    groups_->set_step(step);
    TakeExposed();
    const std::vector<int64_t> stand_in(
        batch.ok() ? 0 : static_cast<size_t>(plan_.local_rows * (config_.model.sequence + 1)));
    tokens_ = batch.ok() ? batch->tokens.data() : stand_in.data();
    columns_ = config_.model.sequence + 1;
    training_ = true;
    step_ = step;
    loss_ = 0;
    parameters_->gradients().BeginStep();
    WEFT_RETURN_IF_ERROR(runner_.Run(passes_, *this));
    WEFT_RETURN_IF_ERROR(parameters_->gradients().Finish());
    const double tokens = static_cast<double>(plan_.local_rows * (columns_ - 1));
    return FinishStep(step, loss_ / tokens, batch.status(), stop_requested);
  });
}

ExposedSeconds Stepper::TakeExposed() {
  ExposedSeconds exposed;
  exposed.data = groups_->data->TakeExposedSeconds() + groups_->world->TakeExposedSeconds();
  for (Group* group : {groups_->shard.get(), groups_->replicas.get()}) {
    if (group != nullptr) exposed.data += group->TakeExposedSeconds();
  }
  exposed.tensor = groups_->tensor->TakeExposedSeconds();
  exposed.pipeline = groups_->pipeline->TakeExposedSeconds();
  if (groups_->ends != nullptr) exposed.pipeline += groups_->ends->TakeExposedSeconds();
  return exposed;
}

absl::StatusOr<StepResult> Stepper::FinishStep(int64_t step, double loss,
                                               const absl::Status& batch_read,
                                               bool stop_requested) {
  const double squares = parameters_->gradients().SumSquares();
  // All ranks of a tensor group have the same loss; one of them counts.
  const double counted_loss = groups_->tensor->rank() == 0 ? loss : 0;
  std::array<double, 4> sums = {squares, counted_loss, stop_requested ? 1.0 : 0.0,
                                batch_read.ok() ? 0.0 : 1.0};
  Group& world = *groups_->world;
  const int64_t start = SystemClock::Nanoseconds();
  WEFT_RETURN_IF_ERROR(world.Sum(absl::MakeSpan(sums)));
  if (world.size() > 1) world.AddExposed(start, SystemClock::Nanoseconds(), "wait_norm");
  if (sums[3] > 0) return world.Agree(batch_read);
  StepResult result;
  result.loss = sums[1] / plan_.sizes.data;
  result.gradient_norm = std::sqrt(sums[0]) / loss_scale_.value();
  result.learning_rate = LearningRate(config_.optimizer, step);
  result.stop = sums[2] > 0;
  if (!std::isfinite(sums[0]) || !std::isfinite(sums[1])) {
    return LeaveOut(std::move(result), ExplainNonFinite(step, loss, squares));
  }
  const double clip = ClipScale(config_.optimizer, result.gradient_norm);
  WEFT_RETURN_IF_ERROR(parameters_->Update({.step = step,
                                            .learning_rate = result.learning_rate,
                                            .gradient_scale = clip / loss_scale_.value()}));
  loss_scale_.Adapt(/*is_finite=*/true);
  result.exposed = TakeExposed();
  return result;
}

// Of a step that is not finite.
absl::StatusOr<StepResult> Stepper::LeaveOut(StepResult result, const absl::Status& reason) {
  if (!absl::IsAborted(reason)) return reason;
  const double scale = loss_scale_.value();
  const bool scales_down = loss_scale_.Adapt(/*is_finite=*/false);
  if (!scales_down && config_.non_finite == NonFinite::kFatal) return reason;
  result.skipped = std::string(reason.message());
  if (scales_down) {
    absl::StrAppend(&result.skipped, "; the loss scale goes from ", scale, " to ",
                    loss_scale_.value());
  }
  result.exposed = TakeExposed();
  return result;
}

absl::Status Stepper::ExplainNonFinite(int64_t step, double loss, double squares) {
  Group& world = *groups_->world;
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> losses,
                        world.Gather(std::isfinite(loss) ? "" : absl::StrCat(loss)));
  for (size_t rank = 0; rank < losses.size(); ++rank) {
    if (losses[rank].empty()) continue;
    return absl::AbortedError(absl::StrCat("step ", step, ": the loss on rank ", rank, " is ",
                                           losses[rank],
                                           "; a lower optimizer.learning_rate may help"));
  }
  WEFT_ASSIGN_OR_RETURN(losses, world.Gather(std::isfinite(squares) ? "" : "x"));
  auto found = std::find_if(losses.begin(), losses.end(),
                            [](const std::string& text) { return !text.empty(); });
  return absl::AbortedError(
      absl::StrCat("step ", step, ": the gradient is not finite in the shard of rank ",
                   found - losses.begin(), "; a lower optimizer.learning_rate may help"));
}

// A rank that cannot read goes on with other tokens: the others wait for its part of the passes.
absl::Status Stepper::SumLosses(const SampleStream& stream, int64_t batches) {
  columns_ = stream.seq_length() + 1;
  std::vector<int32_t> sample(static_cast<size_t>(columns_));
  std::vector<int64_t> tokens(static_cast<size_t>(plan_.local_rows * columns_));
  tokens_ = tokens.data();
  absl::Status read;
  for (int64_t batch = 0; batch < batches; ++batch) {
    SampleRange range = RankSlice(batch * config_.global_batch, config_.global_batch,
                                  groups_->data->rank(), plan_.sizes.data);
    for (int64_t row = 0; read.ok() && row < plan_.local_rows; ++row) {
      read = stream.Read(range.begin + row, absl::MakeSpan(sample));
      if (read.ok()) std::copy(sample.begin(), sample.end(), tokens.begin() + row * columns_);
    }
    ThrowIfError(runner_.Run(forward_passes_, *this));
  }
  return read;
}

absl::StatusOr<double> Stepper::Validate(const SampleStream& stream, int64_t batches) {
  return Guarded([&]() -> absl::StatusOr<double> {
    WEFT_RETURN_IF_ERROR(parameters_->gatherer().WaitAll());
    training_ = false;
    loss_ = 0;
    const absl::Status read = SumLosses(stream, batches);
    std::array<double, 2> sums = {groups_->tensor->rank() == 0 ? loss_ : 0, read.ok() ? 0.0 : 1.0};
    WEFT_RETURN_IF_ERROR(groups_->world->Sum(absl::MakeSpan(sums)));
    if (sums[1] > 0) return groups_->world->Agree(read);
    return sums[0] / static_cast<double>(batches * config_.global_batch * stream.seq_length());
  });
}

}  // namespace weft
