#include "trainer/config.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/toml.h"
#include "trainer/kernels/instruction_sets.h"

namespace weft::train {
namespace {

// A value of the file as the text that Settings parses.
absl::StatusOr<std::string> ValueText(const toml::value& value) {
  if (value.is_boolean()) return std::string(value.as_boolean() ? "true" : "false");
  if (value.is_integer()) return absl::StrCat(value.as_integer());
  if (value.is_floating()) return absl::StrFormat("%.17g", value.as_floating());
  if (value.is_string()) return std::string(value.as_string().str);
  return absl::InvalidArgumentError("must be a number, a text, true or false");
}

absl::Status ApplyValue(const std::string& path, const std::string& name, const toml::value& value,
                        Settings& settings) {
  std::string origin = absl::StrCat(path, ":", value.location().line());
  absl::StatusOr<std::string> text = ValueText(value);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": ", name, " ", text.status().message()));
  }
  return settings.Set(name, *text, origin);
}

absl::Status ApplyFile(const std::string& path, Settings& settings) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, Bytes(kTomlSizeMax)));
  WEFT_ASSIGN_OR_RETURN(const toml::value root, ParseToml(text, path));
  for (const auto& [section, content] : root.as_table()) {
    if (!content.is_table()) {
      WEFT_RETURN_IF_ERROR(ApplyValue(path, section, content, settings));
      continue;
    }
    for (const auto& [key, value] : content.as_table()) {
      WEFT_RETURN_IF_ERROR(ApplyValue(path, absl::StrCat(section, ".", key), value, settings));
    }
  }
  return absl::OkStatus();
}

// Every key with the value in effect, readable by LoadTrainConfig.
std::string ToToml(const Settings& settings) {
  std::string text;
  absl::string_view group;
  for (const SettingRow& row : settings.table()) {
    // The keys that these stand for are all there.
    if (row.name == "model.preset" || row.name == "model.style") continue;
    absl::string_view prefix = row.name.substr(0, row.name.find('.'));
    if (prefix != group) {
      absl::StrAppend(&text, group.empty() ? "" : "\n", "[", prefix, "]\n");
      group = prefix;
    }
    std::string value = settings.ValueText(row.name);
    bool is_plain = row.type == SettingType::kInteger || row.type == SettingType::kReal;
    if (row.type == SettingType::kBool) value = settings.Bool(row.name) ? "true" : "false";
    if (row.type == SettingType::kReal) {
      value = absl::StrFormat("%.17g", settings.Real(row.name));
      if (value.find_first_of(".e") == std::string::npos) value += ".0";
      std::string brief = absl::StrFormat("%g", settings.Real(row.name));
      if (brief.find_first_of(".e") == std::string::npos) brief += ".0";
      if (std::stod(brief) == settings.Real(row.name)) value = brief;
    }
    if (!is_plain && row.type != SettingType::kBool) {
      std::string quoted = "\"";
      for (char c : value) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (c == '\n') {
          quoted += "\\n";
        } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t') {
          absl::StrAppendFormat(&quoted, "\\u%04X", c);
        } else {
          quoted += c;
        }
      }
      value = quoted + "\"";
    }
    absl::StrAppend(&text, row.name.substr(prefix.size() + 1), " = ", value, "\n");
  }
  return text;
}

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

RotaryScaling ParseRotaryScaling(const std::string& name) {
  if (name == "linear") return RotaryScaling::kLinear;
  if (name == "ntk") return RotaryScaling::kNtk;
  return name == "llama3" ? RotaryScaling::kLlama3 : RotaryScaling::kNone;
}

// "all", "even", "odd", or numbers and ranges as 0-3,6; all: an empty list.
absl::StatusOr<std::vector<bool>> ParseLayers(const std::string& text, int64_t layers) {
  std::vector<bool> chosen(static_cast<size_t>(layers), false);
  if (text == "all") return std::vector<bool>();
  if (text == "even" || text == "odd") {
    for (size_t i = text == "odd" ? 1 : 0; i < chosen.size(); i += 2) chosen[i] = true;
    return chosen;
  }
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int64_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is no layer; all, even, odd or a list as 0-3,6 is right"));
    }
    if (first < 0 || last < first || last >= layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not among the layers 0 to ", layers - 1));
    }
    std::fill(chosen.begin() + first, chosen.begin() + last + 1, true);
  }
  return chosen;
}

absl::StatusOr<ModelConfig> ReadModel(const Settings& settings) {
  ModelConfig model;
  model.layers = settings.Integer("model.layers");
  model.hidden = settings.Integer("model.hidden");
  model.heads = settings.Integer("model.heads");
  model.sequence = settings.Integer("model.sequence");
  model.block =
      settings.Text("model.block") == "parallel" ? BlockKind::kParallel : BlockKind::kSerial;
  model.position =
      settings.Text("model.position") == "rotary" ? PositionKind::kRotary : PositionKind::kLearned;
  model.activation = settings.Text("model.activation") == "swiglu" ? ActivationKind::kSwiglu
                                                                   : ActivationKind::kGelu;
  model.norm = settings.Text("model.norm") == "rmsnorm" ? NormKind::kRmsNorm : NormKind::kLayerNorm;
  model.tied = settings.Bool("model.tied");
  model.bias = settings.Bool("model.bias");
  model.dropout = settings.Real("model.dropout");
  model.norm_epsilon = settings.Real("model.norm_epsilon");
  model.rotary_base = settings.Real("model.rotary_base");
  model.rotary_scaling = ParseRotaryScaling(settings.Text("model.rotary_scaling"));
  model.rotary_factor = settings.Real("model.rotary_factor");
  model.rotary_original = settings.Integer("model.rotary_original");
  // Rounded down where it does not divide, which Validate refuses.
  const int64_t kv_heads = settings.Integer("model.kv_heads");
  if (kv_heads != model.heads) model.kv_hidden = model.hidden / model.heads * kv_heads;
  model.experts = settings.Integer("model.experts");
  model.top_k = settings.Integer("model.experts_per_token");
  model.capacity_factor = settings.Real("model.capacity_factor");
  model.balance_loss = settings.Real("model.balance_loss");
  model.router_z_loss = settings.Real("model.router_z_loss");
  model.window = settings.Integer("model.window");
  absl::StatusOr<std::vector<bool>> layers =
      ParseLayers(settings.Text("model.window_layers"), model.layers);
  if (!layers.ok()) {
    return Annotate(layers.status(),
                    absl::StrCat(settings.Origin("model.window_layers"), ": model.window_layers"));
  }
  model.window_layers = *std::move(layers);
  model.ffn = settings.Integer("model.ffn");
  if (model.ffn == 0) {
    model.ffn = model.IsGated() ? ((model.hidden * 8 + 2) / 3 + 31) / 32 * 32 : 4 * model.hidden;
  }
  return model;
}

OptimizerConfig ReadOptimizer(const Settings& settings) {
  OptimizerConfig optimizer;
  const std::string& name = settings.Text("optimizer.name");
  optimizer.name = name == "lamb"   ? OptimizerKind::kLamb
                   : name == "sgd"  ? OptimizerKind::kSgd
                   : name == "lion" ? OptimizerKind::kLion
                   : name == "muon" ? OptimizerKind::kMuon
                                    : OptimizerKind::kAdamW;
  optimizer.momentum = settings.Real("optimizer.momentum");
  optimizer.nesterov = settings.Bool("optimizer.nesterov");
  optimizer.lamb_bias_correction = settings.Bool("optimizer.lamb_bias_correction");
  optimizer.lamb_norm_clip = settings.Real("optimizer.lamb_norm_clip");
  optimizer.learning_rate = settings.Real("optimizer.learning_rate");
  optimizer.min_learning_rate = settings.Real("optimizer.min_learning_rate");
  optimizer.beta1 = settings.Real("optimizer.beta1");
  optimizer.beta2 = settings.Real("optimizer.beta2");
  optimizer.epsilon = settings.Real("optimizer.epsilon");
  optimizer.weight_decay = settings.Real("optimizer.weight_decay");
  optimizer.decay_all = settings.Bool("optimizer.decay_all");
  optimizer.clip = settings.Real("optimizer.clip");
  optimizer.warmup_steps = settings.Integer("optimizer.warmup_steps");
  optimizer.decay_steps = settings.Integer("optimizer.decay_steps");
  if (optimizer.decay_steps == 0) optimizer.decay_steps = settings.Integer("train.steps");
  optimizer.schedule = settings.Text("optimizer.schedule") == "constant" ? ScheduleKind::kConstant
                                                                         : ScheduleKind::kCosine;
  return optimizer;
}

// "first-last" or a number, of layers below `layers`.
absl::Status SetRange(absl::string_view range, int64_t layers, RecomputeKind kind,
                      std::vector<RecomputeKind>& recompute) {
  const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
  int64_t first = 0, last = 0;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
      !absl::SimpleAtoi(ends.back(), &last) || first < 0 || first > last || last >= layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", range, "' is no range of the ", layers, " layers, 0 to ", layers - 1));
  }
  for (int64_t layer = first; layer <= last; ++layer) {
    recompute[static_cast<size_t>(layer)] = kind;
  }
  return absl::OkStatus();
}

// "full" or "full:0-3,selective:4-7".
absl::StatusOr<std::vector<RecomputeKind>> ParseRecompute(const std::string& text, int64_t layers) {
  std::vector<RecomputeKind> recompute(static_cast<size_t>(layers), RecomputeKind::kNone);
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pieces =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    RecomputeKind kind = RecomputeKind::kNone;
    if (pieces.first == "full") {
      kind = RecomputeKind::kFull;
    } else if (pieces.first == "selective") {
      kind = RecomputeKind::kSelective;
    } else if (pieces.first != "none") {
      return absl::InvalidArgumentError(
          absl::StrCat("'", pieces.first, "' is none of none, selective and full"));
    }
    const std::string all = absl::StrCat("0-", layers - 1);
    WEFT_RETURN_IF_ERROR(SetRange(pieces.second.empty() ? absl::string_view(all) : pieces.second,
                                  layers, kind, recompute));
  }
  return recompute;
}

// "all", "none", or axes as data,tensor.
absl::StatusOr<OverlapAxes> ParseOverlap(const std::string& text) {
  if (text == "all") return OverlapAxes();
  OverlapAxes axes{false, false, false, false};
  if (text == "none") return axes;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    bool* const axis = part == "data"      ? &axes.data
                       : part == "tensor"  ? &axes.tensor
                       : part == "context" ? &axes.context
                       : part == "expert"  ? &axes.expert
                                           : nullptr;
    if (axis == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", part, "' is no axis; all, none, or some of data, tensor, context, expert is right"));
    }
    *axis = true;
  }
  return axes;
}

// How many chunks the schedule has on a stage, where that is not parallel.chunks; else "".
std::string WantedChunks(const TrainConfig& config) {
  switch (config.pipeline_schedule) {
    case topology::PipelineScheduleKind::kInterleaved:
      return config.pipeline_chunks < 2 ? "2 or more chunks" : "";
    case topology::PipelineScheduleKind::kZeroBubbleV:
      return config.pipeline_chunks != 2 ? "2 chunks" : "";
    default:
      return config.pipeline_chunks != 1 ? "1 chunk" : "";
  }
}

absl::Status Validate(const TrainConfig& config, const Settings& settings) {
  auto error = [&](absl::string_view name, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(settings.Origin(name), ": ", name, " = ",
                                                   settings.ValueText(name), ": ", what));
  };
  if (!config.checkpoint_local_folder.empty()) {
    if (!config.checkpoint_background) {
      return error("checkpoint.local_folder", "needs checkpoint.background = true");
    }
    if (config.checkpoint_local_folder == config.checkpoint_remote_folder) {
      return error("checkpoint.local_folder",
                   "is checkpoint.remote_folder, too; each tier needs "
                   "a folder of its own");
    }
  }
  const ModelConfig& model = config.model;
  if (model.hidden % model.heads != 0) {
    return error("model.hidden", absl::StrCat("must be a multiple of model.heads = ", model.heads));
  }
  int64_t head = model.hidden / model.heads;
  if (model.position == PositionKind::kRotary && head % 2 != 0) {
    return error("model.hidden", absl::StrCat("rotary positions need an even width of a head, not ",
                                              head, " = hidden / heads"));
  }
  const int64_t kv_heads = settings.Integer("model.kv_heads");
  if (kv_heads > 0 && model.heads % kv_heads != 0) {
    return error("model.kv_heads", absl::StrCat("must divide model.heads = ", model.heads));
  }
  if (model.HasExperts() && model.top_k > model.experts) {
    return error("model.experts_per_token",
                 absl::StrCat("a token takes at most all of model.experts = ", model.experts));
  }
  const bool scales = model.rotary_scaling != RotaryScaling::kNone;
  if (scales && model.position != PositionKind::kRotary) {
    return error("model.rotary_scaling", "needs model.position = rotary");
  }
  if (model.rotary_scaling == RotaryScaling::kLlama3 && model.rotary_original == 0) {
    return error("model.rotary_original", "rotary_scaling = llama3 asks for it");
  }
  if (config.micro_batch > config.global_batch) {
    return error("train.micro_batch",
                 absl::StrCat("must not be above train.global_batch = ", config.global_batch));
  }
  if (const std::string wanted = WantedChunks(config); !wanted.empty()) {
    return error("parallel.chunks",
                 absl::StrCat("parallel.schedule = ", topology::ToString(config.pipeline_schedule),
                              " has ", wanted,
                              " of layers on a stage; interleaved takes any "
                              "number from 2, zb-v takes 2, the others take 1"));
  }
  const int64_t group = settings.Integer("parallel.zero_group");
  if (settings.Integer("parallel.zero") == 0 && group > 1) {
    return error("parallel.zero_group", "parallel.zero = 0 shards nothing");
  }
  if (!config.master_weights && config.precision != Precision::kBf16) {
    return error("train.master_weights",
                 absl::StrCat("needs train.precision = bf16; it is ", NameOf(config.precision)));
  }
  if (config.device_collectives == DeviceCollectives::kNccl && config.device == DeviceKind::kCpu) {
    return error("parallel.collectives", "NCCL moves tensors of train.device = cuda alone");
  }
  for (const auto& [name, library] :
       {std::pair{"train.gemm", config.gemm}, std::pair{"train.attention", config.attention}}) {
    const bool is_atens = library == KernelLibrary::kAten || library == KernelLibrary::kAuto;
    if (!is_atens && config.device != DeviceKind::kCpu) {
      return error(name, "of train.device = cpu alone; the others take aten, or auto");
    }
  }
  if (config.optimizer.min_learning_rate > config.optimizer.learning_rate) {
    return error("optimizer.min_learning_rate",
                 absl::StrCat("must not be above optimizer.learning_rate = ",
                              config.optimizer.learning_rate));
  }
  return absl::OkStatus();
}

KernelLibrary LibraryOf(const std::string& name) {
  return name == "aten"     ? KernelLibrary::kAten
         : name == "weft"   ? KernelLibrary::kWeft
         : name == "onednn" ? KernelLibrary::kOneDnn
                            : KernelLibrary::kAuto;
}

}  // namespace

absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path,
                                            const std::vector<std::string>& overrides,
                                            absl::string_view preset) {
  Settings settings(TrainSettings());
  WEFT_RETURN_IF_ERROR(ApplyGiven(preset, path, overrides, settings));
  const std::string model = settings.Text("model.preset"), style = settings.Text("model.style");
  if (model != "none") WEFT_RETURN_IF_ERROR(CheckPresets(preset, settings));
  if (model != "none" || style != "none") {
    // Again from the defaults: what is given goes on top of the model's preset and style.
    settings = Settings(TrainSettings());
    if (model != "none") WEFT_RETURN_IF_ERROR(ApplyPreset(model, settings));
    if (style != "none") WEFT_RETURN_IF_ERROR(ApplyStyle(style, settings));
    WEFT_RETURN_IF_ERROR(ApplyGiven(preset, path, overrides, settings));
  }

  TrainConfig config;
  WEFT_ASSIGN_OR_RETURN(config.model, ReadModel(settings));
  if (model != "none") {  // until the data is read
    WEFT_ASSIGN_OR_RETURN(const topology::ModelPreset known, topology::FindModel(model));
    config.model.vocabulary = known.shape.vocabulary;
  }
  config.optimizer = ReadOptimizer(settings);
  config.steps = settings.Integer("train.steps");
  config.global_batch = settings.Integer("train.global_batch");
  config.micro_batch = settings.Integer("train.micro_batch");
  config.seed = static_cast<uint64_t>(settings.Integer("train.seed"));
  const std::string& precision = settings.Text("train.precision");
  bool is_bf16 = precision == "bf16" || (precision == "auto" && CpuHasFastBf16());
  config.precision = is_bf16               ? Precision::kBf16
                     : precision == "fp16" ? Precision::kFp16
                                           : Precision::kFp32;
  config.loss_scale = settings.Real("train.loss_scale");
  config.loss_scale_steps = settings.Integer("train.loss_scale_steps");
  config.master_weights = settings.Bool("train.master_weights");
  config.non_finite =
      settings.Text("train.non_finite") == "skip" ? NonFinite::kSkip : NonFinite::kFatal;
  absl::StatusOr<std::vector<RecomputeKind>> recompute =
      ParseRecompute(settings.Text("train.recompute"), config.model.layers);
  if (!recompute.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings.Origin("train.recompute"), ": train.recompute = ",
                     settings.ValueText("train.recompute"), ": ", recompute.status().message()));
  }
  config.recompute = *std::move(recompute);
  const std::string& moves = settings.Text("parallel.collectives");
  config.device_collectives = moves == "nccl"     ? DeviceCollectives::kNccl
                              : moves == "staged" ? DeviceCollectives::kStaged
                                                  : DeviceCollectives::kAuto;
  const std::string& device = settings.Text("train.device");
  config.device = device == "cuda"       ? DeviceKind::kCuda
                  : device == "cpu-aten" ? DeviceKind::kCpuAten
                                         : DeviceKind::kCpu;
  config.graphs = settings.Text("train.graphs") == "auto" ? GraphUse::kAuto : GraphUse::kOff;
  config.gemm = LibraryOf(settings.Text("train.gemm"));
  config.attention = LibraryOf(settings.Text("train.attention"));
  config.pack_weights = settings.Bool("train.pack_weights");
  config.loss_rows = settings.Integer("train.loss_rows");
  config.threads = static_cast<int>(settings.Integer("train.threads"));
  config.host_memory = settings.ByteCount("train.host_memory");
  config.peak_tflops = settings.Real("train.peak_tflops");
  config.tensorboard = settings.Bool("train.tensorboard");
  config.tensor_parallel = static_cast<int>(settings.Integer("parallel.tensor"));
  config.tensor_chunks = static_cast<int>(settings.Integer("parallel.tensor_chunks"));
  const std::string& gathered = settings.Text("parallel.tensor_gathered");
  config.tensor_gathered = gathered == "again"  ? GatheredRows::kAgain
                           : gathered == "keep" ? GatheredRows::kKeep
                                                : GatheredRows::kAuto;
  config.context_parallel = static_cast<int>(settings.Integer("parallel.context"));
  config.context_method = settings.Text("parallel.context_method") == "ulysses"
                              ? ContextMethod::kUlysses
                              : ContextMethod::kRing;
  config.expert_parallel = static_cast<int>(settings.Integer("parallel.expert"));
  config.expert_pieces = static_cast<int>(settings.Integer("parallel.expert_pieces"));
  config.pipeline_parallel = static_cast<int>(settings.Integer("parallel.pipeline"));
  WEFT_ASSIGN_OR_RETURN(config.pipeline_schedule,
                        topology::ParsePipelineSchedule(settings.Text("parallel.schedule")));
  config.pipeline_stages = settings.Text("parallel.stages");
  config.pipeline_chunks = static_cast<int>(settings.Integer("parallel.chunks"));
  if (config.pipeline_chunks == 0) {
    const bool several = config.pipeline_schedule == topology::PipelineScheduleKind::kInterleaved ||
                         config.pipeline_schedule == topology::PipelineScheduleKind::kZeroBubbleV;
    config.pipeline_chunks = several ? 2 : 1;
  }
  config.receives_ahead = static_cast<int>(settings.Integer("parallel.receives_ahead"));
  absl::StatusOr<OverlapAxes> overlap = ParseOverlap(settings.Text("parallel.overlap"));
  if (!overlap.ok()) {
    return Annotate(overlap.status(),
                    absl::StrCat(settings.Origin("parallel.overlap"), ": parallel.overlap"));
  }
  config.overlap = *overlap;
  config.zero_stage = static_cast<int>(settings.Integer("parallel.zero"));
  config.zero_group = static_cast<int>(settings.Integer("parallel.zero_group"));
  if (config.zero_stage == 0) {  // groups of one rank, each a replica of the others
    config.zero_stage = 1;
    config.zero_group = 1;
  }
  config.bucket_bytes = settings.ByteCount("parallel.bucket_bytes");
  const std::string& reduce = settings.Text("parallel.reduce_precision");
  config.reduce_precision = reduce == "fp32"      ? ReducePrecision::kFp32
                            : reduce == "compute" ? ReducePrecision::kCompute
                                                  : ReducePrecision::kAuto;
  config.data_prefix = settings.Text("data.prefix");
  config.data_prefetch = static_cast<int>(settings.Integer("data.prefetch"));
  config.validation_every = settings.Integer("validation.every");
  config.validation_batches = settings.Integer("validation.batches");
  config.checkpoint_every = settings.Integer("checkpoint.every");
  config.checkpoint_keep = static_cast<int>(settings.Integer("checkpoint.keep"));
  config.checkpoint_background = settings.Bool("checkpoint.background");
  config.checkpoint_local_folder = settings.Text("checkpoint.local_folder");
  config.checkpoint_remote_folder = settings.Text("checkpoint.remote_folder");
  config.checkpoint_remote_timeout = settings.Duration("checkpoint.remote_timeout");
  config.sample_prompt = settings.Text("sample.prompt");
  config.sample_tokens = settings.Integer("sample.tokens");
  config.sample_count = static_cast<int>(settings.Integer("sample.count"));
  config.sample_temperature = settings.Real("sample.temperature");
  config.sample_top_k = static_cast<int>(settings.Integer("sample.top_k"));
  config.log_every = settings.Integer("log.every");
  config.progress_mode = settings.Text("log.progress");
  config.trace_steps = settings.Integer("log.trace_steps");
  config.text = ToToml(settings);
  WEFT_RETURN_IF_ERROR(Validate(config, settings));
  return config;
}

std::string ResumeIdentity(const TrainConfig& config) {
  std::string identity;
  std::string section;
  std::vector<std::string> lines = absl::StrSplit(config.text, '\n');
  for (const std::string& line : lines) {
    if (!line.empty() && line[0] == '[') section = line.substr(1, line.size() - 2);
    size_t equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    std::string name = absl::StrCat(section, ".", line.substr(0, equals));
    if (section != "model" && name != "train.seed" && name != "train.global_batch" &&
        name != "data.prefix") {
      continue;
    }
    absl::StrAppend(&identity, name, line.substr(equals), "\n");
  }
  absl::StrAppend(&identity, "train.precision = ", NameOf(config.precision), "\n");
  return identity;
}

absl::StatusOr<TrainConfig> LoadIdentity(absl::string_view identity) {
  std::vector<std::string> pairs;
  for (absl::string_view line : absl::StrSplit(identity, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(" = ", 1));
    std::string value(parts.second);
    if (absl::StartsWith(value, "\"")) {
      WEFT_ASSIGN_OR_RETURN(const toml::value root,
                            ParseToml(absl::StrCat("text = ", value), std::string(parts.first)));
      WEFT_ASSIGN_OR_RETURN(value, ValueText(root.at("text")));
    }
    pairs.push_back(absl::StrCat(parts.first, "=", value));
  }
  return LoadTrainConfig("", pairs);
}

std::string DescribeDifference(absl::string_view before, absl::string_view now) {
  std::vector<std::string> old_lines = absl::StrSplit(before, '\n');
  std::vector<std::string> new_lines = absl::StrSplit(now, '\n');
  for (size_t i = 0; i < std::max(old_lines.size(), new_lines.size()); ++i) {
    std::string old_line = i < old_lines.size() ? old_lines[i] : "nothing";
    std::string new_line = i < new_lines.size() ? new_lines[i] : "nothing";
    if (old_line != new_line) return absl::StrCat("it had ", old_line, ", now there is ", new_line);
  }
  return "";
}

bool CpuHasFastBf16() {
  return kernels::CpuHas(kernels::InstructionSet::kAmx) || kernels::MultipliesPairsFast();
}

absl::string_view NameOf(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
    case Precision::kFp32:
      break;
  }
  return "fp32";
}

}  // namespace weft::train
