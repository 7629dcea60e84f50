#include "trainer/model/feed_forward.h"

#include <optional>
#include <vector>

#include "trainer/model/deliver.h"
#include "trainer/model/product_epilogue.h"

namespace weft::train::operations {
namespace {

using kernels::GemmEpilogue;

// y = x * weight^T + bias, and then the epilogue.
at::Tensor Product(const Context& context, const at::Tensor& x, const ParameterPair& layer,
                   const ProductEpilogue& epilogue) {
  const at::Tensor& weight = context.model->parameter(layer.weight);
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  MultiplyThen(context.model->gemm(), x, weight.t(), y, ParameterOrNone(context, layer.bias),
               epilogue, context.model->packed(layer.weight, GemmPass::kForward));
  return y;
}
at::Tensor ProductAndSum(const Context& context, const at::Tensor& x, const at::Tensor& residual,
                         const ParameterPair& layer) {
  if (!residual.defined()) return Product(context, x, layer, {});
  return Product(context, x, layer, {GemmEpilogue::kAddOther, residual.contiguous(), {}});
}

at::Tensor InputGradient(const Context& context, const at::Tensor& dy, int weight) {
  const at::Tensor& matrix = context.model->parameter(weight);
  at::Tensor dx = at::empty({dy.size(0), matrix.size(1)}, dy.options());
  InputGradientInto(context, dy, weight, dx);
  return dx;
}

struct LinearAddFunction : torch::autograd::Function<LinearAddFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& residual,
                            const Context& context, const ParameterPair& layer) {
    SaveContext(ctx, context);
    SavePair(ctx, layer);
    ctx->save_for_backward({x});
    return ProductAndSum(context, x, residual, layer);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const ParameterPair layer = SavedPair(ctx);
    const at::Tensor dy = gradients[0].contiguous();
    DeliverLinear(context, layer, dy, ctx->get_saved_variables()[0]);
    return {InputGradient(context, dy, layer.weight), dy, {}, {}};
  }
};

struct FeedForwardFunction : torch::autograd::Function<FeedForwardFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& residual, const Context& context,
                            const Expert& layers) {
    SaveContext(ctx, context);
    ctx->saved_data["in"] = std::vector<int64_t>{layers.in.weight, layers.in.bias};
    ctx->saved_data["out"] = std::vector<int64_t>{layers.out.weight, layers.out.bias};
    ctx->saved_data["adds"] = residual.has_value();
    const ModelConfig& config = context.model->config();
    const int64_t width = context.model->parameter(layers.out.weight).size(1);
    const at::Tensor active = at::empty({x.size(0), width}, x.options());
    const GemmEpilogue kind = config.IsGated() ? GemmEpilogue::kSwiglu : GemmEpilogue::kGelu;
    const at::Tensor inner = Product(context, x, layers.in, {kind, {}, active});
    ctx->save_for_backward({x, inner, active});
    return ProductAndSum(context, active, residual.value_or(at::Tensor()), layers.out);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    auto pair = [ctx](const char* name) {
      const std::vector<int64_t> numbers = ctx->saved_data[name].toIntVector();
      return ParameterPair{static_cast<int>(numbers[0]), static_cast<int>(numbers[1])};
    };
    const Expert layers{pair("in"), pair("out")};
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &inner = saved[1], &active = saved[2];
    const at::Tensor dy = gradients[0].contiguous();
    DeliverLinear(context, layers.out, dy, active);
    const at::Tensor dinner = at::empty_like(inner);
    const GemmEpilogue kind = context.model->config().IsGated() ? GemmEpilogue::kSwigluGradient
                                                                : GemmEpilogue::kGeluGradient;
    MultiplyThen(context.model->gemm(), dy, context.model->parameter(layers.out.weight), dinner, {},
                 {kind, inner, {}},
                 context.model->packed(layers.out.weight, GemmPass::kInputGradient));
    DeliverLinear(context, layers.in, dinner, x);
    const at::Tensor dresidual = ctx->saved_data["adds"].toBool() ? dy : at::Tensor();
    return {InputGradient(context, dinner, layers.in.weight), dresidual, {}, {}};
  }
};

}  // namespace

at::Tensor LinearAdd(const Context& context, const at::Tensor& x, const at::Tensor& residual,
                     const ParameterPair& layer) {
  return LinearAddFunction::apply(x, residual, context, layer);
}

at::Tensor FeedForward(const Context& context, const at::Tensor& x, const at::Tensor& residual,
                       const Expert& layers) {
  // LibTorch's graph takes no undefined tensor.
  const std::optional<at::Tensor> added =
      residual.defined() ? std::optional(residual) : std::nullopt;
  return FeedForwardFunction::apply(x, added, context, layers);
}

}  // namespace weft::train::operations
