// Where a backward pass leaves the gradients of the parameters: not in tensors of its own, but
// straight in the place that the data-parallel engine names, so that a matrix product writes into
// the communication bucket.
#ifndef WEFT_TRAINER_MODEL_GRADIENT_SINK_H_
#define WEFT_TRAINER_MODEL_GRADIENT_SINK_H_

#include <ATen/ATen.h>

#include <deque>
#include <functional>

namespace weft::train {

struct GradientTarget {
  at::Tensor tensor;  // of the parameter's shape, contiguous; the compute type or fp32
  bool add = false;   // to what is there; else it is overwritten
};

// Called by the thread of the backward pass. Begin and End come in pairs, `uses` of them for a
// parameter in each backward pass; after the last End its gradient is whole.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual GradientTarget Begin(int parameter) = 0;
  virtual void End(int parameter) = 0;
  // Whether Begin and End may come before the backward pass that they belong to, while other
  // micro-batches' are still to come, and micro-batches of a parameter's neighbours be mixed. Where
  // not, those of a chunk come one micro-batch after the other, but for the tables of tokens.
  virtual bool TakesAnyOrder() const { return true; }
};

// Gradients of weights that a backward pass puts off, to be computed later, in order: the weight
// pass of pipeline schedules that split the backward pass. Where the sink does not take any order,
// the other gradients wait with them.
class DeferredGradients {
 public:
  void Add(std::function<void()> work) { work_.push_back(std::move(work)); }
  void Run() {
    for (; !work_.empty(); work_.pop_front()) work_.front()();
  }

 private:
  std::deque<std::function<void()>> work_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_GRADIENT_SINK_H_
