#include "topology/sim/workloads/training_model.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace weft::topology {
namespace {

int64_t TopK(const ModelShape& model) { return model.HasExperts() ? model.top_k : 1; }

// Forward, of one token.
double LayerFlops(const ModelShape& model) {
  const double matrices =
      static_cast<double>(model.AttentionElements() + model.FeedForwardElements() * TopK(model));
  return 2 * matrices + 2.0 * static_cast<double>(model.sequence * model.hidden);
}
double LogitFlops(const ModelShape& model) {
  return 2.0 * static_cast<double>(model.hidden * model.vocabulary);
}

// Parameters of a layer: those that every replica has, and those that experts part.
double DenseParameters(const ModelShape& model) {
  return static_cast<double>(model.AttentionElements() +
                             (model.HasExperts() ? 0 : model.FeedForwardElements()));
}
double ExpertParameters(const ModelShape& model) {
  return model.HasExperts() ? static_cast<double>(model.FeedForwardElements() * model.experts) : 0;
}

int Size(const TrainingStep& step, Axis axis) { return step.mesh.Size(axis); }

Bytes Rounded(double bytes) { return Bytes(std::llround(bytes)); }

absl::Status Wrong(absl::string_view name, int64_t value, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(name, "=", value, ": ", wanted));
}

absl::Status CheckNumbers(const TrainingStep& step) {
  const std::pair<const char*, int64_t> positive[] = {{"layers", step.model.layers},
                                                      {"hidden", step.model.hidden},
                                                      {"heads", step.model.heads},
                                                      {"vocabulary", step.model.vocabulary},
                                                      {"sequence", step.model.sequence},
                                                      {"top_k", step.model.top_k},
                                                      {"vpp", step.chunks},
                                                      {"micro_batches", step.micro_batches},
                                                      {"micro_batch", step.micro_batch},
                                                      {"element", step.element},
                                                      {"buckets", step.buckets}};
  for (const auto& [name, value] : positive) {
    if (value < 1 || value > 1 << 24) return Wrong(name, value, "wanted is 1 to 16777216");
  }
  if (!(step.peak_flops > 0) || !(step.efficiency > 0) || step.efficiency > 1) {
    return absl::InvalidArgumentError(absl::StrCat("peak FLOP/s ", step.peak_flops,
                                                   " at efficiency ", step.efficiency,
                                                   ": wanted are > 0, and > 0 up to 1"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStep(const TrainingStep& step) {
  WEFT_RETURN_IF_ERROR(CheckNumbers(step));
  const ModelShape& model = step.model;
  const int stages = Size(step, Axis::kPipeline), experts = Size(step, Axis::kExpert);
  if (model.layers % (int64_t{stages} * step.chunks) != 0) {
    return Wrong("layers", model.layers,
                 absl::StrCat("not a multiple of pp x vpp = ", stages, " x ", step.chunks));
  }
  if (model.heads % Size(step, Axis::kTensor) != 0) {
    return Wrong("heads", model.heads,
                 absl::StrCat("not a multiple of tp = ", Size(step, Axis::kTensor)));
  }
  if (model.sequence % Size(step, Axis::kContext) != 0) {
    return Wrong("sequence", model.sequence,
                 absl::StrCat("not a multiple of cp = ", Size(step, Axis::kContext)));
  }
  if (experts > 1 && (!model.HasExperts() || model.experts % experts != 0)) {
    return Wrong("experts", model.experts, absl::StrCat("not a multiple of ep = ", experts));
  }
  if (model.HasExperts() && model.top_k > model.experts) {
    return Wrong("top_k", model.top_k, absl::StrCat("of ", model.experts, " experts"));
  }
  return absl::OkStatus();
}

int ChunkLayers(const TrainingStep& step) {
  return static_cast<int>(step.model.layers) / (Size(step, Axis::kPipeline) * step.chunks);
}

Bytes DenseChunkBytes(const TrainingStep& step, int stage, int chunk) {
  double parameters = ChunkLayers(step) * DenseParameters(step.model);
  const double embedding = static_cast<double>(step.model.vocabulary * step.model.hidden);
  const PipelineSpec pipeline = step.Pipeline();
  const int depth = DepthOf(pipeline, stage, chunk);
  if (depth == 0) parameters += embedding;
  if (depth == pipeline.depth() - 1) parameters += embedding;
  return Rounded(parameters / Size(step, Axis::kTensor) * step.element);
}

Bytes ExpertChunkBytes(const TrainingStep& step) {
  const double parameters =
      ChunkLayers(step) * ExpertParameters(step.model) / Size(step, Axis::kExpert);
  return Rounded(parameters / Size(step, Axis::kTensor) * step.element);
}

namespace {

double Tokens(const TrainingStep& step) {
  return static_cast<double>(step.micro_batch * step.model.sequence);
}
// Number of GPUs that one token's activations are divided among.
double Parts(const TrainingStep& step) {
  return step.mesh.GroupSize({Axis::kTensor, Axis::kContext});
}
double Hidden(const TrainingStep& step) { return static_cast<double>(step.model.hidden); }

}  // namespace

Bytes ActivationBytes(const TrainingStep& step) {
  return Rounded(Tokens(step) * Hidden(step) * step.element / Parts(step));
}

Bytes ContextBytes(const TrainingStep& step) {
  return Rounded(2 * Tokens(step) * Hidden(step) * step.element / Parts(step));
}

Bytes ExpertBytes(const TrainingStep& step) {
  return Rounded(Tokens(step) * static_cast<double>(TopK(step.model)) * Hidden(step) *
                 step.element * ChunkLayers(step) / (Parts(step) * Size(step, Axis::kExpert)));
}

double ModelFlops(const TrainingStep& step) {
  const double tokens =
      Tokens(step) * step.micro_batches * step.mesh.GroupSize({Axis::kData, Axis::kExpert});
  return 3 * tokens *
         (static_cast<double>(step.model.layers) * LayerFlops(step.model) + LogitFlops(step.model));
}

double ModelParameters(const ModelShape& model) {
  return static_cast<double>(model.layers) * (DenseParameters(model) + ExpertParameters(model)) +
         2.0 * static_cast<double>(model.vocabulary * model.hidden);
}

absl::Duration PassTime(const TrainingStep& step, PassKind kind, bool last) {
  const double tokens = Tokens(step);
  double flops = tokens * ChunkLayers(step) * LayerFlops(step.model);
  if (last) flops += tokens * LogitFlops(step.model);
  if (kind == PassKind::kBackward) {
    const int gradients = SplitsBackward(step.schedule) ? 1 : 2;
    flops *= gradients + (step.recompute ? 1 : 0);
  }
  return absl::Seconds(flops / (Parts(step) * step.peak_flops * step.efficiency));
}

}  // namespace weft::topology
