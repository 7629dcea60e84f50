// Which tensor of a Hugging Face model is which parameter of ours: one list, which export, and
// conversion in both directions, are made of.
//
//   learned positions, LayerNorm, GELU, serial            GPT-2
//   rotary positions, LayerNorm, GELU, serial or parallel GPT-NeoX
//   rotary positions, RMSNorm, SwiGLU, serial             Llama; Mistral with a window in every
//                                                         layer; Mixtral with experts
//   anything else                                         our own names, model_type "weft_gpt"
//
// Bytes are moved and not interpreted, so that any type of number keeps its bits.
#ifndef WEFT_TRAINER_HUGGINGFACE_TENSOR_ROWS_H_
#define WEFT_TRAINER_HUGGINGFACE_TENSOR_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/config.h"

namespace weft::train {

// "gpt2", "gpt_neox", "llama", "mistral", "mixtral" or "weft_gpt".
absl::string_view ExportType(const ModelConfig& config);

enum class Arrangement : uint8_t {
  kSame,
  kTransposed,  // GPT-2's Conv1D keeps its weights as [in, out]
  kByHead,      // GPT-NeoX has queries, keys and values of a head side by side: [heads, 3, width]
};

// One tensor of theirs.
struct TensorRow {
  std::string theirs;
  std::vector<int64_t> shape;  // of theirs
  // Our parameter that it holds all of, or number `part` of `parts` equal parts of its first
  // dimension. Empty: a bias that they must have and this model has not, which is zero.
  std::string ours;
  int64_t part = 0;
  int64_t parts = 1;
  Arrangement arrangement = Arrangement::kSame;
  int64_t heads = 1;     // kByHead
  bool repeats = false;  // `ours` is in an earlier row as well: both must be alike

  int64_t elements() const;
};

// The whole model's rows, in the order of the file. `config.vocabulary`, `ffn` are resolved. Every
// parameter of ours is in it.
std::vector<TensorRow> TensorRows(const ModelConfig& config);

// From our whole parameter to the row's tensor, and back into the row's place in our parameter;
// elements of `width` bytes. The row has a parameter of ours.
void ToTheirs(const TensorRow& row, int64_t width, absl::Span<const std::byte> ours,
              absl::Span<std::byte> theirs);
void ToOurs(const TensorRow& row, int64_t width, absl::Span<const std::byte> theirs,
            absl::Span<std::byte> ours);

}  // namespace weft::train

#endif  // WEFT_TRAINER_HUGGINGFACE_TENSOR_ROWS_H_
