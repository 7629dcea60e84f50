#include "trainer/config_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/job/model_shape.h"
#include "trainer/config.h"
#include "trainer/config_toml.h"

namespace weft::train {
namespace {

using Pairs = std::vector<std::pair<const char*, std::string>>;

absl::Status ApplyPairs(const Pairs& pairs, const std::string& origin, Settings& settings) {
  for (const auto& [key, value] : pairs) {
    WEFT_RETURN_IF_ERROR(settings.Set(absl::StrCat("model.", key), value, origin));
  }
  return absl::OkStatus();
}

Pairs StylePairs(const topology::ModelShape& shape) {
  return {{"block", shape.block == BlockKind::kParallel ? "parallel" : "serial"},
          {"position", shape.position == PositionKind::kRotary ? "rotary" : "learned"},
          {"activation", shape.IsGated() ? "swiglu" : "gelu"},
          {"norm", shape.norm == NormKind::kRmsNorm ? "rmsnorm" : "layernorm"},
          {"tied", shape.tied ? "true" : "false"},
          {"bias", shape.bias ? "true" : "false"},
          {"experts", absl::StrCat(shape.experts)},
          {"experts_per_token", absl::StrCat(shape.top_k)}};
}

absl::Status ApplyPreset(const std::string& name, Settings& settings) {
  WEFT_ASSIGN_OR_RETURN(const topology::ModelPreset preset, topology::FindModel(name));
  const topology::ModelShape& shape = preset.shape;
  Pairs pairs = StylePairs(shape);
  for (const auto& [key, value] :
       {std::pair{"layers", shape.layers}, std::pair{"hidden", shape.hidden},
        std::pair{"heads", shape.heads},
        std::pair{"kv_heads", shape.kv_hidden > 0 ? shape.KvHeads() : 0},
        std::pair{"ffn", shape.ffn}, std::pair{"sequence", shape.sequence}}) {
    pairs.emplace_back(key, absl::StrCat(value));
  }
  return ApplyPairs(pairs, absl::StrCat("model.preset = ", name), settings);
}

absl::Status ApplyStyle(const std::string& name, Settings& settings) {
  WEFT_ASSIGN_OR_RETURN(const topology::ModelStyle style, topology::FindStyle(name));
  return ApplyPairs(StylePairs(style.shape), absl::StrCat("model.style = ", name), settings);
}

absl::Status ApplyRunPreset(absl::string_view name, Settings& settings) {
  std::string names;
  for (const Preset& preset : Presets()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", preset.name);
    if (preset.name != name) continue;
    for (absl::string_view pair : preset.pairs) {
      WEFT_RETURN_IF_ERROR(settings.SetPair(std::string(pair), absl::StrCat("preset ", name)));
    }
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no preset; these are: ", names));
}

absl::Status ApplyGiven(absl::string_view preset, const std::string& path,
                        const std::vector<std::string>& overrides, Settings& settings) {
  if (!preset.empty()) WEFT_RETURN_IF_ERROR(ApplyRunPreset(preset, settings));
  if (!path.empty()) WEFT_RETURN_IF_ERROR(ApplyFile(path, settings));
  for (const std::string& pair : overrides) WEFT_RETURN_IF_ERROR(settings.SetPair(pair, "--set"));
  return absl::OkStatus();
}

// A run's preset that has a model of its own goes before model.preset, which would then change
// nothing.
absl::Status CheckPresets(absl::string_view preset, const Settings& settings) {
  const std::string origin = settings.Origin("model.preset");
  for (const Preset& one : Presets()) {
    if (one.name != preset || origin == absl::StrCat("preset ", preset)) continue;
    const auto own = std::find_if(one.pairs.begin(), one.pairs.end(), [](absl::string_view pair) {
      return absl::StartsWith(pair, "model.layers=");
    });
    if (own == one.pairs.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": model.preset = ", settings.Text("model.preset"), ": --preset ",
                     preset, " has a model of its own (", *own,
                     " and others); either of the two, or the keys of [model] "
                     "by themselves"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Settings> GivenSettings(absl::string_view preset, const std::string& path,
                                       const std::vector<std::string>& overrides) {
  Settings settings(TrainSettings());
  WEFT_RETURN_IF_ERROR(ApplyGiven(preset, path, overrides, settings));
  const std::string model = settings.Text("model.preset"), style = settings.Text("model.style");
  if (model == "none" && style == "none") return settings;
  if (model != "none") WEFT_RETURN_IF_ERROR(CheckPresets(preset, settings));
  // Again from the defaults: what is given goes on top of the model's preset and style.
  settings = Settings(TrainSettings());
  if (model != "none") WEFT_RETURN_IF_ERROR(ApplyPreset(model, settings));
  if (style != "none") WEFT_RETURN_IF_ERROR(ApplyStyle(style, settings));
  WEFT_RETURN_IF_ERROR(ApplyGiven(preset, path, overrides, settings));
  return settings;
}

}  // namespace weft::train
