// The presets of weft-train: a model, by its name in topology/job/model_shape.h or by its keys, and
// a way to train it.
#include <array>

#include "trainer/config.h"

namespace weft::train {
namespace {

// The data that the demo prepares.
constexpr absl::string_view kData = "data.prefix=data/gcide/gcide";

constexpr auto kTiny = std::to_array<absl::string_view>({
    kData,
    "model.layers=4",
    "model.hidden=128",
    "model.heads=4",
    "model.sequence=128",
    "train.steps=100",
    "train.global_batch=16",
    "optimizer.learning_rate=2e-3",
    "optimizer.min_learning_rate=2e-4",
    "optimizer.warmup_steps=10",
    "validation.every=50",
    "validation.batches=2",
    "checkpoint.every=50",
});
constexpr auto kMoeTiny = std::to_array<absl::string_view>({
    kData,
    "model.style=mixtral",
    "model.layers=4",
    "model.hidden=128",
    "model.heads=4",
    "model.kv_heads=2",
    "model.ffn=192",
    "model.sequence=128",
    "model.experts=8",
    "model.experts_per_token=2",
    "train.steps=100",
    "train.global_batch=16",
    "optimizer.learning_rate=2e-3",
    "optimizer.min_learning_rate=2e-4",
    "optimizer.warmup_steps=10",
    "validation.every=50",
    "validation.batches=2",
    "checkpoint.every=50",
});
constexpr auto kGpt2 = std::to_array<absl::string_view>({
    kData,
    "model.preset=gpt2-124m",
    "train.global_batch=8",
    "train.micro_batch=1",
    "optimizer.learning_rate=6e-4",
    "optimizer.min_learning_rate=6e-5",
    "optimizer.warmup_steps=700",
});
constexpr auto kLlama = std::to_array<absl::string_view>({
    kData,
    "model.preset=llama-160m",
    "train.global_batch=8",
    "train.micro_batch=1",
    "optimizer.learning_rate=6e-4",
    "optimizer.min_learning_rate=6e-5",
    "optimizer.warmup_steps=700",
});

constexpr auto kPresets = std::to_array<Preset>({
    {"tiny", "1 M parameters, 100 steps: a first try of a layout, seconds on two cores", kTiny},
    {"moe-tiny", "a small Mixtral: 8 experts, 2 a token, grouped queries, 100 steps", kMoeTiny},
    {"gpt2-124m", "GPT-2's smallest: 12 layers of 768, 1,024 tokens", kGpt2},
    {"llama-160m", "a small Llama: 12 layers of 768, rotary, SwiGLU, RMSNorm", kLlama},
});

}  // namespace

absl::Span<const Preset> Presets() { return kPresets; }

}  // namespace weft::train
