#include "trainer/config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/config_check.h"
#include "trainer/config_lists.h"
#include "trainer/config_settings.h"
#include "trainer/config_toml.h"
#include "trainer/kernels/instruction_sets.h"

namespace weft::train {
namespace {

RotaryScaling ParseRotaryScaling(const std::string& name) {
  if (name == "linear") return RotaryScaling::kLinear;
  if (name == "ntk") return RotaryScaling::kNtk;
  return name == "llama3" ? RotaryScaling::kLlama3 : RotaryScaling::kNone;
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
    return WrongValue(settings, "model.window_layers", layers.status().message());
  }
  model.window_layers = *std::move(layers);
  model.ffn = settings.Integer("model.ffn");
  if (model.ffn == 0) {
    model.ffn = model.IsGated() ? ((model.hidden * 8 + 2) / 3 + 31) / 32 * 32 : 4 * model.hidden;
  }
  if (const std::string& preset = settings.Text("model.preset"); preset != "none") {
    WEFT_ASSIGN_OR_RETURN(const topology::ModelPreset known, topology::FindModel(preset));
    model.vocabulary = known.shape.vocabulary;  // until the data is read
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
  const std::string& schedule = settings.Text("optimizer.schedule");
  optimizer.schedule = schedule == "constant"       ? ScheduleKind::kConstant
                       : schedule == "linear"       ? ScheduleKind::kLinear
                       : schedule == "wsd"          ? ScheduleKind::kWsd
                       : schedule == "inverse_sqrt" ? ScheduleKind::kInverseSqrt
                                                    : ScheduleKind::kCosine;
  optimizer.wsd_steps = std::llround(settings.Real("optimizer.decay_fraction") *
                                     static_cast<double>(optimizer.decay_steps));
  return optimizer;
}

KernelLibrary LibraryOf(const std::string& name) {
  return name == "aten"     ? KernelLibrary::kAten
         : name == "weft"   ? KernelLibrary::kWeft
         : name == "onednn" ? KernelLibrary::kOneDnn
                            : KernelLibrary::kAuto;
}

// The keys of [train]; config.model is there.
absl::Status ReadTraining(const Settings& settings, TrainConfig& config) {
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
    return WrongValue(settings, "train.recompute", recompute.status().message());
  }
  config.recompute = *std::move(recompute);
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
  return absl::OkStatus();
}

GatheredRows ParseGatheredRows(const std::string& name) {
  const auto found = std::find(kGatheredRowsNames.begin(), kGatheredRowsNames.end(), name);
  WEFT_CHECK(found != kGatheredRowsNames.end(), "parallel.tensor_gathered = " << name);
  return static_cast<GatheredRows>(found - kGatheredRowsNames.begin());
}

// The keys of [parallel].
absl::Status ReadParallel(const Settings& settings, TrainConfig& config) {
  const std::string& moves = settings.Text("parallel.collectives");
  config.device_collectives = moves == "nccl"     ? DeviceCollectives::kNccl
                              : moves == "staged" ? DeviceCollectives::kStaged
                                                  : DeviceCollectives::kAuto;
  config.tensor_parallel = static_cast<int>(settings.Integer("parallel.tensor"));
  config.tensor_chunks = static_cast<int>(settings.Integer("parallel.tensor_chunks"));
  config.tensor_gathered = ParseGatheredRows(settings.Text("parallel.tensor_gathered"));
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
  const std::string& replan = settings.Text("parallel.replan");
  config.replan = replan == "off"   ? ReplanKind::kOff
                  : replan == "any" ? ReplanKind::kAny
                                    : ReplanKind::kBitwise;
  absl::StatusOr<OverlapAxes> overlap = ParseOverlap(settings.Text("parallel.overlap"));
  if (!overlap.ok()) {
    return WrongValue(settings, "parallel.overlap", overlap.status().message());
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
  return absl::OkStatus();
}

// The keys of [data], [validation], [checkpoint], [sample] and [log].
absl::Status ReadOther(const Settings& settings, TrainConfig& config) {
  absl::StatusOr<DataBlend> data = ParseDataBlend(settings.Text("data.prefix"));
  if (!data.ok()) return WrongValue(settings, "data.prefix", data.status().message());
  config.data = *std::move(data);
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path,
                                            const std::vector<std::string>& overrides,
                                            absl::string_view preset) {
  WEFT_ASSIGN_OR_RETURN(const Settings settings, GivenSettings(preset, path, overrides));
  TrainConfig config;
  WEFT_ASSIGN_OR_RETURN(config.model, ReadModel(settings));
  config.optimizer = ReadOptimizer(settings);
  WEFT_RETURN_IF_ERROR(ReadTraining(settings, config));
  WEFT_RETURN_IF_ERROR(ReadParallel(settings, config));
  WEFT_RETURN_IF_ERROR(ReadOther(settings, config));
  config.text = ToToml(settings);
  WEFT_RETURN_IF_ERROR(CheckConfig(config, settings));
  return config;
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

absl::string_view NameOf(GatheredRows rows) {
  return kGatheredRowsNames[static_cast<size_t>(rows)];
}

int64_t SizeOf(Precision precision) { return precision == Precision::kFp32 ? 4 : 2; }

}  // namespace weft::train
