// Matrix products of training, by LibTorch's libraries or by loops of our own (kernels/gemm.h).
#ifndef WEFT_TRAINER_MODEL_PRODUCT_H_
#define WEFT_TRAINER_MODEL_PRODUCT_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "trainer/config.h"

namespace weft::train {

// "aten", "weft" or "onednn".
absl::string_view NameOf(KernelLibrary library);
std::optional<KernelLibrary> LibraryNamed(absl::string_view name);
// Whether this LibTorch lets us multiply fp32 by its oneDNN, on this CPU. Thread-safe.
bool HasOneDnn();

// Which product of a layer y = x * weight^T, weight: [outputs, inputs].
enum class GemmPass : uint8_t {
  kForward,         // x * weight^T
  kInputGradient,   // dy * weight
  kWeightGradient,  // dy^T * x
};
struct GemmShape {
  GemmPass pass = GemmPass::kForward;
  int64_t inputs = 0, outputs = 0;
  bool operator==(const GemmShape&) const = default;
};
// "forward.384x1536", "input.384x1536" or "weight.384x1536": inputs x outputs.
std::string ToString(const GemmShape& shape);
std::optional<GemmShape> GemmShapeFrom(absl::string_view text);

// What multiplies the matrices of a model: a library, and others for some shapes.
class GemmLibraries {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): one library for all is the usual case
  GemmLibraries(KernelLibrary all = KernelLibrary::kAten) : all_(all) {}

  KernelLibrary Of(const GemmShape& shape) const;
  void Set(const GemmShape& shape, KernelLibrary library);
  // The library of shapes that have no other, and the number of shapes that have `library` instead.
  KernelLibrary all() const { return all_; }
  int CountOf(KernelLibrary library) const;

  // "weft", or "weft,aten=forward.384x1536,aten=weight.384x384".
  std::string ToText() const;
  // None where `text` is none of these.
  static std::optional<GemmLibraries> FromText(absl::string_view text);

 private:
  KernelLibrary all_;
  std::vector<std::pair<GemmShape, KernelLibrary>> others_;
};

class PackedWeight;

// out = a * b, out += a * b where `add`, or out = a * b + bias. a: [m, k] and b: [k, n], each
// contiguous or the transpose of what is; out: [m, n]; bias: [n], may be undefined, not with `add`.
// One type, or an fp32 `out` of bf16. What the library does not take goes the way of kAten. Which
// product of a layer it is shows in what is transposed: b forward, a for the weight's gradient.
// `packed`: where our own loops have b packed (packed_weights.h); null: nowhere.
void Multiply(const GemmLibraries& libraries, const at::Tensor& a, const at::Tensor& b,
              at::Tensor out, bool add = false, const at::Tensor& bias = {},
              PackedWeight* packed = nullptr);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_PRODUCT_H_
