// Collectives on one tensor a rank.
#include "collectives/c10d/call.h"
#include "collectives/c10d/deferred.h"
#include "collectives/c10d/sparse.h"

namespace weft::collectives {
namespace {

using c10d::OpType;

size_t CountOf(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

Traffic InPlace(at::TensorList tensors, int root = Traffic::kOwnRank) {
  const int64_t elements = ElementsOf(tensors);
  return {.input_elements = elements, .output_elements = elements, .peer = root};
}

}  // namespace

WeftBackend::WorkHandle WeftBackend::barrier(const c10d::BarrierOptions& options) {
  Call call(*this, OpType::BARRIER, "weft:barrier", options.timeout, {}, Traffic());
  call.Add(call.communicator().Barrier());
  return Start(call, options.asyncOp, {});
}

WeftBackend::WorkHandle WeftBackend::broadcast(Tensors& tensors,
                                               const c10d::BroadcastOptions& options) {
  const char* name = "broadcast";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckRank(name, "root", options.rootRank, size_);
  DataType type = MovedType(name, tensor);
  Call call(*this, OpType::BROADCAST, "weft:broadcast", options.timeout, tensors,
            InPlace(tensors, static_cast<int>(options.rootRank)));
  at::Tensor data = rank_ == options.rootRank ? call.Source(tensor) : call.Target(tensor, false);
  call.Add(call.communicator().Broadcast(data.data_ptr(), data.data_ptr(), CountOf(data), type,
                                         RankOf(options.rootRank)));
  return Start(call, options.asyncOp, tensors);
}

WeftBackend::WorkHandle WeftBackend::StartAllReduce(Tensors& tensors, Call call, const char* name,
                                                    const c10d::ReduceOp& op, bool is_async) {
  ReduceOp reduction = OperatorOf(name, op);
  // A list that has a wrong tensor starts nothing.
  for (size_t i = 1; i < tensors.size(); ++i) ReducedType(name, tensors[i], reduction);
  for (const at::Tensor& tensor : tensors) {
    const DataType type = ReducedType(name, tensor, reduction);
    const at::Tensor data = call.Reduced(tensor, op);
    void* const memory = data.data_ptr();
    call.Add(call.communicator().AllReduce(memory, memory, CountOf(data), type, reduction));
  }
  return Start(call, is_async, tensors);
}

WeftBackend::WorkHandle WeftBackend::allreduce(Tensors& tensors,
                                               const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) {
    return allreduce_sparse(tensors, options);
  }
  OnlyTensor("all-reduce", tensors);
  return StartAllReduce(
      tensors,
      Call(*this, OpType::ALLREDUCE, "weft:all_reduce", options.timeout, tensors, InPlace(tensors)),
      "all-reduce", options.reduceOp, options.asyncOp);
}

WeftBackend::WorkHandle WeftBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const char* name = "coalesced all-reduce";
  for (const at::Tensor& tensor : tensors) CheckTensor(name, tensor);
  return StartAllReduce(tensors,
                        Call(*this, OpType::ALLREDUCE_COALESCED, "weft:all_reduce", options.timeout,
                             tensors, InPlace(tensors)),
                        name, options.reduceOp, options.asyncOp);
}

WeftBackend::WorkHandle WeftBackend::allreduce_sparse(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const char* name = "sparse all-reduce";
  TORCH_CHECK(tensors.size() == 1, "weft ", name, ": got ", tensors.size(), " tensors");
  const at::Tensor& tensor = tensors[0];
  TORCH_CHECK(tensor.defined() && tensor.layout() == at::kSparse && tensor.device().is_cpu(),
              "weft ", name, ": got ", Describe(tensor), "; it takes COO tensors in host memory");
  TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "weft ", name,
              ": only SUM is defined for sparse tensors");
  ReducedType(name, tensor, ReduceOp::kSum);
  Call call(*this, OpType::_ALLREDUCE_SPARSE, "weft:sparse_all_reduce", options.timeout, tensors,
            InPlace(tensors));
  auto sum = std::make_shared<SparseAllReduce>(tensor, size_);
  auto result = std::make_shared<at::Tensor>();
  std::shared_ptr<Deferred> deferred = this->deferred();
  call.AtEnd([tensor, sum, result] { CopyInto(tensor, *result); });
  const WorkPtr started = sum->Start(call.communicator());
  call.Add(started);
  const Priority priority = priority_.load();
  call.Add(deferred->Run([sum, started, result, priority](Communicator& communicator) {
    communicator.SetPriority(priority);
    auto whole = sum->Finish(communicator, *started);
    if (!whole.ok()) return whole.status();
    *result = *std::move(whole);
    return absl::OkStatus();
  }));
  deferred.reset();  // its end fails what this call may wait for
  return Start(call, options.asyncOp, tensors);
}

WeftBackend::WorkHandle WeftBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const char* name = "reduce";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckRank(name, "root", options.rootRank, size_);
  ReduceOp op = OperatorOf(name, options.reduceOp);
  DataType type = ReducedType(name, tensor, op);
  Call call(*this, OpType::REDUCE, "weft:reduce", options.timeout, tensors,
            InPlace(tensors, static_cast<int>(options.rootRank)));
  bool root = rank_ == options.rootRank;
  at::Tensor data = root ? call.Reduced(tensor, options.reduceOp)
                         : call.Source(Call::Scaled(tensor, options.reduceOp));
  call.Add(call.communicator().Reduce(data.data_ptr(), root ? data.data_ptr() : nullptr,
                                      CountOf(data), type, op, RankOf(options.rootRank)));
  return Start(call, options.asyncOp, tensors);
}

void WeftBackend::AddAllGather(Call& call, const char* name, const at::Tensor& output,
                               const at::Tensor& input) {
  at::Tensor source = call.Source(input);
  at::Tensor target = call.Target(output, false);
  call.Add(call.communicator().AllGather(source.data_ptr(), target.data_ptr(), CountOf(source),
                                         MovedType(name, source)));
}

void WeftBackend::CheckGathered(const char* name, const at::Tensor& whole,
                                const at::Tensor& part) const {
  CheckTensor(name, whole);
  CheckTensor(name, part);
  CheckSameType(name, whole, part);
  CheckElements(name, whole, part.numel() * size_, "one part for each rank");
}

WeftBackend::WorkHandle WeftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& options) {
  const char* name = "all-gather";
  CheckGathered(name, output, input);
  MovedType(name, input);
  Call call(*this, OpType::_ALLGATHER_BASE, "weft:all_gather", options.timeout, {input},
            {.input_elements = input.numel(), .output_elements = output.numel()});
  AddAllGather(call, name, output, input);
  return Start(call, options.asyncOp, {output});
}

WeftBackend::WorkHandle WeftBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const char* name = "coalesced all-gather";
  TORCH_CHECK(outputs.size() == inputs.size(), "weft ", name, ": got ", outputs.size(),
              " outputs for ", inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckGathered(name, outputs[i], inputs[i]);
    MovedType(name, inputs[i]);
  }
  Call call(*this, OpType::COALESCED, "weft:all_gather", options.timeout, inputs,
            {.input_elements = ElementsOf(inputs), .output_elements = ElementsOf(outputs)});
  for (size_t i = 0; i < inputs.size(); ++i) AddAllGather(call, name, outputs[i], inputs[i]);
  return Start(call, options.asyncOp, outputs);
}

void WeftBackend::AddReduceScatter(Call& call, const char* name, const at::Tensor& output,
                                   const at::Tensor& input, const c10d::ReduceOp& op) {
  ReduceOp reduction = OperatorOf(name, op);
  at::Tensor source = call.Source(Call::Scaled(input, op));
  at::Tensor target = call.Target(output, false);
  call.Add(call.communicator().ReduceScatter(source.data_ptr(), target.data_ptr(), CountOf(target),
                                             ReducedType(name, target, reduction), reduction));
}

WeftBackend::WorkHandle WeftBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  const char* name = "reduce-scatter";
  CheckGathered(name, input, output);
  ReducedType(name, output, OperatorOf(name, options.reduceOp));
  Call call(*this, OpType::_REDUCE_SCATTER_BASE, "weft:reduce_scatter", options.timeout, {input},
            {.input_elements = input.numel(), .output_elements = output.numel()});
  AddReduceScatter(call, name, output, input, options.reduceOp);
  return Start(call, options.asyncOp, {output});
}

WeftBackend::WorkHandle WeftBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const char* name = "coalesced reduce-scatter";
  TORCH_CHECK(outputs.size() == inputs.size(), "weft ", name, ": got ", outputs.size(),
              " outputs for ", inputs.size(), " inputs");
  ReduceOp op = OperatorOf(name, options.reduceOp);
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckGathered(name, inputs[i], outputs[i]);
    ReducedType(name, outputs[i], op);
  }
  Call call(*this, OpType::COALESCED, "weft:reduce_scatter", options.timeout, inputs,
            {.input_elements = ElementsOf(inputs), .output_elements = ElementsOf(outputs)});
  for (size_t i = 0; i < inputs.size(); ++i) {
    AddReduceScatter(call, name, outputs[i], inputs[i], options.reduceOp);
  }
  return Start(call, options.asyncOp, outputs);
}

WeftBackend::WorkHandle WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                   std::vector<int64_t>& output_splits,
                                                   std::vector<int64_t>& input_splits,
                                                   const c10d::AllToAllOptions& options) {
  const char* name = "all-to-all";
  CheckTensor(name, output);
  CheckTensor(name, input);
  CheckSameType(name, output, input);
  DataType type = MovedType(name, input);
  Parts from = PartsOf(name, input, input_splits, size_);
  Parts to = PartsOf(name, output, output_splits, size_);
  bool even = input_splits.empty() && output_splits.empty();
  if (even) CheckElements(name, output, input.numel(), "an even exchange");
  Call call(*this, OpType::ALLTOALL_BASE, "weft:all_to_all", options.timeout, {input},
            {.input_elements = input.numel(),
             .output_elements = output.numel(),
             .input_splits = &input_splits,
             .output_splits = &output_splits});
  at::Tensor source = call.Source(input);
  at::Tensor target = call.Target(output, false);
  if (even) {
    call.Add(
        call.communicator().AllToAll(source.data_ptr(), target.data_ptr(), from.counts[0], type));
  } else {
    call.Add(call.communicator().AllToAllV(source.data_ptr(), from.counts, from.offsets,
                                           target.data_ptr(), to.counts, to.offsets, type));
  }
  return Start(call, options.asyncOp, {output});
}

}  // namespace weft::collectives
