// Activations that are computed again in the backward pass instead of being kept (Chen et al.,
// "Training deep nets with sublinear memory cost", 2016; the selective form: Korthikanti et al.,
// "Reducing activation recomputation in large transformer models", MLSys 2023, section 5).
//
//   at::Tensor y = Recompute({x}, body);                  // keeps x alone, nothing of body's
//
//   Region region;
//   at::Tensor y = Recompute({x}, body, &region);
//   at::Tensor z = DropResult(Linear(y), {region});       // keeps x, and y not either
//
// `body` runs twice, the second time just before its gradients are needed; it must give the same
// both times and own what it captures. Used by one thread; exceptions pass through.
#ifndef WEFT_TRAINER_MODEL_RECOMPUTE_H_
#define WEFT_TRAINER_MODEL_RECOMPUTE_H_

#include <ATen/ATen.h>
#include <torch/custom_class.h>

#include <functional>
#include <vector>

namespace weft::train::operations {

using RecomputedBody = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// A part of the forward pass that runs again.
struct RecomputedRegion : torch::CustomClassHolder {
  RecomputedBody body;
  std::vector<at::Tensor> inputs;
  at::Tensor result;  // shares its memory with what the readers saved
  // The second run's tensors, with its graph.
  std::vector<at::Tensor> again_inputs;
  at::Tensor again_output;

  void RunAgain();
  void Clear();
};
using Region = c10::intrusive_ptr<RecomputedRegion>;

at::Tensor Recompute(const std::vector<at::Tensor>& xs, RecomputedBody body,
                     Region* region = nullptr);
// `z` is what all readers of the regions' results made of them: the results' memory is given back
// until z's gradient is there. Returns z.
at::Tensor DropResult(const at::Tensor& z, const std::vector<Region>& regions);

// x, whose gradient, when it is there, calls `hook` first.
at::Tensor OnBackward(const at::Tensor& x, std::function<void()> hook);

}  // namespace weft::train::operations

#endif  // WEFT_TRAINER_MODEL_RECOMPUTE_H_
