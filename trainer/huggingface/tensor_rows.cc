#include "trainer/huggingface/tensor_rows.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

class RowList {
 public:
  explicit RowList(const ModelConfig& config) : config_(config) {
    for (const ParameterSpec& spec : GptParameters(config)) shapes_[spec.name] = spec.whole_shape;
  }

  std::vector<TensorRow> Make() {
    const absl::string_view type = ExportType(config_);
    if (type == "gpt2") {
      Gpt2();
    } else if (type == "gpt_neox") {
      GptNeox();
    } else if (type == "weft_gpt") {
      for (const auto& [name, shape] : shapes_) Put(name, name);
    } else {
      Llama();
    }
    std::set<std::string> seen;
    for (TensorRow& row : rows_) {
      row.repeats = !row.ours.empty() && !seen.insert(absl::StrCat(row.ours, row.part)).second;
    }
    return std::move(rows_);
  }

 private:
  bool Has(const std::string& name) const { return shapes_.count(name) > 0; }
  const std::vector<int64_t>& ShapeOf(const std::string& name) const { return shapes_.at(name); }
  std::string Block(int64_t layer) const { return absl::StrCat("block.", layer); }

  void Put(const std::string& theirs, const std::string& ours,
           Arrangement arrangement = Arrangement::kSame) {
    std::vector<int64_t> shape = ShapeOf(ours);
    if (arrangement == Arrangement::kTransposed) std::swap(shape[0], shape[1]);
    rows_.push_back({.theirs = theirs,
                     .shape = std::move(shape),
                     .ours = ours,
                     .arrangement = arrangement,
                     .heads = config_.heads});
  }
  // Formats that must have a bias get zeros where we have none.
  void PutBias(const std::string& theirs, const std::string& ours,
               Arrangement arrangement = Arrangement::kSame) {
    if (Has(ours + ".bias")) {
      Put(theirs + ".bias", ours + ".bias", arrangement);
    } else {
      rows_.push_back({.theirs = theirs + ".bias", .shape = {ShapeOf(ours + ".weight")[0]}});
    }
  }
  void PutPair(const std::string& theirs, const std::string& ours,
               Arrangement of_weight = Arrangement::kSame) {
    Put(theirs + ".weight", ours + ".weight", of_weight);
    PutBias(theirs, ours);
  }

  void Gpt2() {
    Put("wte.weight", "embedding.token");
    Put("wpe.weight", "embedding.position");
    for (int64_t i = 0; i < config_.layers; ++i) {
      const std::string h = absl::StrCat("h.", i), ours = Block(i);
      PutPair(h + ".ln_1", ours + ".norm1");
      PutPair(h + ".attn.c_attn", ours + ".attention.qkv", Arrangement::kTransposed);
      PutPair(h + ".attn.c_proj", ours + ".attention.out", Arrangement::kTransposed);
      PutPair(h + ".ln_2", ours + ".norm2");
      PutPair(h + ".mlp.c_fc", ours + ".ffn.in", Arrangement::kTransposed);
      PutPair(h + ".mlp.c_proj", ours + ".ffn.out", Arrangement::kTransposed);
    }
    PutPair("ln_f", "norm");
    if (!config_.tied) Put("lm_head.weight", "head.weight");
  }

  void GptNeox() {
    const bool parallel = config_.block == BlockKind::kParallel;
    Put("gpt_neox.embed_in.weight", "embedding.token");
    for (int64_t i = 0; i < config_.layers; ++i) {
      const std::string name = absl::StrCat("gpt_neox.layers.", i), ours = Block(i);
      PutPair(name + ".input_layernorm", ours + ".norm1");
      // Its parallel block has a norm for each branch; ours shares one.
      PutPair(name + ".post_attention_layernorm", ours + (parallel ? ".norm1" : ".norm2"));
      const std::string qkv = name + ".attention.query_key_value";
      Put(qkv + ".weight", ours + ".attention.qkv.weight", Arrangement::kByHead);
      PutBias(qkv, ours + ".attention.qkv", Arrangement::kByHead);
      PutPair(name + ".attention.dense", ours + ".attention.out");
      PutPair(name + ".mlp.dense_h_to_4h", ours + ".ffn.in");
      PutPair(name + ".mlp.dense_4h_to_h", ours + ".ffn.out");
    }
    PutPair("gpt_neox.final_layer_norm", "norm");
    if (!config_.tied) Put("embed_out.weight", "head.weight");
  }

  void PutParts(const std::vector<std::string>& theirs, const std::string& ours) {
    for (const char* kind : {".weight", ".bias"}) {
      if (!Has(ours + kind)) continue;
      const auto parts = static_cast<int64_t>(theirs.size());
      std::vector<int64_t> shape = ShapeOf(ours + kind);
      shape[0] /= parts;
      for (int64_t part = 0; part < parts; ++part) {
        rows_.push_back({.theirs = theirs[static_cast<size_t>(part)] + kind,
                         .shape = shape,
                         .ours = ours + kind,
                         .part = part,
                         .parts = parts});
      }
    }
  }
  void Mixture(const std::string& name, const std::string& ours) {
    Put(name + "gate.weight", ours + ".router.weight");
    for (int64_t i = 0; i < config_.experts; ++i) {
      const std::string expert = absl::StrCat(name, "experts.", i);
      PutParts({expert + ".w1", expert + ".w3"}, absl::StrCat(ours, ".expert.", i, ".in"));
      PutParts({expert + ".w2"}, absl::StrCat(ours, ".expert.", i, ".out"));
    }
  }
  void Llama() {
    Put("model.embed_tokens.weight", "embedding.token");
    for (int64_t i = 0; i < config_.layers; ++i) {
      const std::string name = absl::StrCat("model.layers.", i), ours = Block(i);
      Put(name + ".input_layernorm.weight", ours + ".norm1.weight");
      const std::string attention = name + ".self_attn.";
      PutParts({attention + "q_proj", attention + "k_proj", attention + "v_proj"},
               ours + ".attention.qkv");
      PutParts({attention + "q_proj"}, ours + ".attention.q");
      PutParts({attention + "k_proj", attention + "v_proj"}, ours + ".attention.kv");
      PutParts({attention + "o_proj"}, ours + ".attention.out");
      Put(name + ".post_attention_layernorm.weight", ours + ".norm2.weight");
      if (config_.HasExperts()) Mixture(name + ".block_sparse_moe.", ours);
      PutParts({name + ".mlp.gate_proj", name + ".mlp.up_proj"}, ours + ".ffn.in");
      PutParts({name + ".mlp.down_proj"}, ours + ".ffn.out");
    }
    Put("model.norm.weight", "norm.weight");
    if (!config_.tied) Put("lm_head.weight", "head.weight");
  }

  const ModelConfig& config_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // of our parameters
  std::vector<TensorRow> rows_;
};

// Calls copy(ours, theirs, bytes), in bytes from the beginning of each, for all runs that are
// consecutive in both.
template <typename Copy>
void ForRuns(const TensorRow& row, int64_t width, const Copy& copy) {
  const int64_t bytes = row.elements() * width;
  const int64_t begin = row.part * bytes;
  switch (row.arrangement) {
    case Arrangement::kSame:
      copy(begin, int64_t{0}, bytes);
      return;
    case Arrangement::kTransposed: {
      const int64_t rows = row.shape[0], columns = row.shape[1];  // of theirs
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          copy((j * rows + i) * width, (i * columns + j) * width, width);
        }
      }
      return;
    }
    case Arrangement::kByHead: {
      const int64_t block = bytes / (3 * row.heads);  // one head of queries, keys or values
      for (int64_t kind = 0; kind < 3; ++kind) {
        for (int64_t head = 0; head < row.heads; ++head) {
          copy((kind * row.heads + head) * block, (head * 3 + kind) * block, block);
        }
      }
      return;
    }
  }
}

void CheckSizes(const TensorRow& row, int64_t width, size_t ours, size_t theirs) {
  const auto bytes = static_cast<size_t>(row.elements() * width);
  WEFT_CHECK(!row.ours.empty() && theirs == bytes && ours == bytes * static_cast<size_t>(row.parts),
             row.theirs << ": " << theirs << " bytes of ours, " << row.ours << ", with " << ours);
}

}  // namespace

absl::string_view ExportType(const ModelConfig& config) {
  // GPT-2 and GPT-NeoX know no grouped queries, windows, scaled positions or experts.
  const bool grouped = config.KvHeads() != config.heads;
  const bool scaled = config.rotary_scaling != RotaryScaling::kNone;
  const bool plain = !grouped && config.window == 0 && !scaled && !config.HasExperts();
  const bool layernorm_gelu =
      config.norm == NormKind::kLayerNorm && config.activation == ActivationKind::kGelu;
  const bool rotary = config.position == PositionKind::kRotary;
  const bool serial = config.block == BlockKind::kSerial;
  if (layernorm_gelu && rotary && plain) return "gpt_neox";
  if (layernorm_gelu && serial && !rotary && plain) return "gpt2";
  const bool rms_swiglu =
      config.norm == NormKind::kRmsNorm && config.activation == ActivationKind::kSwiglu;
  if (!rms_swiglu || !rotary || !serial) return "weft_gpt";
  const bool windows = config.window == 0 || config.window_layers.empty();
  if (config.HasExperts()) {
    // Mixtral divides the weights of a token's experts by their sum, one weight as well.
    return windows && !config.bias && config.top_k > 1 ? "mixtral" : "weft_gpt";
  }
  if (config.window == 0) return "llama";
  // Mistral is Llama with a window in every layer, and no bias.
  return windows && !config.bias ? "mistral" : "weft_gpt";
}

int64_t TensorRow::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<TensorRow> TensorRows(const ModelConfig& config) { return RowList(config).Make(); }

void ToTheirs(const TensorRow& row, int64_t width, absl::Span<const std::byte> ours,
              absl::Span<std::byte> theirs) {
  CheckSizes(row, width, ours.size(), theirs.size());
  ForRuns(row, width, [&](int64_t from, int64_t to, int64_t bytes) {
    std::memcpy(theirs.data() + to, ours.data() + from, static_cast<size_t>(bytes));
  });
}

void ToOurs(const TensorRow& row, int64_t width, absl::Span<const std::byte> theirs,
            absl::Span<std::byte> ours) {
  CheckSizes(row, width, ours.size(), theirs.size());
  ForRuns(row, width, [&](int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(ours.data() + to, theirs.data() + from, static_cast<size_t>(bytes));
  });
}

}  // namespace weft::train
