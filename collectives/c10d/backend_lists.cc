// Collectives on lists of tensors, one for each rank.
#include <algorithm>

#include "collectives/c10d/call.h"

namespace weft::collectives {
namespace {

using c10d::OpType;

size_t CountOf(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

bool IsUneven(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() != tensors[0].numel();
  });
}

}  // namespace

void WeftBackend::CheckList(const char* name, const Tensors& tensors, const at::Tensor& like,
                            bool uneven) const {
  TORCH_CHECK(static_cast<int>(tensors.size()) == size_, "weft ", name, ": got ", tensors.size(),
              " tensors for ", size_, " ranks");
  for (const at::Tensor& tensor : tensors) {
    CheckTensor(name, tensor);
    CheckSameType(name, tensor, like);
    if (uneven && &tensor != &tensors[static_cast<size_t>(rank_)]) continue;
    CheckElements(name, tensor, like.numel(), "the tensor of this rank");
  }
}

void WeftBackend::AddGatheredList(Call& call, const char* name, const Tensors& outputs,
                                  const at::Tensor& input) {
  at::Tensor source = call.Source(input);
  at::Tensor target = call.FlatTarget(outputs);
  DataType type = MovedType(name, source);
  if (IsUneven(outputs)) {
    Parts to = PartsOf(outputs);
    call.Add(call.communicator().AllGatherV(source.data_ptr(), target.data_ptr(), to.counts,
                                            to.offsets, type));
  } else {
    call.Add(
        call.communicator().AllGather(source.data_ptr(), target.data_ptr(), CountOf(source), type));
  }
}

WeftBackend::WorkHandle WeftBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& options) {
  const char* name = "all-gather";
  const at::Tensor& input = OnlyTensor(name, inputs);
  TORCH_CHECK(outputs.size() == 1, "weft ", name, ": got ", outputs.size(), " lists of outputs");
  CheckList(name, outputs[0], input, /*uneven=*/true);
  MovedType(name, input);
  Call call(*this, OpType::ALLGATHER, "weft:all_gather", options.timeout, inputs,
            {.input_elements = input.numel(), .output_elements = ElementsOf(outputs[0])});
  AddGatheredList(call, name, outputs[0], input);
  return Start(call, options.asyncOp, outputs[0]);
}

WeftBackend::WorkHandle WeftBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  const char* name = "coalesced all-gather";
  TORCH_CHECK(static_cast<int>(outputs.size()) == size_, "weft ", name, ": got ", outputs.size(),
              " lists of outputs for ", size_, " ranks");
  for (const Tensors& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), "weft ", name, ": got ", list.size(), " outputs for ",
                inputs.size(), " inputs");
  }
  std::vector<Tensors> by_input(inputs.size());
  int64_t gathered = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckTensor(name, inputs[i]);
    MovedType(name, inputs[i]);
    for (const Tensors& list : outputs) by_input[i].push_back(list[i]);
    CheckList(name, by_input[i], inputs[i], /*uneven=*/true);
    gathered += ElementsOf(by_input[i]);
  }
  Call call(*this, OpType::ALLGATHER_COALESCED, "weft:all_gather", options.timeout, inputs,
            {.input_elements = ElementsOf(inputs), .output_elements = gathered});
  Tensors results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    AddGatheredList(call, name, by_input[i], inputs[i]);
    results.insert(results.end(), by_input[i].begin(), by_input[i].end());
  }
  return Start(call, options.asyncOp, results);
}

WeftBackend::WorkHandle WeftBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::GatherOptions& options) {
  const char* name = "gather";
  const at::Tensor& input = OnlyTensor(name, inputs);
  CheckRank(name, "root", options.rootRank, size_);
  bool root = rank_ == options.rootRank;
  TORCH_CHECK(outputs.size() == (root ? 1U : 0U), "weft ", name, ": got ", outputs.size(),
              " lists of outputs; the root gives one, the others none");
  if (root) CheckList(name, outputs[0], input);
  DataType type = MovedType(name, input);
  Call call(*this, OpType::GATHER, "weft:gather", options.timeout, inputs,
            {.input_elements = input.numel(),
             .output_elements = input.numel() * size_,
             .peer = static_cast<int>(options.rootRank)});
  at::Tensor source = call.Source(input);
  void* target = root ? call.FlatTarget(outputs[0]).data_ptr() : nullptr;
  call.Add(call.communicator().Gather(source.data_ptr(), target, CountOf(source), type,
                                      RankOf(options.rootRank)));
  return Start(call, options.asyncOp, root ? at::TensorList(outputs[0]) : at::TensorList());
}

WeftBackend::WorkHandle WeftBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                             const c10d::ScatterOptions& options) {
  const char* name = "scatter";
  const at::Tensor& output = OnlyTensor(name, outputs);
  CheckRank(name, "root", options.rootRank, size_);
  bool root = rank_ == options.rootRank;
  TORCH_CHECK(inputs.size() == (root ? 1U : 0U), "weft ", name, ": got ", inputs.size(),
              " lists of inputs; the root gives one, the others none");
  if (root) CheckList(name, inputs[0], output);
  DataType type = MovedType(name, output);
  Call call(*this, OpType::SCATTER, "weft:scatter", options.timeout, root ? inputs[0] : outputs,
            {.input_elements = output.numel() * size_,
             .output_elements = output.numel(),
             .peer = static_cast<int>(options.rootRank)});
  const void* source = root ? call.FlatSource(inputs[0]).data_ptr() : nullptr;
  at::Tensor target = call.Target(output, false);
  call.Add(call.communicator().Scatter(source, target.data_ptr(), CountOf(target), type,
                                       RankOf(options.rootRank)));
  return Start(call, options.asyncOp, outputs);
}

WeftBackend::WorkHandle WeftBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  const char* name = "reduce-scatter";
  const at::Tensor& output = OnlyTensor(name, outputs);
  TORCH_CHECK(inputs.size() == 1, "weft ", name, ": got ", inputs.size(), " lists of inputs");
  CheckList(name, inputs[0], output, /*uneven=*/true);
  ReduceOp op = OperatorOf(name, options.reduceOp);
  DataType type = ReducedType(name, output, op);
  Call call(*this, OpType::REDUCE_SCATTER, "weft:reduce_scatter", options.timeout, inputs[0],
            {.input_elements = ElementsOf(inputs[0]), .output_elements = output.numel()});
  at::Tensor target = call.Target(output, false);
  if (!IsUneven(inputs[0])) {
    at::Tensor source = call.FlatScaled(inputs[0], options.reduceOp);
    call.Add(call.communicator().ReduceScatter(source.data_ptr(), target.data_ptr(),
                                               CountOf(target), type, op));
  } else {
    for (int root = 0; root < size_; ++root) {
      at::Tensor source =
          call.Source(Call::Scaled(inputs[0][static_cast<size_t>(root)], options.reduceOp));
      call.Add(call.communicator().Reduce(source.data_ptr(),
                                          root == rank_ ? target.data_ptr() : nullptr,
                                          CountOf(source), type, op, RankOf(root)));
    }
  }
  return Start(call, options.asyncOp, outputs);
}

WeftBackend::WorkHandle WeftBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllToAllOptions& options) {
  const char* name = "all-to-all";
  for (const Tensors* list : {&outputs, &inputs}) {
    TORCH_CHECK(static_cast<int>(list->size()) == size_, "weft ", name, ": got ", list->size(),
                " tensors for ", size_, " ranks");
  }
  for (const Tensors* list : {&outputs, &inputs}) {
    for (const at::Tensor& tensor : *list) {
      CheckTensor(name, tensor);
      CheckSameType(name, tensor, inputs[0]);
    }
  }
  DataType type = MovedType(name, inputs[0]);
  Call call(*this, OpType::ALLTOALL, "weft:all_to_all", options.timeout, inputs,
            {.input_elements = ElementsOf(inputs), .output_elements = ElementsOf(outputs)});
  at::Tensor source = call.FlatSource(inputs);
  at::Tensor target = call.FlatTarget(outputs);
  Parts from = PartsOf(inputs);
  Parts to = PartsOf(outputs);
  call.Add(call.communicator().AllToAllV(source.data_ptr(), from.counts, from.offsets,
                                         target.data_ptr(), to.counts, to.offsets, type));
  return Start(call, options.asyncOp, outputs);
}

}  // namespace weft::collectives
