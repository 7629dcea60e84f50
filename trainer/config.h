// The configuration of a training run: one validated struct, read from a TOML file and from
// `--set name=value`.
//
//   WEFT_ASSIGN_OR_RETURN(TrainConfig config, LoadTrainConfig("demo.toml", {"train.steps=100"}));
//
// The keys are the rows of TrainSettings(), "section.key" there and [section] key in the file. An
// unknown key or a value that is not allowed is an error that names file, line and the nearest
// valid key. Values of text are taken as they are; "auto" is resolved by the engine, not here, but
// for train.precision.
#ifndef WEFT_TRAINER_CONFIG_H_
#define WEFT_TRAINER_CONFIG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/settings.h"
#include "base/units.h"
#include "topology/job/model_shape.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::train {

using topology::ActivationKind;
using topology::BlockKind;
using topology::NormKind;
using topology::PositionKind;
enum class Precision { kFp32, kBf16, kFp16 };
enum class OptimizerKind { kAdamW, kLamb, kSgd, kLion, kMuon };
// Which activations of a block are computed again in its backward pass: none; those of attention's
// core and of the nonlinearity; all but the block's input.
enum class RecomputeKind : uint8_t { kNone, kSelective, kFull };
// What multiplies matrices: the fastest in a trial at the start; what LibTorch takes (MKL in fp32,
// oneDNN in bf16); the loops of trainer/kernels/gemm.h; LibTorch's oneDNN in fp32 as well. The
// second and the third compute attention, too.
enum class KernelLibrary : uint8_t { kAuto, kAten, kWeft, kOneDnn };
enum class NonFinite { kFatal, kSkip };
// What a run computes on: the CPU with the loops of trainer/kernels; the CPU by the way that a GPU
// takes (LibTorch's operations, collectives through copies in host memory); a GPU.
enum class DeviceKind : uint8_t { kCpu, kCpuAten, kCuda };
// What moves a device's tensors between ranks: the communicator through host memory, or NCCL.
enum class DeviceCollectives : uint8_t { kAuto, kStaged, kNccl };
// Whether a GPU's passes are captured and launched as graphs, where they can be
// (loop/pass_graphs.h).
enum class GraphUse : uint8_t { kOff, kAuto };
// Context parallelism: keys and values go around, or heads are exchanged (model/context_axis.h).
enum class ContextMethod { kRing, kUlysses };
// Axes whose collectives run under computation; on the others a rank waits for each where it calls
// it.
struct OverlapAxes {
  bool data = true;
  bool tensor = true;
  bool context = true;
  bool expert = true;
};
// How the learning rate falls (optimizer/learning_rate.cc has the formulas).
enum class ScheduleKind { kCosine, kConstant, kLinear, kWsd, kInverseSqrt };
// parallel.tensor_gathered, and its values in the order of GatheredRows.
enum class GatheredRows { kAuto, kAgain, kKeep };
inline constexpr std::array<absl::string_view, 3> kGatheredRowsNames = {"auto", "again", "keep"};
static_assert(static_cast<size_t>(GatheredRows::kKeep) + 1 == kGatheredRowsNames.size());
// Whether a pipeline's lists are made anew for measured durations (parallel/schedule_replan.h), and
// whether losses stay as they were to the bit.
enum class ReplanKind : uint8_t { kOff, kBitwise, kAny };
enum class ReducePrecision { kAuto, kCompute, kFp32 };  // kAuto: fp32 where micro-batches add up

// How rotary frequencies are changed for longer samples than a model was trained on: all divided by
// the factor (Chen et al., 2023); the base times factor^(d/(d-2)), d the width of a head
// ("NTK-aware"); as Llama 3.1: only wavelengths that are long beside the original sequence are
// divided.
enum class RotaryScaling { kNone, kLinear, kNtk, kLlama3 };

// A shape whose `vocabulary` comes from the data and whose `ffn` is resolved, and how it is
// computed.
struct ModelConfig : topology::ModelShape {
  double dropout = 0;
  double norm_epsilon = 1e-5;
  double rotary_base = 10000;
  RotaryScaling rotary_scaling = RotaryScaling::kNone;
  double rotary_factor = 1;
  int64_t rotary_original = 0;  // tokens of a sample before scaling; kLlama3 asks for them
  double capacity_factor = 0;   // of an expert; 0: every choice finds a place
  double balance_loss = 0;      // weights of the router's losses (model/router.cc)
  double router_z_loss = 0;
  std::vector<bool> window_layers;  // by layer: whether `window` holds there; empty: everywhere

  int64_t WindowOf(int64_t layer) const {
    const bool all = window_layers.empty();
    return all || window_layers[static_cast<size_t>(layer)] ? window : 0;
  }
};

struct OptimizerConfig {
  OptimizerKind name = OptimizerKind::kAdamW;
  double learning_rate = 0;
  double min_learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double momentum = 0;  // SGD, Muon
  bool nesterov = true;
  bool lamb_bias_correction = true;
  double lamb_norm_clip = 0;  // 0: none
  double weight_decay = 0;
  bool decay_all = false;  // norms and biases, too
  double clip = 0;         // largest global gradient norm; 0: no clipping
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // until min_learning_rate is reached
  int64_t wsd_steps = 0;    // kWsd: the last ones of decay_steps, in which the rate falls
  ScheduleKind schedule = ScheduleKind::kCosine;
};

// data.prefix: what a run trains on. Nothing where no data is named.
struct DataBlend {
  std::vector<std::string> prefixes;  // of datasets, all different
  std::vector<double> shares;         // of each in the samples; they add up to 1
};

// parallel.tensor_chunks where it is left open and pieces can hide something.
inline constexpr int kTensorChunks = 2;

struct TrainConfig {
  ModelConfig model;
  OptimizerConfig optimizer;

  int64_t steps = 0;
  int64_t global_batch = 0;  // samples a step, over all ranks
  int64_t micro_batch = 0;   // samples a forward pass on a rank; 0: see train.micro_batch
  uint64_t seed = 0;
  DeviceKind device = DeviceKind::kCpu;
  DeviceCollectives device_collectives = DeviceCollectives::kAuto;
  GraphUse graphs = GraphUse::kOff;
  Precision precision = Precision::kFp32;  // "auto" is resolved
  bool master_weights = true;              // false: bf16 alone, rounded stochastically
  NonFinite non_finite = NonFinite::kFatal;
  double loss_scale = 1;                           // fp16: at the beginning
  int64_t loss_scale_steps = 0;                    // fp16: finite steps until it is doubled
  std::vector<RecomputeKind> recompute;            // of each layer
  KernelLibrary gemm = KernelLibrary::kAuto;       // what multiplies matrices
  KernelLibrary attention = KernelLibrary::kAuto;  // what computes attention
  bool pack_weights = true;                        // once a step, for the loops of gemm
  int64_t loss_rows = 0;                           // whose logits exist at one time; 0: chosen
  int threads = 0;           // compute threads a rank; 0: cores / ranks on this host
  Bytes host_memory;         // for the ranks of a host; 0: what it has
  double peak_tflops = 0;    // of one rank; 0: measured at the start
  bool tensorboard = false;  // event files in RUN/tensorboard

  int tensor_parallel = 1;  // ranks that share a layer
  // Exchanges in which their rows are moved, at most; 0: as parallel/core_share.h has it, or
  // kTensorChunks.
  int tensor_chunks = 1;
  GatheredRows tensor_gathered = GatheredRows::kAuto;  // left so, as kAgain
  int context_parallel = 1;                            // ranks that share a sample
  ContextMethod context_method = ContextMethod::kRing;
  int expert_parallel = 1;      // data-parallel ranks that share the experts of a layer
  int expert_pieces = 2;        // exchanges in which rows go to experts, at least
  int pipeline_parallel = 1;    // stages
  std::string pipeline_stages;  // auto, even, or the layers of each chunk: "3,4,4,1"
  int pipeline_chunks = 1;      // chunks of layers that a stage holds; resolved
  // Passes of the pipeline ahead of the running one whose receives are posted: one to be there when
  // that ends, one more because two neighbours seldom run in step.
  int receives_ahead = 2;
  ReplanKind replan = ReplanKind::kBitwise;
  OverlapAxes overlap;
  topology::PipelineScheduleKind pipeline_schedule = topology::PipelineScheduleKind::k1F1B;
  int zero_stage = 1;
  int zero_group = 0;  // ranks that share training state; 0: all of the data axis
  Bytes bucket_bytes;
  ReducePrecision reduce_precision = ReducePrecision::kAuto;

  DataBlend data;
  int data_prefetch = 2;           // batches read ahead; 0: each is read in its step
  int64_t validation_every = 0;    // steps; 0: at the end only
  int64_t validation_batches = 0;  // global batches

  int64_t checkpoint_every = 0;  // steps; 0: at the end only
  int checkpoint_keep = 0;
  bool checkpoint_background = false;
  std::string checkpoint_local_folder;                          // empty: none
  std::string checkpoint_remote_folder;                         // empty: none
  absl::Duration checkpoint_remote_timeout = absl::Minutes(2);  // for its last copy, at the end

  std::string sample_prompt;
  int64_t sample_tokens = 0;
  int sample_count = 0;
  double sample_temperature = 0;  // 0: greedy
  int sample_top_k = 0;           // 0: all tokens

  int64_t log_every = 0;      // steps between lines, where there is no terminal; 0: by time
  int64_t trace_steps = 0;    // the last steps whose spans go to trace.json
  std::string progress_mode;  // auto, bar, lines

  // As TOML, every key with its value; what config.toml of a run holds. LoadTrainConfig reads it.
  std::string text;
};

// The table of keys, in the order of docs/training-keys.md.
absl::Span<const SettingRow> TrainSettings();

// `path` may be empty: the defaults. `overrides` are "name=value". `preset` may be empty, else it
// is the name of one of Presets(): its values come before the file's, and the overrides last.
absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path,
                                            const std::vector<std::string>& overrides,
                                            absl::string_view preset = {});

// A model and a way to train it that need no file.
struct Preset {
  absl::string_view name;
  absl::string_view sentence;
  absl::Span<const absl::string_view> pairs;  // "name=value"
};
absl::Span<const Preset> Presets();

// Whether this CPU multiplies bf16 faster than fp32 (AMX, MultipliesPairsFast()): "auto" asks.
bool CpuHasFastBf16();
absl::string_view NameOf(Precision precision);
absl::string_view NameOf(GatheredRows rows);
int64_t SizeOf(Precision precision);  // bytes of a number

// The page docs/training-keys.md.
std::string TrainSettingsMarkdown();

}  // namespace weft::train

#endif  // WEFT_TRAINER_CONFIG_H_
