#include "trainer/config_check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::train {
namespace {

absl::Status CheckFolders(const TrainConfig& config, const Settings& settings) {
  if (config.checkpoint_local_folder.empty()) return absl::OkStatus();
  if (!config.checkpoint_background) {
    return WrongValue(settings, "checkpoint.local_folder", "needs checkpoint.background = true");
  }
  if (config.checkpoint_local_folder == config.checkpoint_remote_folder) {
    return WrongValue(settings, "checkpoint.local_folder",
                      "is checkpoint.remote_folder, too; each tier needs a folder of its own");
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const ModelConfig& model, const Settings& settings) {
  const auto error = [&settings](absl::string_view name, absl::string_view what) {
    return WrongValue(settings, name, what);
  };
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
  return absl::OkStatus();
}

absl::Status CheckSchedule(const OptimizerConfig& optimizer, const Settings& settings) {
  if (optimizer.min_learning_rate > optimizer.learning_rate) {
    return WrongValue(
        settings, "optimizer.min_learning_rate",
        absl::StrCat("must not be above optimizer.learning_rate = ", optimizer.learning_rate));
  }
  if (optimizer.schedule == ScheduleKind::kInverseSqrt && optimizer.warmup_steps == 0) {
    return WrongValue(settings, "optimizer.warmup_steps",
                      "optimizer.schedule = inverse_sqrt falls from the end of the warm-up on, by "
                      "its length; 1 is the least");
  }
  const int64_t stable = std::max<int64_t>(0, optimizer.decay_steps - optimizer.warmup_steps);
  if (optimizer.schedule == ScheduleKind::kWsd && optimizer.wsd_steps > stable) {
    return WrongValue(
        settings, "optimizer.decay_fraction",
        absl::StrCat("a decay of ", optimizer.wsd_steps, " steps, but ", optimizer.decay_steps,
                     " (optimizer.decay_steps, or train.steps) leave ", stable,
                     " behind optimizer.warmup_steps = ", optimizer.warmup_steps));
  }
  return absl::OkStatus();
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

}  // namespace

absl::Status WrongValue(const Settings& settings, absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(settings.Origin(name), ": ", name, " = ", settings.ValueText(name), ": ", what));
}

absl::Status CheckConfig(const TrainConfig& config, const Settings& settings) {
  const auto error = [&settings](absl::string_view name, absl::string_view what) {
    return WrongValue(settings, name, what);
  };
  WEFT_RETURN_IF_ERROR(CheckFolders(config, settings));
  WEFT_RETURN_IF_ERROR(CheckModel(config.model, settings));
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
  return CheckSchedule(config.optimizer, settings);
}

}  // namespace weft::train
