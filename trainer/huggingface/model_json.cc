#include "trainer/huggingface/model_json.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/huggingface/tensor_rows.h"
#include "trainer/rotary_base.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

// Llama and its kin, which have its names.
bool IsLlama(absl::string_view type) {
  return type == "llama" || type == "mistral" || type == "mixtral";
}

// "NTK-aware" scaling is another base, without a name.
bool HasNamedScaling(const ModelConfig& config) {
  return config.rotary_scaling == RotaryScaling::kLinear ||
         config.rotary_scaling == RotaryScaling::kLlama3;
}
Json Scaling(const ModelConfig& config) {
  if (config.rotary_scaling == RotaryScaling::kLinear) {
    return {{"rope_type", "linear"}, {"factor", config.rotary_factor}};
  }
  return {{"rope_type", "llama3"},
          {"factor", config.rotary_factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", config.rotary_original}};
}

void AddGpt2(const ModelConfig& config, Json& json) {
  json.update({{"architectures", {"GPT2LMHeadModel"}},
               {"n_layer", config.layers},
               {"n_head", config.heads},
               {"n_embd", config.hidden},
               {"n_positions", config.sequence},
               {"n_inner", config.ffn},
               {"activation_function", "gelu_new"},
               {"layer_norm_epsilon", config.norm_epsilon}});
}

void AddGptNeox(const ModelConfig& config, Json& json) {
  json.update({{"architectures", {"GPTNeoXForCausalLM"}},
               {"hidden_act", "gelu_new"},
               {"layer_norm_eps", config.norm_epsilon},
               {"rotary_pct", 1.0},
               {"rotary_emb_base", RotaryBase(config)},
               {"use_parallel_residual", config.block == BlockKind::kParallel}});
}

void AddLlama(const ModelConfig& config, absl::string_view type, Json& json) {
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
}

void AddOurs(const ModelConfig& config, Json& json) {
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

Json Describe(const ModelConfig& config, DType dtype, int32_t eod_id) {
  const std::string type(ExportType(config));
  Json json = {{"model_type", type},
               {"vocab_size", config.vocabulary},
               {"tie_word_embeddings", config.tied},
               {"bos_token_id", eod_id},
               {"eos_token_id", eod_id},
               {"torch_dtype", dtype == DType::kF32   ? "float32"
                               : dtype == DType::kF16 ? "float16"
                                                      : "bfloat16"}};
  if (type == "gpt2") {
    AddGpt2(config, json);
    return json;
  }
  json.update({{"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"hidden_size", config.hidden},
               {"intermediate_size", config.ffn},
               {"max_position_embeddings", config.sequence}});
  if (type == "gpt_neox") {
    AddGptNeox(config, json);
  } else if (IsLlama(type)) {
    AddLlama(config, type, json);
  } else {
    AddOurs(config, json);
  }
  return json;
}

// What transformers takes for keys that a config.json leaves out (its configuration classes of the
// same names). Null: no default that is known here.
Json DefaultOf(absl::string_view type, const std::string& key, const Json& theirs) {
  if (type == "weft_gpt") return nullptr;
  if (key == "tie_word_embeddings") return type == "gpt2";
  if (type == "gpt2") {
    static const Json defaults = {{"activation_function", "gelu_new"},
                                  {"layer_norm_epsilon", 1e-5}};
    if (key == "n_inner" && theirs.value("n_embd", Json()).is_number_integer()) {
      return 4 * theirs["n_embd"].get<int64_t>();
    }
    return defaults.value(key, Json());
  }
  if (type == "gpt_neox") {
    static const Json defaults = {{"hidden_act", "gelu"},
                                  {"layer_norm_eps", 1e-5},
                                  {"rotary_pct", 0.25},
                                  {"rotary_emb_base", 10000},
                                  {"use_parallel_residual", true}};
    return defaults.value(key, Json());
  }
  if (key == "num_key_value_heads") {
    const bool is_llama = theirs.value("model_type", Json()) == "llama";
    return is_llama ? theirs.value("num_attention_heads", Json()) : Json(8);
  }
  if (key == "rope_theta") return type == "mixtral" ? 1e6 : 1e4;
  if (key == "rms_norm_eps") return type == "mixtral" ? 1e-5 : 1e-6;
  static const Json defaults = {
      {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}};
  return defaults.value(key, Json());
}

// Newer transformers keep what concerns rotary positions in one object.
void SpreadRotary(Json& theirs) {
  Json rotary = theirs.value("rope_parameters", Json());
  if (!rotary.is_object()) return;
  if (rotary.contains("rope_theta")) {
    theirs["rope_theta"] = theirs["rotary_emb_base"] = rotary["rope_theta"];
    rotary.erase("rope_theta");
  }
  if (rotary.contains("partial_rotary_factor")) {
    theirs["rotary_pct"] = theirs["partial_rotary_factor"] = rotary["partial_rotary_factor"];
    rotary.erase("partial_rotary_factor");
  }
  const Json type = rotary.value("rope_type", rotary.value("type", Json("default")));
  const bool is_given = !theirs.value("rope_scaling", Json()).is_null();  // goes before
  if (type != "default" && !is_given) theirs["rope_scaling"] = rotary;
}

// Older transformers call a scaling's kind "type"; some write both names. "default" scales nothing.
void SettleScaling(Json& theirs) {
  Json scaling = theirs.value("rope_scaling", Json());
  if (!scaling.is_object()) return;
  const Json type = scaling.value("type", Json());
  if (!type.is_null() && scaling.value("rope_type", type) == type) {
    scaling.erase("type");
    scaling["rope_type"] = type;
  }
  theirs["rope_scaling"] = scaling.value("rope_type", Json()) == "default" ? Json() : scaling;
}

bool IsSame(const std::string& key, const Json& theirs, const Json& ours,
            const ModelConfig& config) {
  if (theirs.is_number() && ours.is_number()) {
    const bool is_length = key == "max_position_embeddings";
    if (is_length && config.position == PositionKind::kRotary) {
      return theirs.get<double>() >= ours.get<double>();
    }
    return theirs.get<double>() == ours.get<double>();
  }
  // Two names of the same function.
  if (ours == "gelu_new" && theirs == "gelu_pytorch_tanh") return true;
  return nlohmann::json(theirs) == nlohmann::json(ours);  // whatever the order of an object's keys
}

class Checker {
 public:
  Checker(Json theirs, const std::string& path, const ModelConfig& config)
      : theirs_(std::move(theirs)), path_(path), config_(config), type_(ExportType(config)) {}

  absl::Status Run() {
    WEFT_RETURN_IF_ERROR(CheckType());
    SpreadRotary(theirs_);
    SettleScaling(theirs_);
    // Keys of the file alone, or of no part of the model.
    static const std::set<std::string> others = {"model_type", "architectures", "bos_token_id",
                                                 "eos_token_id", "torch_dtype"};
    const Json ours = Describe(config_, DType::kF32, 0);
    for (const auto& [key, value] : ours.items()) {
      if (others.count(key) == 0) WEFT_RETURN_IF_ERROR(Check(key, value));
    }
    // What this model does not have, and theirs may.
    for (const char* key : {"rope_scaling", "sliding_window", "quantization_config"}) {
      if (!ours.contains(key)) WEFT_RETURN_IF_ERROR(Check(key, nullptr));
    }
    const std::pair<const char*, Json> fixed[] = {{"head_dim", config_.hidden / config_.heads},
                                                  {"partial_rotary_factor", 1.0},
                                                  {"scale_attn_by_inverse_layer_idx", false},
                                                  {"scale_attn_weights", true}};
    for (const auto& [key, value] : fixed) {
      if (!theirs_.value(key, Json()).is_null()) WEFT_RETURN_IF_ERROR(Check(key, value));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckType() {
    const Json type = theirs_.value("model_type", Json());
    // Mistral without a window is Llama.
    const bool plain = type == "mistral" && type_ == "llama" && theirs_.contains("sliding_window");
    if (type == std::string(type_) || plain) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path_, ": model_type is ", type.dump(),
                                                   ", but the config's model is a '", type_,
                                                   "' (docs/checkpoints.md lists which is which)"));
  }

  absl::Status Check(const std::string& key, const Json& ours) const {
    Json theirs = theirs_.value(key, Json());
    const bool is_given = !theirs.is_null();
    if (!is_given) theirs = DefaultOf(type_, key, theirs_);
    if (IsSame(key, theirs, ours, config_)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, " is ", theirs.is_null() ? "not given" : theirs.dump(),
                     is_given || theirs.is_null() ? "" : " (by default)",
                     ", but the config's model has ", ours.is_null() ? "none" : ours.dump()));
  }

  Json theirs_;
  const std::string& path_;
  const ModelConfig& config_;
  const absl::string_view type_;
};

}  // namespace

std::string ModelJson(const ModelConfig& config, DType dtype, int32_t eod_id) {
  return Describe(config, dtype, eod_id).dump(2) + "\n";
}

absl::Status CheckModelJson(absl::string_view text, const std::string& path,
                            const ModelConfig& config) {
  Json theirs = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!theirs.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  }
  return Checker(std::move(theirs), path, config).Run();
}

}  // namespace weft::train
