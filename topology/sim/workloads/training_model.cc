#include "topology/sim/workloads/training_model.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace weft::topology {
namespace {

double Square(double x) { return x * x; }

// Forward, of one token.
double LayerFlops(const ModelShape& model) {
  const double h = model.hidden;
  return 8 * Square(h) + 16 * Square(h) * model.top_k + 2.0 * model.sequence * h;
}
double LogitFlops(const ModelShape& model) { return 2.0 * model.hidden * model.vocabulary; }

// Parameters of a layer: those that every replica has, and those that experts part.
double DenseParameters(const ModelShape& model) {
  return (model.experts > 1 ? 4 : 12) * Square(model.hidden);
}
double ExpertParameters(const ModelShape& model) {
  return model.experts > 1 ? 8 * Square(model.hidden) * model.experts : 0;
}

Bytes Rounded(double bytes) { return Bytes(std::llround(bytes)); }

absl::Status Wrong(absl::string_view name, int64_t value, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(name, "=", value, ": ", wanted));
}

absl::Status CheckNumbers(const TrainingStep& step) {
  const ParallelLayout& layout = step.layout;
  const std::pair<const char*, int64_t> positive[] = {{"layers", step.model.layers},
                                                      {"hidden", step.model.hidden},
                                                      {"heads", step.model.heads},
                                                      {"vocabulary", step.model.vocabulary},
                                                      {"sequence", step.model.sequence},
                                                      {"experts", step.model.experts},
                                                      {"top_k", step.model.top_k},
                                                      {"tp", layout.tensor},
                                                      {"pp", layout.pipeline},
                                                      {"vpp", layout.chunks},
                                                      {"dp", layout.data},
                                                      {"cp", layout.context},
                                                      {"ep", layout.expert},
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

absl::Status CheckLayout(const TrainingStep& step) {
  WEFT_RETURN_IF_ERROR(CheckNumbers(step));
  const ParallelLayout& layout = step.layout;
  if (step.model.layers % (int64_t{layout.pipeline} * layout.chunks) != 0) {
    return Wrong(
        "layers", step.model.layers,
        absl::StrCat("not a multiple of pp x vpp = ", layout.pipeline, " x ", layout.chunks));
  }
  if (step.model.heads % layout.tensor != 0) {
    return Wrong("heads", step.model.heads, absl::StrCat("not a multiple of tp = ", layout.tensor));
  }
  if (step.model.sequence % layout.context != 0) {
    return Wrong("sequence", step.model.sequence,
                 absl::StrCat("not a multiple of cp = ", layout.context));
  }
  if (layout.data % layout.expert != 0) {
    return Wrong("dp", layout.data, absl::StrCat("not a multiple of ep = ", layout.expert));
  }
  if (step.model.experts % layout.expert != 0) {
    return Wrong("experts", step.model.experts,
                 absl::StrCat("not a multiple of ep = ", layout.expert));
  }
  if (step.model.top_k > step.model.experts) {
    return Wrong("top_k", step.model.top_k, absl::StrCat("of ", step.model.experts, " experts"));
  }
  return absl::OkStatus();
}

int ChunkLayers(const TrainingStep& step) {
  return step.model.layers / (step.layout.pipeline * step.layout.chunks);
}

Bytes DenseChunkBytes(const TrainingStep& step, int stage, int chunk) {
  const ParallelLayout& layout = step.layout;
  double parameters = ChunkLayers(step) * DenseParameters(step.model);
  const double embedding = static_cast<double>(step.model.vocabulary) * step.model.hidden;
  if (stage == 0 && chunk == 0) parameters += embedding;
  if (stage == layout.pipeline - 1 && chunk == layout.chunks - 1) parameters += embedding;
  return Rounded(parameters / layout.tensor * step.element);
}

Bytes ExpertChunkBytes(const TrainingStep& step) {
  const double parameters = ChunkLayers(step) * ExpertParameters(step.model) / step.layout.expert;
  return Rounded(parameters / step.layout.tensor * step.element);
}

namespace {

double Tokens(const TrainingStep& step) {
  return static_cast<double>(step.micro_batch) * step.model.sequence;
}
// Of the GPUs that part one token's activations.
double Parts(const TrainingStep& step) {
  return static_cast<double>(step.layout.tensor) * step.layout.context;
}

}  // namespace

Bytes ActivationBytes(const TrainingStep& step) {
  return Rounded(Tokens(step) * step.model.hidden * step.element / Parts(step));
}

Bytes ContextBytes(const TrainingStep& step) {
  return Rounded(2 * Tokens(step) * step.model.hidden * step.element / Parts(step));
}

Bytes ExpertBytes(const TrainingStep& step) {
  return Rounded(Tokens(step) * step.model.top_k * step.model.hidden * step.element *
                 ChunkLayers(step) / (Parts(step) * step.layout.expert));
}

ModelShape Gpt175B() { return {.layers = 96, .hidden = 12288, .heads = 128}; }
ModelShape Gpt530B() { return {.layers = 105, .hidden = 20480, .heads = 160}; }
ModelShape Gpt13B() { return {.layers = 40, .hidden = 5120, .heads = 40}; }

double ModelFlops(const TrainingStep& step) {
  const double tokens = Tokens(step) * step.micro_batches * step.layout.data;
  return 3 * tokens * (step.model.layers * LayerFlops(step.model) + LogitFlops(step.model));
}

double ModelParameters(const ModelShape& model) {
  return model.layers * (DenseParameters(model) + ExpertParameters(model)) +
         2.0 * model.vocabulary * model.hidden;
}

absl::Duration PassTime(const TrainingStep& step, bool backward, bool last) {
  const double tokens = Tokens(step);
  double flops = tokens * ChunkLayers(step) * LayerFlops(step.model);
  if (last) flops += tokens * LogitFlops(step.model);
  if (backward) flops *= step.recompute ? 3 : 2;
  return absl::Seconds(flops / (Parts(step) * step.peak_flops * step.efficiency));
}

}  // namespace weft::topology
