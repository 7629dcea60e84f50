#include "trainer/loop/step.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "trainer/groups/status_error.h"
#include "trainer/optimizer/learning_rate.h"

namespace weft::train {
namespace {

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

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const TrainConfig& config,
                                                         ParallelGroups* groups, Trace* trace,
                                                         at::Device device) {
  WEFT_ASSIGN_OR_RETURN(StepPlan plan, StepPlan::Make(config, SizesOf(groups->mesh)));
  WEFT_ASSIGN_OR_RETURN(topology::PipelineSchedule schedule, plan.MakeSchedule(config.model));
  // Proved before any rank trains.
  WEFT_RETURN_IF_ERROR(
      RunPipelineSchedule(plan.pipeline, schedule, topology::PassDurations{}).status());
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<Stepper>> {
    return std::unique_ptr<Stepper>(
        new Stepper(config, plan, std::move(schedule), groups, trace, device));
  });
}

Stepper::Stepper(const TrainConfig& config, const StepPlan& plan,
                 topology::PipelineSchedule schedule, ParallelGroups* groups, Trace* trace,
                 at::Device device)
    : config_(config),
      device_(device),
      plan_(plan),
      schedule_(std::move(schedule)),
      forward_passes_(ForwardPasses(plan.pipeline)),
      groups_(groups),
      trace_(trace),
      runner_(plan.pipeline, groups->pipeline.get(),
              plan.micro_rows * plan.TokensHeld(config.model.sequence) / plan.sizes.tensor,
              config.model.hidden, at::TensorOptions(TypeOf(config.precision)).device(device),
              config.receives_ahead),
      waits_(plan_, schedule_, groups, trace),
      replan_(config_, plan_.pipeline, groups->pipeline->rank(), groups->world.get()),
      loss_scale_(config),
      loss_(at::zeros({}, at::TensorOptions(at::kDouble).device(device))),
      held_(static_cast<size_t>(plan.pipeline.chunks * plan.pipeline.micro_batches)) {
  ShardedOptions options;
  options.precision = config_.precision;
  options.stochastic_rounding = !config_.master_weights;
  options.micro_steps = plan_.pipeline.micro_batches;
  options.reduce_fp32 = plan_.ReducesInFp32(config_);
  options.zero_stage = config_.zero_stage;
  options.tables_alone = plan_.PutsAllOff(config_);
  options.bucket_bytes = config_.bucket_bytes;
  options.decay_all = config_.optimizer.decay_all;
  const ModelPart part = plan_.PartOf(stage(), groups_->tensor->rank(), groups_->expert->rank());
  options.seed = config_.seed;
  options.device = device_;
  std::vector<std::string> names;
  for (const ParameterSpec& spec : GptParameters(config_.model)) names.push_back(spec.name);
  parameters_ = std::make_unique<ParameterSets>(GptParameters(config_.model, part), names, options,
                                                config_.optimizer, groups_, trace_);
  if (plan_.sizes.tensor > 1) {
    const int chunks = config_.tensor_chunks > 0 ? config_.tensor_chunks : kTensorChunks;
    axis_.emplace(groups_->tensor.get(), chunks, config_.tensor_gathered == GatheredRows::kKeep);
  }
  if (plan_.sizes.context > 1) context_.emplace(groups_->context.get(), config_.context_method);
  if (config_.model.HasExperts()) {
    experts_.emplace(groups_->expert.get(), config_.model.experts, config_.expert_pieces,
                     plan_.sizes.expert);
  }
  const ModelAxes axes{axis_ ? &*axis_ : nullptr, context_ ? &*context_ : nullptr,
                       experts_ ? &*experts_ : nullptr};
  for (int chunk = 0; chunk < plan_.pipeline.chunks; ++chunk) {
    chunks_.push_back(std::make_unique<Gpt>(config_.model, part, chunk, parameters_->parameters(),
                                            parameters_->tensors(), axes));
    const PackedPart packed = plan_.PartPacked(config_);
    if (packed == PackedPart::kNone) continue;
    chunks_.back()->KeepPacked(packed,
                               [parameters = parameters_.get()] { return parameters->changes(); });
  }
}

Bytes Stepper::packed_bytes() const {
  return PackedBytes(config_.model,
                     plan_.PartOf(stage(), groups_->tensor->rank(), groups_->expert->rank()),
                     plan_.PartPacked(config_), config_.precision, chunks_[0]->gemm());
}

absl::Status Stepper::SetSchedule(topology::PipelineSchedule schedule) {
  WEFT_CHECK(graphs_ == nullptr, "passes were captured for other lists");
  WEFT_RETURN_IF_ERROR(
      RunPipelineSchedule(plan_.pipeline, schedule, topology::PassDurations{}).status());
  schedule_ = std::move(schedule);
  return absl::OkStatus();
}

Gpt* Stepper::whole_model() {
  const bool is_whole = plan_.sizes.tensor * plan_.sizes.context * plan_.sizes.expert == 1 &&
                        plan_.pipeline.depth() == 1 && !parameters_->ComesAndGoes() &&
                        device_.is_cpu();
  return is_whole ? chunks_[0].get() : nullptr;
}

absl::Status Stepper::Initialize() {
  for (ShardedParameters* set : parameters_->sets()) InitializeStore(set->store());
  return absl::OkStatus();
}

void Stepper::InitializeStore(ParameterStore& store) const {
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
}

void Stepper::SetTokens(const std::vector<int64_t>& tokens) {
  tokens_ =
      at::from_blob(const_cast<int64_t*>(tokens.data()), {plan_.local_rows, columns_}, at::kLong)
          .to(device_);
}

Stepper::Tokens Stepper::Cut(int micro_batch) const {
  const at::Tensor all = tokens_.narrow(0, micro_batch * plan_.micro_rows, plan_.micro_rows);
  const int64_t length = columns_ - 1;
  const std::vector<TokenSpan> spans = context_ ? context_->SpansOf(context_->rank(), length)
                                                : std::vector<TokenSpan>{{0, 0, length}};
  std::vector<at::Tensor> inputs, targets;
  for (const TokenSpan& span : spans) {
    inputs.push_back(all.narrow(1, span.position, span.length));
    targets.push_back(all.narrow(1, span.position + 1, span.length));
  }
  return {at::cat(inputs, 1), at::cat(targets, 1).view({-1})};
}

void Stepper::SetHooks(ForwardOptions& options) {
  ParameterSets& parameters = *parameters_;
  options.before_unit = [&parameters](int unit) { ThrowIfError(parameters.Enter(unit, false)); };
  if (!parameters.ComesAndGoes()) return;
  options.after_unit = [&parameters](int unit) { parameters.Leave(unit); };
  options.before_backward = [&parameters](int unit) { ThrowIfError(parameters.Enter(unit, true)); };
  options.after_backward = options.after_unit;
}

ForwardOptions Stepper::OptionsOf(int chunk, const at::Tensor& targets, GradientSink* sink) const {
  ForwardOptions options;
  if (IsLast(chunk)) options.loss = LossRequest{targets, 0, config_.loss_rows};
  if (sink == nullptr) return options;
  options.recompute = &config_.recompute;
  options.sink = sink;
  options.token_scale =
      loss_scale_.value() / static_cast<double>(plan_.local_rows * plan_.TokensHeld(columns_ - 1));
  if (options.loss) options.loss->scale = options.token_scale;
  return options;
}

at::Tensor Stepper::RunForward(int chunk, at::Tensor input, const ForwardOptions& options,
                               Held& held) {
  const bool trains = options.sink != nullptr;
  if (trains && !IsFirst(chunk)) input.requires_grad_(true);
  at::Tensor output =
      chunks_[static_cast<size_t>(chunk)]->Run(input, plan_.TokensHeld(columns_ - 1), options);
  if (trains) {
    held.input = std::move(input);
    held.output = output;
  }
  return output.detach();
}

at::Tensor Stepper::RunBackward(int chunk, Held& held, at::Tensor gradient) {
  // Losses go back by themselves (LossRequest).
  if (IsLast(chunk)) gradient = at::empty_like(held.output);
  torch::autograd::backward({held.output}, {gradient});
  held.output = at::Tensor();
  at::Tensor input = std::move(held.input);
  held.input = at::Tensor();
  return IsFirst(chunk) ? at::Tensor() : input.grad();
}

absl::StatusOr<at::Tensor> Stepper::Forward(int chunk, int micro_batch, at::Tensor input) {
  TraceScope scope(trace_, "forward", kComputeTrack, step_);
  const Tokens data = Cut(micro_batch);
  if (IsFirst(chunk)) input = data.inputs;
  at::Tensor output;
  if (training_ && graphs_ != nullptr && graphs_->Has(chunk, micro_batch)) {
    std::vector<at::Tensor> inputs = {input};
    if (IsLast(chunk)) inputs.push_back(data.targets);
    WEFT_ASSIGN_OR_RETURN(output, graphs_->Forward(chunk, micro_batch, inputs));
  } else {
    Held& held = HeldOf(chunk, micro_batch);
    ForwardOptions options =
        OptionsOf(chunk, data.targets, training_ ? parameters_.get() : nullptr);
    SetHooks(options);
    if (training_) {
      options.router = &router_;
      if (SplitsBackward(plan_.pipeline.kind)) options.deferred = &held.deferred;
      // Drawn anew for each step, so that there is no state to save.
      uint64_t key = config_.seed + static_cast<uint64_t>(step_) * 1000003;
      const int64_t sample = groups_->replica * plan_.local_rows + micro_batch * plan_.micro_rows;
      options.dropout = DropoutKey{SplitMix64(key), sample * (columns_ - 1)};
    }
    output = RunForward(chunk, std::move(input), options, held);
  }
  if (IsLast(chunk)) loss_.add_(output.sum(at::kDouble));
  return output;
}

absl::StatusOr<at::Tensor> Stepper::Backward(int chunk, int micro_batch, at::Tensor gradient) {
  TraceScope scope(trace_, "backward", kComputeTrack, step_);
  if (graphs_ != nullptr && graphs_->Has(chunk, micro_batch)) {
    return graphs_->Backward(chunk, micro_batch, gradient);
  }
  at::Tensor result = RunBackward(chunk, HeldOf(chunk, micro_batch), std::move(gradient));
  parameters_->LeaveAll();
  return result;
}

void Stepper::SetGraphs(std::unique_ptr<GraphDevice> device) {
  // Parameters come from other ranks under the first micro-batch's forward pass, and gradients
  // leave under the last one's backward pass.
  graphs_ = std::make_unique<PassGraphs>(
      std::move(device), passes(), /*spares_ends=*/plan_.sizes.data > 1,
      [this](int chunk) { return PassesOf(chunk); }, parameters_.get());
}

void Stepper::BeginGraphs() {
  if (graphs_ == nullptr) return;
  const absl::Status captured = graphs_->BeginStep(absl::StrCat(
      plan_.micro_rows, " samples of ", columns_ - 1, " tokens, loss scale ", loss_scale_.value()));
  if (captured.ok()) return;
  WEFT_LOG_WARN("train.graphs: passes go on kernel by kernel, as they cannot be captured: ",
                captured.message());
  graphs_.reset();
}

PassPair Stepper::PassesOf(int chunk) {
  const int64_t tokens = plan_.TokensHeld(columns_ - 1), rows = plan_.micro_rows * tokens;
  const auto numbers = at::TensorOptions(at::kLong).device(device_);
  const auto values = at::TensorOptions(TypeOf(config_.precision)).device(device_);
  PassPair pair;
  pair.inputs = {IsFirst(chunk) ? at::zeros({plan_.micro_rows, tokens}, numbers)
                                : at::zeros({rows, config_.model.hidden}, values)};
  if (IsLast(chunk)) pair.inputs.push_back(at::zeros({rows}, numbers));
  auto held = std::make_shared<Held>();
  pair.forward = [this, chunk, held, inputs = pair.inputs](GradientSink* sink) {
    // A leaf of its own, with its own gradient.
    return RunForward(chunk, inputs[0].detach(), OptionsOf(chunk, inputs.back(), sink), *held);
  };
  pair.backward = [this, chunk, held](const at::Tensor& gradient) {
    return RunBackward(chunk, *held, gradient);
  };
  return pair;
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
    topology::PipelineSchedule better;
    WEFT_ASSIGN_OR_RETURN(std::string replanned, replan_.BeforeStep(schedule_, better));
    if (!better.empty()) WEFT_RETURN_IF_ERROR(SetSchedule(std::move(better)));
    waits_.Begin();
    const std::vector<int64_t> stand_in(
        batch.ok() ? 0 : static_cast<size_t>(plan_.local_rows * (config_.model.sequence + 1)));
    columns_ = config_.model.sequence + 1;
    SetTokens(batch.ok() ? batch->tokens : stand_in);
    training_ = true;
    step_ = step;
    loss_.zero_();
    router_ = {};
    parameters_->BeginStep();
    BeginGraphs();
    WEFT_RETURN_IF_ERROR(runner_.Run(passes(), *this));
    replan_.AddStep(passes(), runner_.times());
    WEFT_RETURN_IF_ERROR(waits_.SendPassTimes(runner_.times(), device_.is_cuda()));
    WEFT_RETURN_IF_ERROR(parameters_->FinishGradients());
    if (before_update_) WEFT_RETURN_IF_ERROR(before_update_());
    const double tokens = static_cast<double>(plan_.local_rows * plan_.TokensHeld(columns_ - 1));
    absl::StatusOr<StepResult> result =
        FinishStep(step, loss_.item<double>() / tokens, batch.status(), stop_requested);
    if (result.ok()) result->replanned = std::move(replanned);
    return result;
  });
}

absl::StatusOr<StepResult> Stepper::FinishStep(int64_t step, double loss,
                                               const absl::Status& batch_read,
                                               bool stop_requested) {
  double squares = 0;
  {
    TraceScope scope(trace_, "gradient norm", kOptimizerTrack, step);
    squares = parameters_->SumSquares();
  }
  // All ranks of a tensor group have the same loss; one of them counts.
  const double counted_loss = groups_->tensor->rank() == 0 ? loss : 0;
  std::array<double, 8> sums = {squares,
                                counted_loss,
                                stop_requested ? 1.0 : 0.0,
                                batch_read.ok() ? 0.0 : 1.0,
                                router_.balance,
                                router_.z,
                                static_cast<double>(router_.choices),
                                static_cast<double>(router_.dropped)};
  Group& world = *groups_->world;
  const int64_t start = SystemClock::Nanoseconds();
  WEFT_RETURN_IF_ERROR(world.Sum(absl::MakeSpan(sums)));
  if (world.size() > 1) world.AddExposed(start, SystemClock::Nanoseconds(), "wait_norm");
  if (sums[3] > 0) return world.Agree(batch_read);
  StepResult result;
  result.loss = sums[1] / (plan_.sizes.data * plan_.sizes.context);
  result.gradient_norm = std::sqrt(sums[0]) / loss_scale_.value();
  result.learning_rate = LearningRate(config_.optimizer, step);
  result.stop = sums[2] > 0;
  if (sums[6] > 0) {
    const double rows = sums[6] / static_cast<double>(config_.model.top_k);
    result.balance_loss = sums[4] / rows;
    result.router_z_loss = sums[5] / rows;
    result.dropped = sums[7] / sums[6];
  }
  if (!std::isfinite(sums[0]) || !std::isfinite(sums[1])) {
    return LeaveOut(std::move(result), ExplainNonFinite(step, loss, squares));
  }
  const double clip = ClipScale(config_.optimizer, result.gradient_norm);
  {
    TraceScope scope(trace_, "update", kOptimizerTrack, step);
    WEFT_RETURN_IF_ERROR(parameters_->Update({.step = step,
                                              .left_out = loss_scale_.left_out(),
                                              .learning_rate = result.learning_rate,
                                              .gradient_scale = clip / loss_scale_.value()}));
  }
  loss_scale_.Adapt(/*is_finite=*/true);
  WEFT_RETURN_IF_ERROR(waits_.Account(step_, result));
  return result;
}

// The result of a step that is not finite.
absl::StatusOr<StepResult> Stepper::LeaveOut(StepResult result, const absl::Status& reason) {
  if (!absl::IsAborted(reason)) return reason;
  const double scale = loss_scale_.value();
  const bool scales_down = loss_scale_.Adapt(/*is_finite=*/false);
  if (!scales_down && config_.non_finite == NonFinite::kFatal) {
    RecordNotFinite();
    return reason;
  }
  result.skipped = std::string(reason.message());
  if (scales_down) {
    absl::StrAppend(&result.skipped, "; the loss scale goes from ", scale, " to ",
                    loss_scale_.value());
  }
  WEFT_RETURN_IF_ERROR(waits_.Account(step_, result));
  return result;
}

// The rank whose gradients were not finite says so, for those who read the records afterwards.
void Stepper::RecordNotFinite() {
  if (groups_->records == nullptr || own_is_finite_) return;
  StepRecord record;
  record.spare = 1;
  record.step = step_;
  record.start_ns = record.end_ns = SystemClock::Nanoseconds();
  groups_->records->Write(record);
  groups_->records->MarkFailed();  // the ring stays
}

absl::Status Stepper::ExplainNonFinite(int64_t step, double loss, double squares) {
  Group& world = *groups_->world;
  own_is_finite_ = std::isfinite(loss) && std::isfinite(squares);
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> losses,
                        world.Gather(std::isfinite(loss) ? "" : absl::StrCat(loss)));
  for (size_t rank = 0; rank < losses.size(); ++rank) {
    if (losses[rank].empty()) continue;
    return AsAgreed(absl::AbortedError(absl::StrCat("step ", step, ": the loss on rank ", rank,
                                                    " is ", losses[rank],
                                                    "; a lower optimizer.learning_rate may help")));
  }
  WEFT_ASSIGN_OR_RETURN(losses, world.Gather(std::isfinite(squares) ? "" : "x"));
  auto found = std::find_if(losses.begin(), losses.end(),
                            [](const std::string& text) { return !text.empty(); });
  return AsAgreed(absl::AbortedError(
      absl::StrCat("step ", step, ": the gradient is not finite in the shard of rank ",
                   found - losses.begin(), "; a lower optimizer.learning_rate may help")));
}

// A rank that cannot read goes on with other tokens: the others wait for its part of the passes.
absl::Status Stepper::SumLosses(const SampleStream& stream, int64_t batches) {
  columns_ = stream.seq_length() + 1;
  std::vector<int32_t> sample(static_cast<size_t>(columns_));
  std::vector<int64_t> tokens(static_cast<size_t>(plan_.local_rows * columns_));
  absl::Status read;
  for (int64_t batch = 0; batch < batches; ++batch) {
    SampleRange range = RankSlice(batch * config_.global_batch, config_.global_batch,
                                  groups_->replica, plan_.sizes.data);
    for (int64_t row = 0; read.ok() && row < plan_.local_rows; ++row) {
      read = stream.Read(range.begin + row, absl::MakeSpan(sample));
      if (read.ok()) std::copy(sample.begin(), sample.end(), tokens.begin() + row * columns_);
    }
    SetTokens(tokens);
    ThrowIfError(runner_.Run(forward_passes_, *this));
  }
  return read;
}

absl::StatusOr<double> Stepper::Validate(const SampleStream& stream, int64_t batches) {
  return Guarded([&]() -> absl::StatusOr<double> {
    WEFT_RETURN_IF_ERROR(parameters_->WaitAll());
    training_ = false;
    loss_.zero_();
    const absl::Status read = SumLosses(stream, batches);
    const double loss = groups_->tensor->rank() == 0 ? loss_.item<double>() : 0;
    std::array<double, 2> sums = {loss, read.ok() ? 0.0 : 1.0};
    WEFT_RETURN_IF_ERROR(groups_->world->Sum(absl::MakeSpan(sums)));
    if (sums[1] > 0) return groups_->world->Agree(read);
    return sums[0] / static_cast<double>(batches * config_.global_batch * stream.seq_length());
  });
}

}  // namespace weft::train
