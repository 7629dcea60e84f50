#include "collectives/c10d/dispatch.h"

#include <ATen/core/VariableHooksInterface.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace weft::collectives {
namespace {

bool RequiresGradient(const at::Tensor& tensor) { return tensor.requires_grad(); }
bool RequiresGradient(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->requires_grad();
}
bool RequiresGradient(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) return true;
  }
  return false;
}
template <typename Other>
bool RequiresGradient(const Other&) {
  return false;
}

void Fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  at::impl::GetVariableHooks()->basic_autograd_not_implemented_fallback(op, keys, stack);
}

template <const char* kOperator, typename Function>
struct Shortcut;

template <const char* kOperator, typename Result, typename... Arguments>
struct Shortcut<kOperator, Result(Arguments...)> {
  static Result Run(c10::DispatchKeySet keys, Arguments... arguments) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(kOperator, "")
                               .template typed<Result(Arguments...)>();
    if ((RequiresGradient(arguments) || ...) && at::GradMode::is_enabled()) {
      static const auto fallback = c10::KernelFunction::makeFromBoxedFunction<&Fallback>();
      return fallback.template call<Result, Arguments...>(op, keys,
                                                          std::forward<Arguments>(arguments)...);
    }
    return op.redispatch(keys & c10::after_autograd_keyset, std::forward<Arguments>(arguments)...);
  }
  static void Register(torch::Library& library) {
    const auto op = c10::Dispatcher::singleton().findSchema({kOperator, ""});
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU)) {
      return;
    }
    library.impl(kOperator, &Run);
  }
};

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using ReduceOp = c10::intrusive_ptr<c10d::ReduceOp>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// As c10d's ProcessGroup.hpp calls them: a wrong one throws where it is registered. `bool, int64_t`
// at the end is whether the call is asynchronous, and its timeout in milliseconds.
constexpr char kAllReduce[] = "c10d::allreduce_";
using AllReduce = std::tuple<Tensors, Work>(at::TensorList, const Group&, const ReduceOp&,
                                            const std::optional<at::Tensor>& sparse_indices, bool,
                                            int64_t);
constexpr char kBroadcast[] = "c10d::broadcast_";
using Broadcast = std::tuple<Tensors, Work>(at::TensorList, const Group&, int64_t root_rank,
                                            int64_t root_tensor, bool, int64_t);
constexpr char kAllGather[] = "c10d::_allgather_base_";
using AllGather = std::tuple<at::Tensor, Work>(at::Tensor& output, at::Tensor& input, const Group&,
                                               bool, int64_t);
constexpr char kReduceScatter[] = "c10d::_reduce_scatter_base_";
using ReduceScatter = std::tuple<at::Tensor, Work>(at::Tensor& output, at::Tensor& input,
                                                   const Group&, const ReduceOp&, bool, int64_t);
constexpr char kAllReduceCoalesced[] = "c10d::allreduce_coalesced_";
using AllReduceCoalesced = Work(at::TensorList, const Group&, const ReduceOp&, bool, int64_t);
constexpr char kAllGatherCoalesced[] = "c10d::allgather_into_tensor_coalesced_";
using AllGatherCoalesced = Work(at::TensorList outputs, at::TensorList inputs, const Group&, bool);
constexpr char kReduceScatterCoalesced[] = "c10d::reduce_scatter_tensor_coalesced_";
using ReduceScatterCoalesced = Work(at::TensorList outputs, at::TensorList inputs, const Group&,
                                    const ReduceOp&, bool, int64_t);
constexpr char kReduce[] = "c10d::reduce_";
using Reduce = Work(at::TensorList, const Group&, const ReduceOp&, int64_t root_rank,
                    int64_t root_tensor, bool, int64_t);
constexpr char kAllToAll[] = "c10d::alltoall_base_";
using AllToAll = Work(at::Tensor& output, at::Tensor& input, const Group&,
                      std::vector<int64_t> output_splits, std::vector<int64_t> input_splits, bool,
                      int64_t);
constexpr char kBarrier[] = "c10d::barrier";
using Barrier = Work(at::Tensor unused, const Group&, const std::vector<int64_t>& devices, bool,
                     int64_t);
constexpr char kSend[] = "c10d::send", kReceive[] = "c10d::recv_";
using Message = Work(at::TensorList, const Group&, int64_t peer, int64_t tag);

}  // namespace

void ShortenDispatch() {
  // Never destroyed: what it registers may be called until the process is gone.
  static auto* library = [] {
    auto* kernels = new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::AutogradCPU,
                                       __FILE__, __LINE__);
    Shortcut<kAllReduce, AllReduce>::Register(*kernels);
    Shortcut<kBroadcast, Broadcast>::Register(*kernels);
    Shortcut<kAllGather, AllGather>::Register(*kernels);
    Shortcut<kReduceScatter, ReduceScatter>::Register(*kernels);
    Shortcut<kAllReduceCoalesced, AllReduceCoalesced>::Register(*kernels);
    Shortcut<kAllGatherCoalesced, AllGatherCoalesced>::Register(*kernels);
    Shortcut<kReduceScatterCoalesced, ReduceScatterCoalesced>::Register(*kernels);
    Shortcut<kReduce, Reduce>::Register(*kernels);
    Shortcut<kAllToAll, AllToAll>::Register(*kernels);
    Shortcut<kBarrier, Barrier>::Register(*kernels);
    Shortcut<kSend, Message>::Register(*kernels);
    Shortcut<kReceive, Message>::Register(*kernels);
    return kernels;
  }();
  static_cast<void>(library);
}

}  // namespace weft::collectives
