#include "trainer/loop/pass_graphs.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/groups/status_error.h"

namespace weft::train {

using topology::PassKind;
using topology::PipelinePass;

namespace {

// What a graph reads.
void Refill(const at::Tensor& from, const at::Tensor& to) {
  WEFT_CHECK(from.sizes() == to.sizes(), from.sizes() << " where a graph reads " << to.sizes());
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

}  // namespace

std::string WhyNoGraphs(const TrainConfig& config, const StepPlan& plan) {
  const int micro_batches = plan.pipeline.micro_batches;
  if (config.device != DeviceKind::kCuda) return "train.device is not cuda";
  if (config.model.HasExperts()) return "the host reads how many rows each expert gets";
  if (plan.sizes.tensor > 1) return "passes contain the collectives of the tensor axis";
  if (plan.sizes.context > 1) return "passes contain the collectives of the context axis";
  if (config.zero_stage > 1) {
    return absl::StrCat("with parallel.zero = ", config.zero_stage,
                        " gradients have no addresses of their own");
  }
  if (config.model.dropout > 0) return "dropout draws from a number of the step's";
  if (std::any_of(config.recompute.begin(), config.recompute.end(),
                  [](RecomputeKind kind) { return kind != RecomputeKind::kNone; })) {
    return "recomputed activations come and go";
  }
  if (SplitsBackward(plan.pipeline.kind)) {
    return absl::StrCat("parallel.schedule = ", topology::ToString(plan.pipeline.kind),
                        " puts gradients off to passes of their own");
  }
  if (plan.pipeline.stages == 1 && plan.pipeline.chunks > 1) {
    return "chunks of one rank may share gradients";
  }
  if (plan.sizes.data > 1 && micro_batches < 3) {
    return absl::StrCat("of ", micro_batches, " micro-batches a step the first waits for ",
                        "parameters, and the last sends gradients");
  }
  return "";
}

// Stands between the passes of a pair and the sink while they are captured: says of each gradient
// whether it will be added to, as the sink will say when they run, and keeps what it was asked for.
class PassGraphs::RecordedSink final : public GradientSink {
 public:
  struct Call {
    int parameter = 0;
    const void* address = nullptr;
    bool add = false;
  };

  explicit RecordedSink(GradientSink* sink) : sink_(*sink) {}

  // The calls that follow are of a pass of this kind, and go to `calls`.
  void Record(PassKind kind, bool writes, std::vector<Call>* calls) {
    if (kind == PassKind::kForward) forward_.clear();
    kind_ = kind;
    writes_ = writes;
    calls_ = calls;
    calls_->clear();
  }
  GradientTarget Begin(int parameter) override {
    GradientTarget target = sink_.Begin(parameter);
    target.add = !writes_ || forward_.count(parameter) > 0 ||
                 std::any_of(calls_->begin(), calls_->end(),
                             [&](const Call& call) { return call.parameter == parameter; });
    if (kind_ == PassKind::kForward) forward_.insert(parameter);
    calls_->push_back({parameter, target.tensor.data_ptr(), target.add});
    return target;
  }
  void End(int /*parameter*/) override {}
  bool TakesAnyOrder() const override { return sink_.TakesAnyOrder(); }

  // The host's part of a pass whose graph was launched.
  void Repeat(const std::vector<Call>& calls) const {
    for (const Call& call : calls) {
      const GradientTarget target = sink_.Begin(call.parameter);
      WEFT_CHECK(target.tensor.data_ptr() == call.address && target.add == call.add,
                 "the gradient of parameter "
                     << call.parameter << " was captured at " << call.address << ", add "
                     << call.add << ", and is at " << target.tensor.data_ptr() << ", add "
                     << target.add);
      sink_.End(call.parameter);
    }
  }

 private:
  GradientSink& sink_;
  PassKind kind_ = PassKind::kForward;
  bool writes_ = false;
  std::set<int> forward_;  // whose gradients the forward pass has
  std::vector<Call>* calls_ = nullptr;
};

struct PassGraphs::Pair {
  Pair(const Need& the_need, GradientSink* the_sink) : need(the_need), sink(the_sink) {}

  const Need need;
  RecordedSink sink;
  PassPair passes;
  at::Tensor output, gradient, input_gradient;
  std::vector<RecordedSink::Call> forward_calls, backward_calls;
  std::unique_ptr<DeviceGraph> forward, backward;  // the first to go
};

PassGraphs::PassGraphs(std::unique_ptr<GraphDevice> device, absl::Span<const PipelinePass> passes,
                       bool spares_ends, std::function<PassPair(int chunk)> make,
                       GradientSink* sink)
    : device_(std::move(device)), make_(std::move(make)), sink_(*sink) {
  FindNeeds(passes, spares_ends);
}
PassGraphs::~PassGraphs() = default;

void PassGraphs::FindNeeds(absl::Span<const PipelinePass> passes, bool spares_ends) {
  int chunks = 0;
  for (const PipelinePass& pass : passes) {
    chunks = std::max(chunks, pass.chunk + 1);
    micro_batches_ = std::max(micro_batches_, static_cast<size_t>(pass.micro_batch) + 1);
  }
  needs_.resize(static_cast<size_t>(chunks) * micro_batches_);
  pair_of_.assign(needs_.size(), -1);
  std::vector<std::set<int>> taken(static_cast<size_t>(chunks));
  std::set<std::pair<PassKind, int>> seen;
  std::map<int, int> last_backward;
  for (const PipelinePass& pass : passes) {
    Need& need = needs_[IndexOf(pass.chunk, pass.micro_batch)];
    std::set<int>& places = taken[static_cast<size_t>(pass.chunk)];
    const bool is_first = seen.insert({pass.kind, pass.chunk}).second;
    if (pass.kind == PassKind::kForward) {
      need.chunk = pass.chunk;
      while (places.count(need.place) > 0) ++need.place;
      places.insert(need.place);
      need.writes_forward = is_first;
    } else if (pass.kind == PassKind::kBackward) {
      places.erase(need.place);
      need.writes_backward = is_first;
      last_backward[pass.chunk] = pass.micro_batch;
    }
  }
  if (!spares_ends) return;
  for (Need& need : needs_) {
    if (need.writes_forward || need.writes_backward) need.is_captured = false;
  }
  for (const auto& [chunk, micro_batch] : last_backward) {
    needs_[IndexOf(chunk, micro_batch)].is_captured = false;
  }
}

void PassGraphs::Drop() {
  std::fill(pair_of_.begin(), pair_of_.end(), -1);
  pairs_.clear();
}

absl::Status PassGraphs::BeginStep(const std::string& fixed) {
  if (fixed != fixed_) {
    if (!pairs_.empty()) WEFT_LOG_INFO("train.graphs: to be captured anew, for ", fixed);
    Drop();
    fixed_ = fixed;
    steps_ = 0;
  }
  if (steps_++ < kWarmUpSteps || !pairs_.empty()) return absl::OkStatus();
  const absl::Status status = Guarded([this] { return CaptureAll(); });
  if (!status.ok()) {
    Drop();
    return status;
  }
  const auto taken = std::count_if(pair_of_.begin(), pair_of_.end(), [](int i) { return i >= 0; });
  WEFT_LOG_INFO("train.graphs: ", 2 * taken, " of ", 2 * pair_of_.size(), " passes of a step by ",
                2 * pairs_.size(), " graphs");
  return absl::OkStatus();
}

absl::Status PassGraphs::CaptureAll() {
  for (size_t i = 0; i < needs_.size(); ++i) {
    const Need& need = needs_[i];
    if (!need.is_captured) continue;
    const auto found =
        std::find_if(pairs_.begin(), pairs_.end(),
                     [&](const std::unique_ptr<Pair>& pair) { return pair->need == need; });
    pair_of_[i] = static_cast<int>(found - pairs_.begin());
    if (found == pairs_.end()) WEFT_RETURN_IF_ERROR(CapturePair(need));
  }
  return absl::OkStatus();
}

absl::Status PassGraphs::CapturePair(const Need& need) {
  // Pairs of one place never hold activations at the same time.
  const auto pool =
      static_cast<uint64_t>(need.chunk) * micro_batches_ + static_cast<uint64_t>(need.place);
  Pair& pair = *pairs_.emplace_back(std::make_unique<Pair>(need, &sink_));
  pair.passes = make_(need.chunk);
  WEFT_ASSIGN_OR_RETURN(pair.forward, device_->Capture(pool, [&pair] {
    return Guarded([&pair] {
      pair.sink.Record(PassKind::kForward, pair.need.writes_forward, &pair.forward_calls);
      pair.output = pair.passes.forward(&pair.sink);
      return absl::OkStatus();
    });
  }));
  pair.gradient = at::zeros_like(pair.output);
  WEFT_ASSIGN_OR_RETURN(pair.backward, device_->Capture(pool, [&pair] {
    return Guarded([&pair] {
      pair.sink.Record(PassKind::kBackward, pair.need.writes_backward, &pair.backward_calls);
      pair.input_gradient = pair.passes.backward(pair.gradient);
      return absl::OkStatus();
    });
  }));
  return absl::OkStatus();
}

bool PassGraphs::Has(int chunk, int micro_batch) const {
  return pair_of_[IndexOf(chunk, micro_batch)] >= 0;
}

PassGraphs::Pair& PassGraphs::PairOf(int chunk, int micro_batch) {
  WEFT_CHECK(Has(chunk, micro_batch), "chunk " << chunk << ", micro-batch " << micro_batch);
  return *pairs_[static_cast<size_t>(pair_of_[IndexOf(chunk, micro_batch)])];
}

absl::StatusOr<at::Tensor> PassGraphs::Forward(int chunk, int micro_batch,
                                               absl::Span<const at::Tensor> inputs) {
  Pair& pair = PairOf(chunk, micro_batch);
  WEFT_CHECK(inputs.size() == pair.passes.inputs.size(), inputs.size() << " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) Refill(inputs[i], pair.passes.inputs[i]);
  WEFT_RETURN_IF_ERROR(pair.forward->Launch());
  pair.sink.Repeat(pair.forward_calls);
  return pair.output.clone();
}

absl::StatusOr<at::Tensor> PassGraphs::Backward(int chunk, int micro_batch,
                                                const at::Tensor& gradient) {
  Pair& pair = PairOf(chunk, micro_batch);
  if (gradient.defined()) Refill(gradient, pair.gradient);
  WEFT_RETURN_IF_ERROR(pair.backward->Launch());
  pair.sink.Repeat(pair.backward_calls);
  return pair.input_gradient.defined() ? pair.input_gradient.clone() : at::Tensor();
}

}  // namespace weft::train
