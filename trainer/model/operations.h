// The differentiable operations of a GPT. Each takes numbers of parameters, not tensors: in the
// backward pass it writes their gradients to the sink. Activations are [rows, width], contiguous.
#ifndef WEFT_TRAINER_MODEL_OPERATIONS_H_
#define WEFT_TRAINER_MODEL_OPERATIONS_H_

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "trainer/model/gpt.h"

namespace weft::train::operations {

struct Context {
  const Gpt* model = nullptr;
  GradientSink* sink = nullptr;
  DeferredGradients* deferred = nullptr;  // may be null
};

// x * weight^T + bias.
at::Tensor Linear(const Context& context, const at::Tensor& x, const ParameterPair& layer);
// The norm of x, and x itself for the residual path: its gradient is added in the same loop.
std::pair<at::Tensor, at::Tensor> Norm(const Context& context, const at::Tensor& x,
                                       const ParameterPair& norm);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Swiglu(const at::Tensor& x);  // [rows, 2 * width] -> [rows, width]
// Causal attention with the window of the layer. projections: [B * length, 3 * C], queries, keys
// and values side by side; or queries [B * length, C] and, for grouped-query attention, keys and
// values [B * length, 2 * width of the key-value heads that this rank has]. Returns [B * length,
// C], C of the heads that this rank has. With rotary positions the projections are changed in
// place.
at::Tensor Attention(const Context& context, const std::vector<at::Tensor>& projections,
                     int64_t length, int64_t layer);
// Mixture of experts. Rows of x: those that this rank holds between the matrix products, of samples
// of `length` rows.
struct Routing {
  at::Tensor weights;  // fp32 [rows, k]; 0: dropped. In the graph
  at::Tensor choices;  // int64 [rows, k]: experts
  at::Tensor kept;     // bool [rows, k]
};
// `token_scale`: the weight of a token in the loss. Adds to `totals`, may be null.
Routing Route(const Context& context, const at::Tensor& x, int router, int64_t length,
              double token_scale, RouterTotals* totals);
// Sum over the choices of weight x expert(x): [rows, C].
at::Tensor Experts(const Context& context, const at::Tensor& x, const Routing& routing,
                   const std::vector<Expert>& experts_here);
// Losses of x * head^T, fp32 [all rows], a chunk of rows after the other: the logits of a chunk are
// overwritten by their gradient, of which x's and the head's are made at once, so that all logits
// never exist. Over a tensor axis x is this rank's rows and the head its part of the vocabulary.
at::Tensor HeadLoss(const Context& context, const at::Tensor& x, int head,
                    const LossRequest& request);
// tokens: int64 [B, length]; positions -1: none.
at::Tensor Embedding(const Context& context, const at::Tensor& tokens, int table, int positions);
// x with the elements that the key draws set to 0 and the others divided by 1 - probability. An
// element depends on key, place, its row's number (rows: int64 [rows of x]) and its column alone.
at::Tensor Dropout(const at::Tensor& x, double probability, uint64_t key, int64_t place,
                   const at::Tensor& rows);

// Over a tensor axis (tensor_axis.h). Activations "held" are this rank's rows; others are all rows.

// Gathers the rows of x [rows held, C] and multiplies: for each layer [rows, its outputs here].
std::vector<at::Tensor> GatherLinear(const Context& context, const at::Tensor& x,
                                     const std::vector<ParameterPair>& layers);
// Sum over the layers of xs[i] [rows, its inputs here] * weight^T, added up over the axis, with all
// biases: [rows held, C].
at::Tensor LinearScatter(const Context& context, const std::vector<at::Tensor>& xs,
                         const std::vector<ParameterPair>& layers);
// As Embedding, where each rank has the rows of the table from model.first_token() on: [rows held,
// C].
at::Tensor SplitEmbedding(const Context& context, const at::Tensor& tokens, int table,
                          int positions);

}  // namespace weft::train::operations

#endif  // WEFT_TRAINER_MODEL_OPERATIONS_H_
