#include "trainer/model/packed_weights.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/match.h"

namespace weft::train {

using kernels::Bf16;

template <typename T>
const uint32_t* PackedWeight::Panels(const kernels::GemmOperand<T>& b, int64_t n, int64_t k,
                                     int64_t split) {
  constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;
  const int64_t now = changes_();
  const bool is_packed = packed_at_ == now && split_ == split;
  const int64_t words = kernels::Gemm().packed_words(kIsBf16, n, k, split);
  if (!memory_.defined() || memory_.numel() < words) memory_ = at::empty({words}, at::kInt);
  uint32_t* const panels = static_cast<uint32_t*>(memory_.data_ptr());
  if (is_packed) return panels;
  if constexpr (kIsBf16) {
    kernels::Gemm().pack_bf16(b, n, k, split, panels);
  } else {
    kernels::Gemm().pack_f32(b, n, k, split, panels);
  }
  packed_at_ = now;
  split_ = split;
  return panels;
}

template const uint32_t* PackedWeight::Panels(const kernels::GemmOperand<float>& b, int64_t n,
                                              int64_t k, int64_t split);
template const uint32_t* PackedWeight::Panels(const kernels::GemmOperand<Bf16>& b, int64_t n,
                                              int64_t k, int64_t split);

Bytes PackedBytes(const ModelConfig& config, const ModelPart& part, PackedPart packed,
                  Precision precision, const GemmLibraries& libraries) {
  const bool has_head = std::any_of(part.chunks.begin(), part.chunks.end(),
                                    [](const ModelChunk& chunk) { return chunk.has_head; });
  const char* const head = config.tied ? "embedding.token" : "head.weight";
  int64_t words = 0;
  if (packed == PackedPart::kNone) return Bytes(0);
  for (const ParameterSpec& spec : GptParameters(config, part)) {
    const bool is_head = has_head && spec.name == head;
    const bool is_layer = IsBlockMatrix(spec) && !absl::StrContains(spec.name, ".router.");
    if (!is_head && !(is_layer && packed == PackedPart::kAll)) continue;
    const int64_t outputs = spec.shape[0], inputs = spec.shape[1];
    for (GemmPass pass : {GemmPass::kForward, GemmPass::kInputGradient}) {
      if (libraries.Of({pass, inputs, outputs}) != KernelLibrary::kWeft) continue;
      const bool is_forward = pass == GemmPass::kForward;
      const int64_t n = is_forward ? outputs : inputs;
      words += kernels::Gemm().packed_words(precision == Precision::kBf16, n,
                                            is_forward ? inputs : outputs, n);
    }
  }
  return Bytes(words * static_cast<int64_t>(sizeof(uint32_t)));
}

}  // namespace weft::train
