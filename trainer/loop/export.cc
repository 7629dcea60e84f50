#include "trainer/loop/export.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/files/file.h"
#include "trainer/model/parameters.h"
#include "trainer/model/rotary.h"

namespace weft::train {
namespace {

// Llama and its kin, which have its names.
bool IsLlama(absl::string_view type) {
  return type == "llama" || type == "mistral" || type == "mixtral";
}

struct Named {
  std::string name;
  at::Tensor tensor;
};

// Our parameters by name, and what the formats make of them.
class Exporter {
 public:
  explicit Exporter(const Gpt& model) : config_(model.config()) {
    int index = 0;
    for (const ParameterSpec& spec : GptParameters(config_)) {
      parameters_[spec.name] = model.parameter(index++);
    }
  }

  std::vector<Named> Run() {
    absl::string_view type = ExportType(config_);
    if (type == "gpt2") {
      Gpt2();
    } else if (type == "gpt_neox") {
      GptNeox();
    } else if (IsLlama(type)) {
      Llama();
    } else {
      for (const auto& [name, tensor] : parameters_) Put(name, tensor);
    }
    return std::move(result_);
  }

 private:
  bool Has(const std::string& name) const { return parameters_.count(name) > 0; }
  const at::Tensor& Get(const std::string& name) const { return parameters_.at(name); }
  void Put(const std::string& name, const at::Tensor& tensor) {
    result_.push_back({name, tensor.contiguous()});
  }
  // Formats that must have a bias get zeros where we have none.
  at::Tensor BiasOf(const std::string& name) const {
    if (Has(name + ".bias")) return Get(name + ".bias");
    const at::Tensor& weight = Get(name + ".weight");
    return at::zeros({weight.size(0)}, weight.options());
  }
  void PutPair(const std::string& name, const std::string& ours, bool transpose) {
    const at::Tensor& weight = Get(ours + ".weight");
    Put(name + ".weight", transpose ? weight.t() : weight);
    Put(name + ".bias", BiasOf(ours));
  }
  std::string Block(int64_t layer) const { return absl::StrCat("block.", layer); }

  void Gpt2() {  // Conv1D keeps its weights as [in, out]
    Put("wte.weight", Get("embedding.token"));
    Put("wpe.weight", Get("embedding.position"));
    for (int64_t i = 0; i < config_.layers; ++i) {
      std::string h = absl::StrCat("h.", i);
      PutPair(h + ".ln_1", Block(i) + ".norm1", false);
      PutPair(h + ".attn.c_attn", Block(i) + ".attention.qkv", true);
      PutPair(h + ".attn.c_proj", Block(i) + ".attention.out", true);
      PutPair(h + ".ln_2", Block(i) + ".norm2", false);
      PutPair(h + ".mlp.c_fc", Block(i) + ".ffn.in", true);
      PutPair(h + ".mlp.c_proj", Block(i) + ".ffn.out", true);
    }
    PutPair("ln_f", "norm", false);
    if (!config_.tied) Put("lm_head.weight", Get("head.weight"));
  }

  // GPT-NeoX has queries, keys and values of a head side by side: [heads, 3, width].
  at::Tensor ByHead(const at::Tensor& qkv) const {
    int64_t width = config_.hidden / config_.heads;
    std::vector<int64_t> shape = {3, config_.heads, width};
    if (qkv.dim() == 2) shape.push_back(config_.hidden);
    return qkv.view(shape).transpose(0, 1).reshape(qkv.sizes());
  }
  void GptNeox() {
    bool parallel = config_.block == BlockKind::kParallel;
    Put("gpt_neox.embed_in.weight", Get("embedding.token"));
    for (int64_t i = 0; i < config_.layers; ++i) {
      std::string name = absl::StrCat("gpt_neox.layers.", i);
      std::string ours = Block(i);
      PutPair(name + ".input_layernorm", ours + ".norm1", false);
      // Its parallel block has a norm for each branch; ours shares one.
      PutPair(name + ".post_attention_layernorm", ours + (parallel ? ".norm1" : ".norm2"), false);
      Put(name + ".attention.query_key_value.weight", ByHead(Get(ours + ".attention.qkv.weight")));
      Put(name + ".attention.query_key_value.bias", ByHead(BiasOf(ours + ".attention.qkv")));
      PutPair(name + ".attention.dense", ours + ".attention.out", false);
      PutPair(name + ".mlp.dense_h_to_4h", ours + ".ffn.in", false);
      PutPair(name + ".mlp.dense_4h_to_h", ours + ".ffn.out", false);
    }
    PutPair("gpt_neox.final_layer_norm", "norm", false);
    if (!config_.tied) Put("embed_out.weight", Get("head.weight"));
  }

  void PutParts(const std::vector<std::string>& names, const std::string& ours) {
    for (const char* kind : {".weight", ".bias"}) {
      if (!Has(ours + kind)) continue;
      std::vector<at::Tensor> parts = Get(ours + kind).chunk(static_cast<int64_t>(names.size()), 0);
      for (size_t i = 0; i < names.size(); ++i) Put(names[i] + kind, parts[i]);
    }
  }
  void Mixture(const std::string& name, const std::string& ours) {
    Put(name + "gate.weight", Get(ours + ".router.weight"));
    for (int64_t i = 0; i < config_.experts; ++i) {
      const std::string expert = absl::StrCat(name, "experts.", i);
      PutParts({expert + ".w1", expert + ".w3"}, absl::StrCat(ours, ".expert.", i, ".in"));
      PutParts({expert + ".w2"}, absl::StrCat(ours, ".expert.", i, ".out"));
    }
  }
  void Llama() {
    Put("model.embed_tokens.weight", Get("embedding.token"));
    for (int64_t i = 0; i < config_.layers; ++i) {
      std::string name = absl::StrCat("model.layers.", i);
      std::string ours = Block(i);
      Put(name + ".input_layernorm.weight", Get(ours + ".norm1.weight"));
      std::string attention = name + ".self_attn.";
      PutParts({attention + "q_proj", attention + "k_proj", attention + "v_proj"},
               ours + ".attention.qkv");
      PutParts({attention + "q_proj"}, ours + ".attention.q");
      PutParts({attention + "k_proj", attention + "v_proj"}, ours + ".attention.kv");
      PutParts({attention + "o_proj"}, ours + ".attention.out");
      Put(name + ".post_attention_layernorm.weight", Get(ours + ".norm2.weight"));
      if (config_.HasExperts()) Mixture(name + ".block_sparse_moe.", ours);
      PutParts({name + ".mlp.gate_proj", name + ".mlp.up_proj"}, ours + ".ffn.in");
      PutParts({name + ".mlp.down_proj"}, ours + ".ffn.out");
    }
    Put("model.norm.weight", Get("norm.weight"));
    if (!config_.tied) Put("lm_head.weight", Get("head.weight"));
  }

  const ModelConfig& config_;
  std::map<std::string, at::Tensor> parameters_;
  std::vector<Named> result_;
};

// "NTK-aware" scaling is another base, without a name.
bool HasNamedScaling(const ModelConfig& config) {
  return config.rotary_scaling == RotaryScaling::kLinear ||
         config.rotary_scaling == RotaryScaling::kLlama3;
}
nlohmann::ordered_json Scaling(const ModelConfig& config) {
  if (config.rotary_scaling == RotaryScaling::kLinear) {
    return {{"rope_type", "linear"}, {"factor", config.rotary_factor}};
  }
  return {{"rope_type", "llama3"},
          {"factor", config.rotary_factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", config.rotary_original}};
}

nlohmann::ordered_json ConfigJson(const ModelConfig& config, at::ScalarType dtype, int32_t eod_id) {
  std::string type(ExportType(config));
  nlohmann::ordered_json json = {{"model_type", type},
                                 {"vocab_size", config.vocabulary},
                                 {"tie_word_embeddings", config.tied},
                                 {"bos_token_id", eod_id},
                                 {"eos_token_id", eod_id},
                                 {"torch_dtype", dtype == at::kFloat  ? "float32"
                                                 : dtype == at::kHalf ? "float16"
                                                                      : "bfloat16"}};
  if (type == "gpt2") {
    json.update({{"architectures", {"GPT2LMHeadModel"}},
                 {"n_layer", config.layers},
                 {"n_head", config.heads},
                 {"n_embd", config.hidden},
                 {"n_positions", config.sequence},
                 {"n_inner", config.ffn},
                 {"activation_function", "gelu_new"},
                 {"layer_norm_epsilon", config.norm_epsilon}});
    return json;
  }
  json.update({{"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"hidden_size", config.hidden},
               {"intermediate_size", config.ffn},
               {"max_position_embeddings", config.sequence}});
  if (type == "gpt_neox") {
    json.update({{"architectures", {"GPTNeoXForCausalLM"}},
                 {"hidden_act", "gelu_new"},
                 {"layer_norm_eps", config.norm_epsilon},
                 {"rotary_pct", 1.0},
                 {"rotary_emb_base", RotaryBase(config)},
                 {"use_parallel_residual", config.block == BlockKind::kParallel}});
  } else if (IsLlama(type)) {
    const char* name = type == "llama"     ? "LlamaForCausalLM"
                       : type == "mistral" ? "MistralForCausalLM"
                                           : "MixtralForCausalLM";
    if (config.window > 0) json["sliding_window"] = config.window;
    if (config.HasExperts()) {
      json.update({{"num_local_experts", config.experts}, {"num_experts_per_tok", config.top_k}});
    }
    if (HasNamedScaling(config)) json["rope_scaling"] = Scaling(config);
    json.update({{"architectures", {name}},
                 {"num_key_value_heads", config.KvHeads()},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", config.norm_epsilon},
                 {"rope_theta", RotaryBase(config)},
                 {"attention_bias", config.bias},
                 {"mlp_bias", config.bias}});
  } else {
    json.update({{"block", config.block == BlockKind::kParallel ? "parallel" : "serial"},
                 {"position", config.position == PositionKind::kRotary ? "rotary" : "learned"},
                 {"activation", config.activation == ActivationKind::kSwiglu ? "swiglu" : "gelu"},
                 {"norm", config.norm == NormKind::kRmsNorm ? "rmsnorm" : "layernorm"},
                 {"norm_epsilon", config.norm_epsilon},
                 {"rotary_base", RotaryBase(config)},
                 {"num_key_value_heads", config.KvHeads()},
                 {"num_local_experts", config.experts},
                 {"num_experts_per_tok", config.top_k},
                 {"sliding_window", config.window},
                 {"sliding_window_layers", config.window_layers},
                 {"bias", config.bias}});
    if (HasNamedScaling(config)) json["rope_scaling"] = Scaling(config);
  }
  return json;
}

absl::Status WriteTensors(const std::vector<Named>& tensors, const std::string& path) {
  std::vector<TensorSpec> specs;
  for (const Named& named : tensors) {
    specs.push_back({named.name,
                     named.tensor.scalar_type() == at::kFloat  ? DType::kF32
                     : named.tensor.scalar_type() == at::kHalf ? DType::kF16
                                                               : DType::kBF16,
                     named.tensor.sizes().vec()});
  }
  WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));
  for (const Named& named : tensors) {
    WEFT_RETURN_IF_ERROR(writer.Append({static_cast<const std::byte*>(named.tensor.data_ptr()),
                                        static_cast<size_t>(named.tensor.nbytes())}));
  }
  return writer.Commit();
}

}  // namespace

absl::string_view ExportType(const ModelConfig& config) {
  // GPT-2 and GPT-NeoX know no grouped queries, windows, scaled positions or experts.
  const bool grouped = config.KvHeads() != config.heads;
  const bool scaled = config.rotary_scaling != RotaryScaling::kNone;
  const bool plain = !grouped && config.window == 0 && !scaled && !config.HasExperts();
  bool layernorm_gelu =
      config.norm == NormKind::kLayerNorm && config.activation == ActivationKind::kGelu;
  bool rotary = config.position == PositionKind::kRotary;
  bool serial = config.block == BlockKind::kSerial;
  if (layernorm_gelu && rotary && plain) return "gpt_neox";
  if (layernorm_gelu && serial && !rotary && plain) return "gpt2";
  bool rms_swiglu =
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

absl::Status ExportModel(const Gpt& model, const std::string& tokenizer_path, int32_t eod_id,
                         const std::string& folder) {
  WEFT_RETURN_IF_ERROR(MakeFolders(folder));
  WEFT_RETURN_IF_ERROR(WriteTensors(Exporter(model).Run(), folder + "/model.safetensors"));
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(
      folder + "/config.json", ConfigJson(model.config(), model.dtype(), eod_id).dump(2) + "\n"));
  WEFT_ASSIGN_OR_RETURN(std::string tokenizer, ReadFile(tokenizer_path));
  return WriteFileAtomically(folder + "/tokenizer.model", tokenizer);
}

}  // namespace weft::train
