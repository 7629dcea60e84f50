// What the operations of operations.h share: the context on its way through LibTorch's graph, and
// the delivery of gradients to the sink. Not for others.
#ifndef WEFT_TRAINER_MODEL_DELIVER_H_
#define WEFT_TRAINER_MODEL_DELIVER_H_

#include <torch/torch.h>

#include "base/status.h"
#include "trainer/device/device.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/operations.h"
#include "trainer/model/product.h"

namespace weft::train::operations {

using kernels::Bf16;
using kernels::Fp16;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename T>
T* Data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}
template <typename T>
T* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? Data<T>(tensor) : nullptr;
}

// Calls `body` with a value of the C++ type of `dtype`.
template <typename Body>
void ByType(at::ScalarType dtype, Body body) {
  switch (dtype) {
    case at::kFloat:
      return body(float{});
    case at::kBFloat16:
      return body(Bf16{});
    case at::kHalf:
      return body(Fp16{});
    default:
      WEFT_CHECK(false, "dtype " << at::toString(dtype));
  }
}

// The context goes through LibTorch's graph as pointers.
inline void SaveContext(AutogradContext* ctx, const Context& context) {
  ctx->saved_data["model"] = reinterpret_cast<int64_t>(context.model);
  ctx->saved_data["sink"] = reinterpret_cast<int64_t>(context.sink);
  ctx->saved_data["deferred"] = reinterpret_cast<int64_t>(context.deferred);
}
inline Context SavedContext(AutogradContext* ctx) {
  return {reinterpret_cast<const Gpt*>(ctx->saved_data["model"].toInt()),
          reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt()),
          reinterpret_cast<DeferredGradients*>(ctx->saved_data["deferred"].toInt())};
}
inline void SavePair(AutogradContext* ctx, const ParameterPair& pair) {
  ctx->saved_data["weight"] = static_cast<int64_t>(pair.weight);
  ctx->saved_data["bias"] = static_cast<int64_t>(pair.bias);
}
inline ParameterPair SavedPair(AutogradContext* ctx) {
  return {static_cast<int>(ctx->saved_data["weight"].toInt()),
          static_cast<int>(ctx->saved_data["bias"].toInt())};
}

inline at::Tensor ParameterOrNone(const Context& context, int index) {
  return index < 0 ? at::Tensor() : context.model->parameter(index);
}

// x * weight^T + bias into `out`.
inline void MultiplyInto(const Context& context, const at::Tensor& x, const ParameterPair& layer,
                         const at::Tensor& out) {
  Multiply(context.model->gemm(), x, context.model->parameter(layer.weight).t(), out,
           /*add=*/false, ParameterOrNone(context, layer.bias),
           context.model->packed(layer.weight, GemmPass::kForward));
}
// dy * weight into `out`.
inline void InputGradientInto(const Context& context, const at::Tensor& dy, int weight,
                              const at::Tensor& out) {
  Multiply(context.model->gemm(), dy, context.model->parameter(weight), out, /*add=*/false, {},
           context.model->packed(weight, GemmPass::kInputGradient));
}
// Whether a backward pass puts off every gradient but those of the tables of tokens: the sink wants
// a micro-batch's gradients before the next one's, and those of matrices come in the weight pass.
inline bool PutsAllOff(const Context& context) {
  return context.deferred != nullptr && !context.sink->TakesAnyOrder();
}
void DeliverTo(const GradientTarget& target, const at::Tensor& gradient);
// The whole gradient of a parameter, now.
void DeliverNow(const Context& context, int parameter, const at::Tensor& gradient);
// The same, or in the weight pass where the backward pass puts all off.
void Deliver(const Context& context, int parameter, const at::Tensor& gradient);
// dweight = dy^T * x, written by the matrix product itself where the types agree, and
// dbias = the sum of dy over its rows; now, or when the deferred gradients run.
void DeliverLinear(const Context& context, const ParameterPair& layer, const at::Tensor& dy,
                   const at::Tensor& x);

// Calls body(data, add) with the target's data in the type that the sink has, fp32 or T. `clears`:
// data is 0 where nothing is to be added to.
template <typename T, typename Body>
void DeliverTable(const Context& context, int parameter, bool clears, Body body) {
  GradientTarget target = context.sink->Begin(parameter);
  if (clears && !target.add) target.tensor.zero_();
  if (target.tensor.scalar_type() == at::kFloat) {
    body(Data<float>(target.tensor), target.add);
  } else if constexpr (!std::is_same_v<T, float>) {
    body(Data<T>(target.tensor), target.add);
  }
  context.sink->End(parameter);
}

}  // namespace weft::train::operations

#endif  // WEFT_TRAINER_MODEL_DELIVER_H_
