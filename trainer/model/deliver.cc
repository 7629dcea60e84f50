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

// The sum of dy over its rows. A bias is to its rows what a table of one position is to a sequence.
void DeliverBias(const Context& context, int bias, const at::Tensor& dy) {
  if (!GoesDeviceWay(dy)) return Deliver(context, bias, dy.sum(0));
  ByType(dy.scalar_type(), [&](auto type) {
    using T = decltype(type);
    DeliverTable<T>(context, bias, /*clears=*/false, [&](auto* out, bool add) {
      kernels::PositionBackward(KernelsOf(dy).Of<T>(), dy.size(0), dy.size(1), /*sequence=*/1,
                                Data<T>(dy), add, out);
    });
  });
}

}  // namespace

void DeliverNow(const Context& context, int parameter, const at::Tensor& gradient) {
  DeliverTo(context.sink->Begin(parameter), gradient);
  context.sink->End(parameter);
}

void Deliver(const Context& context, int parameter, const at::Tensor& gradient) {
  if (!PutsAllOff(context)) return DeliverNow(context, parameter, gradient);
  context.deferred->Add(
      [context, parameter, gradient] { DeliverNow(context, parameter, gradient); });
}

void DeliverLinear(const Context& context, const ParameterPair& layer, const at::Tensor& dy,
                   const at::Tensor& x) {
  Context now = context;  // in the closure nothing is put off again
  now.deferred = nullptr;
  auto deliver = [context = now, layer, dy, x] {
    const WorkScope scope(Work::kGradients);
    DeliverWeight(context, layer.weight, dy, x);
    if (layer.bias >= 0) DeliverBias(context, layer.bias, dy);
  };
  if (context.deferred == nullptr) {
    deliver();
  } else {
    context.deferred->Add(deliver);
  }
}

}  // namespace weft::train::operations
