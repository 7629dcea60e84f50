#include "trainer/model/parameters.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace weft {
namespace {

// GPT-2's initial deviation; projections back into the residual stream are divided by the root of
// the number of branches that add to it (Radford et al., 2019, section 2.3).
constexpr double kDeviation = 0.02;

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : config_(config) {}

  void Matrix(const std::string& name, int64_t outputs, int64_t inputs, double deviation) {
    Add({absl::StrCat(name, ".weight"), {outputs, inputs}, unit, 1, true, 0, deviation});
    if (config_.bias && name != "head") Add({absl::StrCat(name, ".bias"), {outputs}, unit});
  }
  void Norm(const std::string& name) {
    Add({absl::StrCat(name, ".weight"), {config_.hidden}, unit, 1, false, 1, 0});
    if (config_.bias && config_.norm == NormKind::kLayerNorm) {
      Add({absl::StrCat(name, ".bias"), {config_.hidden}, unit});
    }
  }
  void Table(const std::string& name, int64_t rows, int uses) {
    Add({name, {rows, config_.hidden}, unit, uses, true, 0, kDeviation});
  }
  void Block(int64_t layer) {
    double output_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.layers));
    std::string name = absl::StrCat("block.", layer);
    int64_t hidden = config_.hidden;
    Norm(name + ".norm1");
    Matrix(name + ".attention.qkv", 3 * hidden, hidden, kDeviation);
    Matrix(name + ".attention.out", hidden, hidden, output_deviation);
    if (config_.block == BlockKind::kSerial) Norm(name + ".norm2");
    Matrix(name + ".ffn.in", config_.IsGated() ? 2 * config_.ffn : config_.ffn, hidden, kDeviation);
    Matrix(name + ".ffn.out", hidden, config_.ffn, output_deviation);
  }

  int unit = 0;
  std::vector<ParameterSpec> parameters;

 private:
  void Add(ParameterSpec spec) { parameters.push_back(std::move(spec)); }
  const ModelConfig& config_;
};

uint64_t HashName(const std::string& name) {  // FNV-1a
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace

int64_t ParameterSpec::elements() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

std::vector<ParameterSpec> GptParameters(const ModelConfig& config) {
  Builder builder(config);
  builder.Table("embedding.token", config.vocabulary, config.tied ? 2 : 1);
  if (config.position == PositionKind::kLearned) {
    builder.Table("embedding.position", config.sequence, 1);
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    ++builder.unit;
    builder.Block(layer);
  }
  ++builder.unit;
  builder.Norm("norm");
  if (!config.tied) builder.Matrix("head", config.vocabulary, config.hidden, kDeviation);
  return std::move(builder.parameters);
}

int UnitCount(const ModelConfig& config) { return static_cast<int>(config.layers) + 2; }

int64_t ElementCount(absl::Span<const ParameterSpec> parameters) {
  int64_t count = 0;
  for (const ParameterSpec& spec : parameters) count += spec.elements();
  return count;
}

void InitializeParameter(const ParameterSpec& spec, uint64_t seed, absl::Span<float> values) {
  Random random(seed, HashName(spec.name));
  for (size_t i = 0; i < values.size(); i += 2) {
    // Box and Muller, 1958.
    double radius = std::sqrt(-2.0 * std::log(1.0 - random.Uniform())) * spec.deviation;
    double angle = 2.0 * std::numbers::pi * random.Uniform();
    values[i] = static_cast<float>(spec.mean + radius * std::cos(angle));
    if (i + 1 < values.size()) {
      values[i + 1] = static_cast<float>(spec.mean + radius * std::sin(angle));
    }
  }
}

double TrainingFlopsPerToken(const ModelConfig& config) {
  double hidden = static_cast<double>(config.hidden);
  double block = static_cast<double>(config.AttentionElements() + config.FeedForwardElements());
  double layers = static_cast<double>(config.layers);
  return 6 * (layers * block + hidden * static_cast<double>(config.vocabulary)) +
         6 * layers * hidden * static_cast<double>(config.sequence);
}

}  // namespace weft
