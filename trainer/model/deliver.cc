#include "trainer/model/deliver.h"

namespace weft::train::operations {

void Multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor out) { at::mm_out(out, a, b); }

void AddProduct(const GradientTarget& target, const at::Tensor& a, const at::Tensor& b) {
  if (target.tensor.scalar_type() != a.scalar_type()) {
    DeliverTo(target, at::mm(a, b));
  } else if (target.add) {
    target.tensor.addmm_(a, b);
  } else {
    Multiply(a, b, target.tensor);
  }
}

void DeliverTo(const GradientTarget& target, const at::Tensor& gradient) {
  if (target.add) {
    target.tensor.add_(gradient);
  } else {
    target.tensor.copy_(gradient);
  }
}

namespace {

void DeliverWeight(const Context& context, int weight, const at::Tensor& dy, const at::Tensor& x) {
  AddProduct(context.sink->Begin(weight), dy.t(), x);
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
