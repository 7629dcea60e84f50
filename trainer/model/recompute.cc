#include "trainer/model/recompute.h"

#include <torch/torch.h>

#include <string>
#include <utility>

namespace weft::train::operations {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void SetMemory(const at::Tensor& tensor, at::DataPtr memory) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList xs, const Region& region) {
    ctx->saved_data["region"] = c10::IValue::make_capsule(region);
    at::Tensor y = region->body(xs.vec());
    for (const at::Tensor& x : xs) region->inputs.push_back(x.detach());
    region->result = y.detach();
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const c10::intrusive_ptr<torch::CustomClassHolder> held = ctx->saved_data["region"].toCapsule();
    RecomputedRegion& region = static_cast<RecomputedRegion&>(*held);
    region.RunAgain();
    const std::vector<at::Tensor> inputs = std::move(region.again_inputs);
    const at::Tensor output = std::move(region.again_output);
    region.Clear();
    torch::autograd::backward({output}, {gradients[0]});
    variable_list results;
    for (const at::Tensor& input : inputs) results.push_back(input.grad());
    results.emplace_back();  // none for the other argument
    return results;
  }
};

// One argument to LibTorch, which would take a vector apart.
struct Regions {
  std::vector<Region> list;
};

struct DropResultFunction : torch::autograd::Function<DropResultFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& z, const Regions& regions) {
    std::vector<c10::IValue> capsules;
    for (const Region& region : regions.list) {
      SetMemory(region->result, at::DataPtr(nullptr, region->result.device()));
      capsules.push_back(c10::IValue::make_capsule(region));
    }
    for (size_t i = 0; i < capsules.size(); ++i) {
      ctx->saved_data["region" + std::to_string(i)] = capsules[i];
    }
    ctx->saved_data["regions"] = static_cast<int64_t>(capsules.size());
    return z;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const int64_t count = ctx->saved_data["regions"].toInt();
    for (int64_t i = 0; i < count; ++i) {
      const c10::intrusive_ptr<torch::CustomClassHolder> held =
          ctx->saved_data["region" + std::to_string(i)].toCapsule();
      RecomputedRegion& region = static_cast<RecomputedRegion&>(*held);
      region.RunAgain();
      // The readers' saved tensors see the second run's memory, which lives as long as they do.
      auto* output = new at::Tensor(region.again_output);
      SetMemory(region.result,
                at::DataPtr(
                    output->storage().mutable_data(), output,
                    [](void* kept) { delete static_cast<at::Tensor*>(kept); }, output->device()));
    }
    return {gradients[0], {}};
  }
};

struct Hook {
  std::function<void()> call;
};
struct HookHolder : torch::CustomClassHolder {
  explicit HookHolder(std::function<void()> hook) : call(std::move(hook)) {}
  std::function<void()> call;
};

struct OnBackwardFunction : torch::autograd::Function<OnBackwardFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Hook& hook) {
    ctx->saved_data["hook"] = c10::IValue::make_capsule(c10::make_intrusive<HookHolder>(hook.call));
    return x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const c10::intrusive_ptr<torch::CustomClassHolder> held = ctx->saved_data["hook"].toCapsule();
    static_cast<HookHolder&>(*held).call();
    return {gradients[0], {}};
  }
};

}  // namespace

void RecomputedRegion::RunAgain() {
  if (again_output.defined()) return;
  at::AutoGradMode grad_mode(true);
  for (const at::Tensor& input : inputs) {
    again_inputs.push_back(input.detach());
    again_inputs.back().requires_grad_(true);
  }
  again_output = body(again_inputs);
}

void RecomputedRegion::Clear() {
  body = nullptr;
  inputs.clear();
  again_inputs.clear();
  result = at::Tensor();
  again_output = at::Tensor();
}

at::Tensor Recompute(const std::vector<at::Tensor>& xs, RecomputedBody body, Region* region) {
  Region made = c10::make_intrusive<RecomputedRegion>();
  made->body = std::move(body);
  if (region != nullptr) *region = made;
  return RecomputeFunction::apply(at::TensorList(xs), made);
}

at::Tensor DropResult(const at::Tensor& z, const std::vector<Region>& regions) {
  return regions.empty() ? z : DropResultFunction::apply(z, Regions{regions});
}

at::Tensor OnBackward(const at::Tensor& x, std::function<void()> hook) {
  return OnBackwardFunction::apply(x, Hook{std::move(hook)});
}

}  // namespace weft::train::operations
