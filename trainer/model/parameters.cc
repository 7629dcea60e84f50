#include "trainer/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft::train {
namespace {

// GPT-2's initial deviation; projections back into the residual stream are divided by the root of
// the number of branches that add to it (Radford et al., 2019, section 2.3).
constexpr double kDeviation = 0.02;

// First element and number of a share; the earlier shares have one more where it does not divide.
std::pair<int64_t, int64_t> ShareOf(int64_t total, int64_t shares, int64_t index) {
  const int64_t least = total / shares, more = total % shares;
  return {index * least + std::min(index, more), least + (index < more ? 1 : 0)};
}

class Builder {
 public:
  Builder(const ModelConfig& config, const ModelPart& part) : config_(config), part_(part) {}

  // y = x weight^T. Column parallel (dimension 0 of the weight is cut): each rank has some outputs,
  // and of the bias those. Row parallel (dimension 1): each has some inputs, and all add a part of
  // every output; the bias is added once.
  void ColumnParallel(const std::string& name, int64_t outputs, int64_t inputs, int64_t parts,
                      int split_dim = 0) {
    Add({.name = name + ".weight",
         .shape = {outputs, inputs},
         .is_matrix = true,
         .deviation = kDeviation,
         .split_dim = split_dim,
         .split_parts = parts});
    if (config_.bias) {
      Add({.name = name + ".bias",
           .shape = {outputs},
           .split_dim = split_dim,
           .split_parts = parts});
    }
  }
  void RowParallel(const std::string& name, int64_t outputs, int64_t inputs, double deviation) {
    Add({.name = name + ".weight",
         .shape = {outputs, inputs},
         .is_matrix = true,
         .deviation = deviation,
         .split_dim = 1});
    if (config_.bias) Add({.name = name + ".bias", .shape = {outputs}});
  }
  void Norm(const std::string& name) {
    Add({.name = name + ".weight", .shape = {config_.hidden}, .mean = 1});
    if (config_.bias && config_.norm == NormKind::kLayerNorm) {
      Add({.name = name + ".bias", .shape = {config_.hidden}});
    }
  }
  void Table(const std::string& name, int64_t rows, int split_dim, int uses, SharedBy shared,
             bool counts) {
    Add({.name = name,
         .shape = {rows, config_.hidden},
         .uses = uses,
         .is_matrix = true,
         .deviation = kDeviation,
         .split_dim = split_dim,
         .shared = shared,
         .counts = counts});
  }

  // A tied embedding is one parameter where this rank has both ends of the model.
  void Embedding() {
    const bool both = Holds(&ModelChunk::has_head);
    Table("embedding.token", config_.vocabulary, 0, config_.tied && both ? 2 : 1,
          config_.tied && !both ? SharedBy::kEnds : SharedBy::kNobody, true);
    if (config_.position == PositionKind::kLearned) {
      Table("embedding.position", config_.sequence, -1, 1, SharedBy::kNobody, true);
    }
  }
  void Block(int64_t layer, const ModelChunk& chunk_of_layer) {
    if (chunk_of_layer.Has(layer, BlockHalf::kAttention)) Attention(layer);
    if (chunk_of_layer.Has(layer, BlockHalf::kFeedForward)) FeedForward(layer);
  }
  void Attention(int64_t layer) {
    double output_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.layers));
    std::string name = absl::StrCat("block.", layer);
    int64_t hidden = config_.hidden;
    Norm(name + ".norm1");
    if (config_.KvHidden() == hidden) {
      ColumnParallel(name + ".attention.qkv", 3 * hidden, hidden, 3);
    } else {
      ColumnParallel(name + ".attention.q", hidden, hidden, 1);
      // Key-value heads that are fewer than the ranks are whole on each: each adds a part of their
      // gradient.
      const bool cut = config_.KvHeads() % part_.tensor_size == 0;
      ColumnParallel(name + ".attention.kv", 2 * config_.KvHidden(), hidden, 2, cut ? 0 : -1);
    }
    RowParallel(name + ".attention.out", hidden, hidden, output_deviation);
  }
  void FeedForward(int64_t layer) {
    double output_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.layers));
    std::string name = absl::StrCat("block.", layer);
    int64_t hidden = config_.hidden;
    if (config_.block == BlockKind::kSerial) Norm(name + ".norm2");
    if (config_.HasExperts()) {
      Experts(name, output_deviation);
      return;
    }
    const int64_t gates = config_.IsGated() ? 2 : 1;
    ColumnParallel(name + ".ffn.in", gates * config_.ffn, hidden, gates);
    RowParallel(name + ".ffn.out", hidden, config_.ffn, output_deviation);
  }
  // Experts are not cut: a rank has some of them whole.
  void Experts(const std::string& name, double output_deviation) {
    const int64_t hidden = config_.hidden, inner = config_.ffn * (config_.IsGated() ? 2 : 1);
    Add({.name = name + ".router.weight",
         .shape = {config_.experts, hidden},
         .is_matrix = true,
         .deviation = kDeviation});
    auto add = [&](const std::string& layer, int64_t outputs, int64_t inputs, double deviation) {
      Add({.name = layer + ".weight",
           .shape = {outputs, inputs},
           .is_matrix = true,
           .deviation = deviation,
           .is_expert = true});
      if (config_.bias) Add({.name = layer + ".bias", .shape = {outputs}, .is_expert = true});
    };
    const int64_t here = config_.experts / part_.expert_size;
    for (int64_t expert = part_.expert_rank * here; expert < (part_.expert_rank + 1) * here;
         ++expert) {
      const std::string layer = absl::StrCat(name, ".expert.", expert);
      add(layer + ".in", inner, hidden, kDeviation);
      add(layer + ".out", hidden, config_.ffn, output_deviation);
    }
  }
  void Head() {
    Norm("norm");
    if (config_.tied && Holds(&ModelChunk::has_embedding)) return;
    if (config_.tied) {
      Table("embedding.token", config_.vocabulary, 0, 1, SharedBy::kEnds, false);
    } else {
      Table("head.weight", config_.vocabulary, 0, 1, SharedBy::kNobody, true);
    }
  }

  int unit = 0;
  int chunk = 0;
  std::vector<ParameterSpec> parameters;

 private:
  bool Holds(bool ModelChunk::*end) const {
    return std::any_of(part_.chunks.begin(), part_.chunks.end(),
                       [end](const ModelChunk& chunk) { return chunk.*end; });
  }
  void Add(ParameterSpec spec) {
    spec.unit = unit;
    spec.chunk = chunk;
    spec.whole_shape = spec.shape;
    if (part_.tensor_size == 1 || spec.is_expert) {
      spec.split_dim = -1;
    } else if (spec.split_dim >= 0) {
      int64_t& size = spec.shape[static_cast<size_t>(spec.split_dim)];
      auto [begin, count] = ShareOf(size / spec.split_parts, part_.tensor_size, part_.tensor_rank);
      spec.split_begin = begin;
      size = count * spec.split_parts;
    } else if (spec.shared == SharedBy::kNobody) {
      spec.shared = SharedBy::kTensor;
      spec.counts = part_.tensor_rank == 0;
    }
    parameters.push_back(std::move(spec));
  }
  const ModelConfig& config_;
  const ModelPart& part_;
};

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

}  // namespace

int64_t ParameterSpec::elements() const { return Product(shape); }
int64_t ParameterSpec::whole_elements() const { return Product(whole_shape); }

uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

at::ScalarType TypeOf(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
    case Precision::kFp32:
      break;
  }
  return at::kFloat;
}

Precision PrecisionOf(at::ScalarType type) {
  return type == at::kBFloat16 ? Precision::kBf16
         : type == at::kHalf   ? Precision::kFp16
                               : Precision::kFp32;
}

bool IsBlockMatrix(const ParameterSpec& spec) {
  return spec.shape.size() == 2 && absl::StartsWith(spec.name, "block.");
}

bool IsTokenTable(const ParameterSpec& spec) {
  return spec.name == "embedding.token" || spec.name == "head.weight";
}

ModelChunk ChunkOf(const ModelConfig& config, int depth, int index) {
  auto [first, count] = ShareOf(config.layers, depth, index);
  return {first, first + count, index == 0, index == depth - 1};
}

ModelPart WholeModel(const ModelConfig& config) { return {.chunks = {ChunkOf(config, 1, 0)}}; }

std::vector<ParameterSpec> GptParameters(const ModelConfig& config) {
  return GptParameters(config, WholeModel(config));
}

std::vector<ParameterSpec> GptParameters(const ModelConfig& config, const ModelPart& part) {
  Builder builder(config, part);
  for (const ModelChunk& chunk : part.chunks) {
    if (chunk.has_embedding) {
      builder.Embedding();
      ++builder.unit;
    }
    for (int64_t layer = chunk.first_layer; layer < chunk.end_layer; ++layer) {
      builder.Block(layer, chunk);
      ++builder.unit;
    }
    if (chunk.has_head) {
      builder.Head();
      ++builder.unit;
    }
    ++builder.chunk;
  }
  return std::move(builder.parameters);
}

std::vector<ElementRuns> RunsOf(const ParameterSpec& spec, int64_t begin, int64_t elements) {
  if (spec.split_dim < 0) return {{begin, begin, elements, elements, 1}};
  // Rows of what this rank holds; a bias has rows of one element.
  const int64_t columns = spec.shape.size() == 2 ? spec.shape[1] : 1;
  const int64_t whole_columns = spec.whole_shape.size() == 2 ? spec.whole_shape[1] : 1;
  std::vector<ElementRuns> runs;
  const int64_t end = begin + elements;
  if (spec.split_dim == 1) {
    // Part of a first row, whole rows, part of a last row.
    for (int64_t at = begin; at < end;) {
      const int64_t row = at / columns, column = at % columns;
      const int64_t length = std::min(columns - column, end - at);
      const int64_t count = length < columns ? 1 : (end - at) / columns;
      runs.push_back({at, row * whole_columns + spec.split_begin + column, length,
                      count == 1 ? length : whole_columns, count});
      at += length * count;
    }
    return runs;
  }
  // Within a part the rows are neighbours in the whole as well.
  const int64_t part_rows = spec.shape[0] / spec.split_parts;
  const int64_t whole_part_rows = spec.whole_shape[0] / spec.split_parts;
  for (int64_t at = begin; at < end;) {
    const int64_t part = at / (part_rows * columns);
    const int64_t length = std::min(end, (part + 1) * part_rows * columns) - at;
    const int64_t in_part = at - part * part_rows * columns;
    runs.push_back(
        {at, (part * whole_part_rows + spec.split_begin) * columns + in_part, length, length, 1});
    at += length;
  }
  return runs;
}

int64_t ElementCount(absl::Span<const ParameterSpec> parameters) {
  int64_t count = 0;
  for (const ParameterSpec& spec : parameters) count += spec.elements();
  return count;
}

double TrainingFlopsPerToken(const ModelConfig& config, AttentionFlops attention) {
  const double hidden = static_cast<double>(config.hidden);
  const int64_t chosen = config.HasExperts() ? config.top_k : 1;
  const int64_t router = config.HasExperts() ? config.experts * config.hidden : 0;
  const double block = static_cast<double>(config.AttentionElements() +
                                           chosen * config.FeedForwardElements() + router);
  const double layers = static_cast<double>(config.layers);
  const double tokens = static_cast<double>(config.sequence);
  double keys = 0;  // that a token meets, in the mean, over all layers
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (attention == AttentionFlops::kFull) {
      keys += tokens;
      continue;
    }
    const double window = static_cast<double>(config.WindowOf(layer));
    keys += window == 0 || window >= tokens ? tokens / 2 : window - window * window / (2 * tokens);
  }
  return 6 * (layers * block + hidden * static_cast<double>(config.vocabulary)) +
         12 * hidden * keys;
}

}  // namespace weft::train
