#include "topology/job/model_shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::topology {
namespace {

constexpr ModelPreset kPresets[] = {
    {.name = "gpt-13b",
     .shape = {.layers = 40, .hidden = 5120, .heads = 40, .vocabulary = 64000, .sequence = 2048},
     .global_batch = 768},
    {.name = "gpt-175b",
     .shape = {.layers = 96, .hidden = 12288, .heads = 128, .vocabulary = 64000, .sequence = 2048},
     .global_batch = 6144,
     .interleave = 6},
    {.name = "gpt-530b",
     .shape = {.layers = 105, .hidden = 20480, .heads = 160, .vocabulary = 64000, .sequence = 2048},
     .global_batch = 11200,
     .interleave = 3},
    {.name = "gpt2-124m",
     .shape = {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .sequence = 1024},
     .global_batch = 512},
    {.name = "llama-160m",
     .shape = {.layers = 12,
               .hidden = 768,
               .heads = 12,
               .ffn = 3072,
               .vocabulary = 32000,
               .sequence = 2048,
               .position = PositionKind::kRotary,
               .activation = ActivationKind::kSwiglu,
               .norm = NormKind::kRmsNorm,
               .tied = false,
               .bias = false}},
};

constexpr ModelStyle kStyles[] = {
    {.name = "gpt2", .shape = {}},
    {.name = "llama",
     .shape = {.position = PositionKind::kRotary,
               .activation = ActivationKind::kSwiglu,
               .norm = NormKind::kRmsNorm,
               .tied = false,
               .bias = false}},
    {.name = "mixtral",
     .shape = {.experts = 8,
               .top_k = 2,
               .position = PositionKind::kRotary,
               .activation = ActivationKind::kSwiglu,
               .norm = NormKind::kRmsNorm,
               .tied = false,
               .bias = false}},
    {.name = "neox",
     .shape = {.block = BlockKind::kParallel, .position = PositionKind::kRotary, .tied = false}},
};

// The row of that name; `kind` is what the rows are.
template <typename Row>
absl::StatusOr<Row> Find(absl::Span<const Row> rows, absl::string_view kind,
                         absl::string_view name) {
  for (const Row& row : rows) {
    if (name == row.name) return row;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no ", kind, " '", name, "'; there are ",
      absl::StrJoin(rows, ", ",
                    [](std::string* out, const Row& row) { absl::StrAppend(out, row.name); })));
}

}  // namespace

int64_t ModelShape::AttentionElements() const {
  return 2 * hidden * hidden + 2 * hidden * KvHidden();
}

int64_t ModelShape::FeedForwardElements() const {
  return (IsGated() ? 3 : 2) * hidden * (ffn > 0 ? ffn : 4 * hidden);
}

absl::Span<const ModelPreset> ModelPresets() { return kPresets; }

absl::StatusOr<ModelPreset> FindModel(absl::string_view name) {
  return Find<ModelPreset>(kPresets, "model", name);
}

absl::StatusOr<ModelStyle> FindStyle(absl::string_view name) {
  return Find<ModelStyle>(kStyles, "style", name);
}

}  // namespace weft::topology
