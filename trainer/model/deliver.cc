#include "trainer/model/deliver.h"

#include "trainer/profile/work_time.h"

namespace weft::train::operations {

void DeliverTo(const GradientTarget& target, const at::Tensor& gradient) {
  const WorkScope scope(Work::kGradients);
  if (target.add) {
    target.tensor.add_(gradient);
  } else {
    target.tensor.copy_(gradient);
  }
}

namespace {

void DeliverWeight(const Context& context, int weight, const at::Tensor& dy, const at::Tensor& x) {
  const GradientTarget target = context.sink->Begin(weight);
  Multiply(context.model->gemm(), dy.t(), x, target.tensor, target.add);
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
    const WorkScope scope(Work::kGradients);
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
