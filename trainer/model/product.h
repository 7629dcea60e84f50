// Matrix products of training, by LibTorch's libraries or by loops of our own (kernels/gemm.h).
#ifndef WEFT_TRAINER_MODEL_PRODUCT_H_
#define WEFT_TRAINER_MODEL_PRODUCT_H_

#include <ATen/ATen.h>

#include "trainer/config.h"

namespace weft::train {

// out = a * b, out += a * b where `add`, or out = a * b + bias. a: [m, k] and b: [k, n], each
// contiguous or the transpose of what is; out: [m, n]; bias: [n], may be undefined, not with `add`.
// One type, or an fp32 `out` of bf16. Tensors that our own loops do not take go to LibTorch.
void Multiply(KernelLibrary library, const at::Tensor& a, const at::Tensor& b, at::Tensor out,
              bool add = false, const at::Tensor& bias = {});

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_PRODUCT_H_
