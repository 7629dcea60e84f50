#include "trainer/model/deliver.h"

namespace weft::train::operations {
namespace {

void DeliverTo(const GradientTarget& target, const at::Tensor& gradient) {
  if (target.add) {
    target.tensor.add_(gradient);
  } else {
    target.tensor.copy_(gradient);
  }
}

void DeliverWeight(const Context& context, int weight, const at::Tensor& dy, const at::Tensor& x) {
  GradientTarget target = context.sink->Begin(weight);
  if (target.tensor.scalar_type() != x.scalar_type()) {
    DeliverTo(target, at::mm(dy.t(), x));
  } else if (target.add) {
    target.tensor.addmm_(dy.t(), x);
  } else {
    at::mm_out(target.tensor, dy.t(), x);
  }
  context.sink->End(weight);
}

}  // namespace

void Deliver(const Context& context, int parameter, const at::Tensor& gradient) {
  DeliverTo(context.sink->Begin(parameter), gradient);
  context.sink->End(parameter);
}

void DeliverLinear(const Context& context, const ParameterPair& layer, const at::Tensor& dy,
                   const at::Tensor& x) {
  auto deliver = [context, layer, dy, x] {
    DeliverWeight(context, layer.weight, dy, x);
    if (layer.bias >= 0) Deliver(context, layer.bias, dy.sum(0));
  };
  if (context.deferred == nullptr) {
    deliver();
  } else {
    context.deferred->Add(deliver);
  }
}

}  // namespace weft::train::operations
