#include "trainer/loop/step.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "trainer/optimizer/adamw.h"

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

// LibTorch reports errors as exceptions; this is where they end.
template <typename Body>
auto Guarded(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(ExceptionText(error));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const TrainConfig& config, Group* group,
                                                         Trace* trace) {
  int64_t ranks = group->size();
  if (config.global_batch % ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat("train.global_batch = ", config.global_batch,
                                                   " must be a multiple of the ", ranks, " ranks"));
  }
  int64_t rows = config.global_batch / ranks;
  int64_t micro = config.micro_batch == 0 ? rows : std::min(rows, config.micro_batch);
  if (rows % micro != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("each of ", ranks, " ranks has ", rows,
                     " samples a step, which must be a multiple of train.micro_batch = ", micro));
  }
  return Guarded([&]() -> absl::StatusOr<std::unique_ptr<Stepper>> {
    return std::unique_ptr<Stepper>(new Stepper(config, group, trace));
  });
}

Stepper::Stepper(const TrainConfig& config, Group* group, Trace* trace)
    : config_(config), group_(group), trace_(trace) {
  local_rows_ = config_.global_batch / group_->size();
  if (config_.micro_batch > 0) {
    micro_steps_ = static_cast<int>(local_rows_ / std::min(local_rows_, config_.micro_batch));
  }
  ShardedOptions options;
  options.precision = config_.precision;
  options.reduce_fp32 = config_.reduce_precision == ReducePrecision::kFp32 ||
                        (config_.reduce_precision == ReducePrecision::kAuto && micro_steps_ > 1);
  options.zero_stage = config_.zero_stage;
  options.micro_steps = micro_steps_;
  options.bucket_bytes = config_.bucket_bytes;
  options.decay_all = config_.optimizer.decay_all;
  parameters_ =
      std::make_unique<ShardedParameters>(GptParameters(config_.model), options, group_, trace_);
  model_ = std::make_unique<Gpt>(config_.model, parameters_->tensors());
}

absl::Status Stepper::Initialize() {
  std::vector<float> values;
  int last = -1;
  for (const OwnedSlice& slice : parameters_->owned()) {
    const ParameterSpec& spec = parameters_->parameters()[static_cast<size_t>(slice.parameter)];
    if (slice.parameter != last) {
      values.resize(static_cast<size_t>(spec.elements()));
      InitializeParameter(spec, config_.seed, absl::MakeSpan(values));
      last = slice.parameter;
    }
    std::memcpy(slice.values, values.data() + slice.begin,
                static_cast<size_t>(slice.elements) * sizeof(float));
  }
  return absl::OkStatus();
}

void Stepper::EnterUnit(int unit) {
  absl::Status status = parameters_->WaitUnit(unit);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

// Returns the mean loss of this rank's samples; their gradients are in the buckets, or on the way.
double Stepper::RunMicroBatches(int64_t step, const Batch& batch) {
  if (config_.model.dropout > 0) {
    // Drawn anew for each step, so that there is no state to save.
    uint64_t state = config_.seed + static_cast<uint64_t>(step) * 1000003 +
                     static_cast<uint64_t>(group_->rank());
    torch::manual_seed(SplitMix64(state));
  }
  ForwardOptions options;
  options.before_unit = [this](int unit) { EnterUnit(unit); };
  options.sink = parameters_.get();
  options.dropout = true;
  double tokens = static_cast<double>(local_rows_ * (batch.columns - 1));
  int64_t rows = local_rows_ / micro_steps_;
  double loss = 0;
  for (int micro = 0; micro < micro_steps_; ++micro) {
    Tokens data = Cut(batch.tokens.data(), batch.columns, micro * rows, rows);
    Pass pass;
    {
      TraceScope scope(trace_, "forward", kComputeTrack, step);
      pass = model_->Forward(data.inputs, options);
      loss += SumOf(CrossEntropy(pass.logits, data.targets, 1.0 / tokens)) / tokens;
    }
    TraceScope scope(trace_, "backward", kComputeTrack, step);
    parameters_->BeginBackward(step, micro);
    Gpt::Backward(pass);
  }
  return loss;
}

absl::StatusOr<StepResult> Stepper::Step(int64_t step, const absl::StatusOr<Batch>& batch,
                                         bool stop_requested) {
  return Guarded([&]() -> absl::StatusOr<StepResult> {
    parameters_->TakeExposedSeconds();
    Batch stand_in;
    if (!batch.ok()) {
      stand_in.rows = local_rows_;
      stand_in.columns = config_.model.sequence + 1;
      stand_in.tokens.resize(static_cast<size_t>(stand_in.rows * stand_in.columns));
    }
    double loss = RunMicroBatches(step, batch.ok() ? *batch : stand_in);
    WEFT_RETURN_IF_ERROR(parameters_->FinishGradients());
    return FinishStep(step, loss, batch.status(), stop_requested);
  });
}

absl::StatusOr<StepResult> Stepper::FinishStep(int64_t step, double loss,
                                               const absl::Status& batch_read,
                                               bool stop_requested) {
  double squares = parameters_->SumSquares();
  std::array<double, 4> sums = {squares, loss, stop_requested ? 1.0 : 0.0,
                                batch_read.ok() ? 0.0 : 1.0};
  int64_t start = SystemClock::Nanoseconds();
  WEFT_RETURN_IF_ERROR(group_->Sum(absl::MakeSpan(sums)));
  if (group_->size() > 1) parameters_->AddExposed(start, SystemClock::Nanoseconds(), "wait_norm");
  if (sums[3] > 0) return group_->Agree(batch_read);
  if (!std::isfinite(sums[0]) || !std::isfinite(sums[1])) {
    return ExplainNonFinite(step, loss, squares);
  }
  StepResult result;
  result.loss = sums[1] / group_->size();
  result.gradient_norm = std::sqrt(sums[0]);
  result.learning_rate = LearningRate(config_.optimizer, step);
  result.stop = sums[2] > 0;
  WEFT_RETURN_IF_ERROR(parameters_->Update(AdamWAt(config_.optimizer, step, result.gradient_norm)));
  result.exposed_seconds = parameters_->TakeExposedSeconds();
  return result;
}

absl::Status Stepper::ExplainNonFinite(int64_t step, double loss, double squares) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> losses,
                        group_->Gather(std::isfinite(loss) ? "" : absl::StrCat(loss)));
  for (size_t rank = 0; rank < losses.size(); ++rank) {
    if (losses[rank].empty()) continue;
    return absl::AbortedError(absl::StrCat("step ", step, ": the loss on rank ", rank, " is ",
                                           losses[rank],
                                           "; a lower optimizer.learning_rate may help"));
  }
  WEFT_ASSIGN_OR_RETURN(losses, group_->Gather(std::isfinite(squares) ? "" : "x"));
  auto found = std::find_if(losses.begin(), losses.end(),
                            [](const std::string& text) { return !text.empty(); });
  return absl::AbortedError(
      absl::StrCat("step ", step, ": the gradient is not finite in the shard of rank ",
                   found - losses.begin(), "; a lower optimizer.learning_rate may help"));
}

// Of this rank's part of each batch.
absl::StatusOr<double> Stepper::SumLosses(const SampleStream& stream, int64_t batches) {
  int64_t columns = stream.seq_length() + 1;
  int64_t rows = local_rows_ / micro_steps_;
  std::vector<int32_t> sample(static_cast<size_t>(columns));
  std::vector<int64_t> tokens(static_cast<size_t>(rows * columns));
  double sum = 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    SampleRange range = RankSlice(batch * config_.global_batch, config_.global_batch,
                                  group_->rank(), group_->size());
    for (int64_t first = range.begin; first < range.end; first += rows) {
      for (int64_t row = 0; row < rows; ++row) {
        WEFT_RETURN_IF_ERROR(stream.Read(first + row, absl::MakeSpan(sample)));
        std::copy(sample.begin(), sample.end(), tokens.begin() + row * columns);
      }
      Tokens data = Cut(tokens.data(), columns, 0, rows);
      Pass pass = model_->Forward(data.inputs, {});
      sum += SumOf(CrossEntropy(pass.logits, data.targets, /*scale=*/0));
    }
  }
  return sum;
}

absl::StatusOr<double> Stepper::Validate(const SampleStream& stream, int64_t batches) {
  return Guarded([&]() -> absl::StatusOr<double> {
    WEFT_RETURN_IF_ERROR(parameters_->WaitAll());
    absl::StatusOr<double> sum = SumLosses(stream, batches);
    std::array<double, 2> sums = {sum.value_or(0), sum.ok() ? 0.0 : 1.0};
    WEFT_RETURN_IF_ERROR(group_->Sum(absl::MakeSpan(sums)));
    if (sums[1] > 0) return group_->Agree(sum.status());
    return sums[0] / static_cast<double>(batches * config_.global_batch * stream.seq_length());
  });
}

}  // namespace weft
