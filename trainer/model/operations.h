// The differentiable operations of a GPT. Each takes numbers of parameters, not tensors: in the
// backward pass it writes their gradients to the sink. Activations are [rows, width], contiguous.
#ifndef WEFT_TRAINER_MODEL_OPERATIONS_H_
#define WEFT_TRAINER_MODEL_OPERATIONS_H_

#include <ATen/ATen.h>

#include <utility>

#include "trainer/model/gpt.h"

namespace weft::operations {

struct Context {
  const Gpt* model = nullptr;
  GradientSink* sink = nullptr;
};

// x * weight^T + bias; bias -1: none.
at::Tensor Linear(const Context& context, const at::Tensor& x, int weight, int bias);
// The norm of x, and x itself for the residual path: its gradient is added in the same loop.
std::pair<at::Tensor, at::Tensor> Norm(const Context& context, const at::Tensor& x, int weight,
                                       int bias);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Swiglu(const at::Tensor& x);  // [rows, 2 * width] -> [rows, width]
// Causal attention on queries, keys and values side by side: [B * length, 3 * C] -> [B * length,
// C]. With rotary positions qkv is changed in place.
at::Tensor Attention(const Context& context, const at::Tensor& qkv, int64_t length);
// tokens: int64 [B, length]; positions -1: none.
at::Tensor Embedding(const Context& context, const at::Tensor& tokens, int table, int positions);

}  // namespace weft::operations

#endif  // WEFT_TRAINER_MODEL_OPERATIONS_H_
