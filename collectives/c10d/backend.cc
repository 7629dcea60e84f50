#include "collectives/c10d/backend.h"

#include <utility>

#include "collectives/c10d/tensors.h"
#include "collectives/c10d/work.h"

namespace weft::collectives {
namespace {

using c10d::OpType;
using WorkHandle = c10::intrusive_ptr<c10d::Work>;

Rank RankOf(int64_t rank) { return Rank(static_cast<int32_t>(rank)); }

size_t CountOf(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

// A copy into a tensor that may be a leaf that requires a gradient.
void CopyInto(at::Tensor target, const at::Tensor& source) {
  at::NoGradGuard no_gradient;
  target.copy_(source);
}

}  // namespace

// One call on its way: what it started, what it needs until the end, and what it does there.
class WeftBackend::Call {
 public:
  Call(OpType type, const char* title, std::chrono::milliseconds timeout)
      : state_(std::make_shared<TransferState>()) {
    details_.type = type;
    details_.title = title;
    details_.timeout = timeout;
  }

  // A tensor whose bytes are read: itself or a contiguous copy.
  at::Tensor Source(const at::Tensor& tensor) { return Hold(tensor.contiguous()); }
  // A tensor that is written, and read too with `keep`: itself, or a contiguous one that is copied
  // to it at the end.
  at::Tensor Target(const at::Tensor& tensor, bool keep) {
    if (tensor.is_contiguous()) return Hold(tensor);
    at::Tensor staged =
        keep ? tensor.contiguous() : at::empty_like(tensor, at::MemoryFormat::Contiguous);
    AtEnd([tensor, staged] { CopyInto(tensor, staged); });
    return Hold(staged);
  }
  at::Tensor FlatSource(const std::vector<at::Tensor>& tensors) { return Hold(Flattened(tensors)); }
  at::Tensor FlatTargetOf(const std::vector<at::Tensor>& tensors) {
    bool staged = false;
    at::Tensor flat = FlatTarget(tensors, &staged);
    if (staged) AtEnd([flat, tensors] { Unflatten(flat, tensors); });
    return Hold(flat);
  }
  void Add(WorkPtr work) { state_->works.push_back(std::move(work)); }
  void Results(std::vector<at::Tensor> tensors) { details_.results = std::move(tensors); }

  WeftWork::Details& details() { return details_; }
  const std::shared_ptr<TransferState>& state() const { return state_; }

 private:
  at::Tensor Hold(at::Tensor tensor) {
    state_->held.push_back(tensor);
    return tensor;
  }
  void AtEnd(std::function<void()> action) {
    if (!state_->deliver) {
      state_->deliver = std::move(action);
      return;
    }
    state_->deliver = [first = std::move(state_->deliver), second = std::move(action)] {
      first();
      second();
    };
  }

  WeftWork::Details details_;
  std::shared_ptr<TransferState> state_;
};

absl::StatusOr<c10::intrusive_ptr<WeftBackend>> WeftBackend::Create(
    std::shared_ptr<Endpoint> endpoint, absl::string_view name, std::vector<Rank> ranks) {
  auto communicator = Communicator::Create(std::move(endpoint), name, std::move(ranks));
  if (!communicator.ok()) return communicator.status();
  return c10::make_intrusive<WeftBackend>(*std::move(communicator));
}

WeftBackend::WeftBackend(std::unique_ptr<Communicator> communicator)
    : Backend(communicator->rank().value(), communicator->size()),
      communicator_(std::move(communicator)),
      futures_(std::make_shared<FutureThreads>()) {}

WeftBackend::~WeftBackend() {
  communicator_.reset();  // unfinished works are done with it, and nothing writes any more
  futures_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> WeftBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>("weft", timeout_.load());
  options->group_name = communicator_->name();
  return options;
}

c10d::ErrorType WeftBackend::getError() {
  switch (communicator_->status().code()) {
    case absl::StatusCode::kOk:
      return c10d::ErrorType::SUCCESS;
    case absl::StatusCode::kDeadlineExceeded:
      return c10d::ErrorType::TIMEOUT;
    case absl::StatusCode::kUnavailable:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void WeftBackend::abort() {
  communicator_->Abort(absl::CancelledError("the group was aborted through its PyTorch backend"));
}

void WeftBackend::waitForPendingWorks() {
  std::deque<std::shared_ptr<TransferState>> pending;
  {
    std::lock_guard<std::mutex> lock(pending_mutex_);
    pending = pending_;
  }
  for (const auto& state : pending) {
    for (const WorkPtr& work : state->works) work->Wait().IgnoreError();
  }
}

WorkHandle WeftBackend::Start(Call call) {
  WeftWork::Details& details = call.details();
  if (details.timeout <= std::chrono::milliseconds::zero()) details.timeout = timeout_;
  if (!c10d::isP2POp(details.type)) details.sequence = ++sequence_;
  {
    std::lock_guard<std::mutex> lock(pending_mutex_);
    while (!pending_.empty() && pending_.front()->done()) pending_.pop_front();
    pending_.push_back(call.state());
  }
  return c10::make_intrusive<WeftWork>(rank_, std::move(details), call.state(), futures_);
}

WorkHandle WeftBackend::broadcast(std::vector<at::Tensor>& tensors,
                                  const c10d::BroadcastOptions& options) {
  const char* name = "broadcast";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckRank(name, "root", options.rootRank, size_);
  DataType type = MovedType(name, tensor);
  Call call(OpType::BROADCAST, "weft:broadcast", options.timeout);
  at::Tensor data = call.Target(tensor, true);
  call.Add(communicator_->Broadcast(data.data_ptr(), data.data_ptr(), CountOf(data), type,
                                    RankOf(options.rootRank)));
  call.Results(tensors);
  return Start(std::move(call));
}

WorkHandle WeftBackend::StartAllReduce(std::vector<at::Tensor>& tensors, Call call,
                                       const char* name, const c10d::ReduceOp& op) {
  ReduceOp reduction = OperatorOf(name, op);
  for (const at::Tensor& tensor : tensors) {
    CheckTensor(name, tensor);
    ReducedType(name, tensor, reduction);
  }
  for (const at::Tensor& tensor : tensors) {
    at::Tensor data = call.Target(tensor, true);
    call.Add(communicator_->AllReduce(data.data_ptr(), data.data_ptr(), CountOf(data),
                                      ReducedType(name, tensor, reduction), reduction));
  }
  call.Results(tensors);
  return Start(std::move(call));
}

WorkHandle WeftBackend::allreduce(std::vector<at::Tensor>& tensors,
                                  const c10d::AllreduceOptions& options) {
  OnlyTensor("all-reduce", tensors);
  return StartAllReduce(tensors, Call(OpType::ALLREDUCE, "weft:all_reduce", options.timeout),
                        "all-reduce", options.reduceOp);
}

WorkHandle WeftBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  return StartAllReduce(tensors,
                        Call(OpType::ALLREDUCE_COALESCED, "weft:all_reduce", options.timeout),
                        "coalesced all-reduce", options.reduceOp);
}

WorkHandle WeftBackend::reduce(std::vector<at::Tensor>& tensors,
                               const c10d::ReduceOptions& options) {
  const char* name = "reduce";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckRank(name, "root", options.rootRank, size_);
  ReduceOp op = OperatorOf(name, options.reduceOp);
  DataType type = ReducedType(name, tensor, op);
  Call call(OpType::REDUCE, "weft:reduce", options.timeout);
  bool root = rank_ == options.rootRank;
  at::Tensor data = root ? call.Target(tensor, true) : call.Source(tensor);
  call.Add(communicator_->Reduce(data.data_ptr(), root ? data.data_ptr() : nullptr, CountOf(data),
                                 type, op, RankOf(options.rootRank)));
  call.Results(tensors);
  return Start(std::move(call));
}

void WeftBackend::AddAllGather(Call& call, const char* name, const at::Tensor& output,
                               const at::Tensor& input) {
  at::Tensor source = call.Source(input);
  at::Tensor target = call.Target(output, false);
  call.Add(communicator_->AllGather(source.data_ptr(), target.data_ptr(), CountOf(source),
                                    MovedType(name, source)));
}

void WeftBackend::CheckGathered(const char* name, const at::Tensor& whole,
                                const at::Tensor& part) const {
  CheckTensor(name, whole);
  CheckTensor(name, part);
  CheckSameType(name, whole, part);
  CheckElements(name, whole, part.numel() * size_, "one part for each rank");
}

WorkHandle WeftBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                  std::vector<at::Tensor>& inputs,
                                  const c10d::AllgatherOptions& options) {
  const char* name = "all-gather";
  const at::Tensor& input = OnlyTensor(name, inputs);
  TORCH_CHECK(outputs.size() == 1, "weft ", name, ": got ", outputs.size(), " lists of outputs");
  CheckList(name, outputs[0], input);
  Call call(OpType::ALLGATHER, "weft:all_gather", options.timeout);
  at::Tensor source = call.Source(input);
  at::Tensor target = call.FlatTargetOf(outputs[0]);
  call.Add(communicator_->AllGather(source.data_ptr(), target.data_ptr(), CountOf(source),
                                    MovedType(name, source)));
  call.Results(outputs[0]);
  return Start(std::move(call));
}

WorkHandle WeftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& options) {
  const char* name = "all-gather";
  CheckGathered(name, output, input);
  MovedType(name, input);
  Call call(OpType::_ALLGATHER_BASE, "weft:all_gather", options.timeout);
  AddAllGather(call, name, output, input);
  call.Results({output});
  return Start(std::move(call));
}

WorkHandle WeftBackend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const char* name = "coalesced all-gather";
  TORCH_CHECK(outputs.size() == inputs.size(), "weft ", name, ": got ", outputs.size(),
              " outputs for ", inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckGathered(name, outputs[i], inputs[i]);
    MovedType(name, inputs[i]);
  }
  Call call(OpType::COALESCED, "weft:all_gather", options.timeout);
  for (size_t i = 0; i < inputs.size(); ++i) AddAllGather(call, name, outputs[i], inputs[i]);
  call.Results(outputs);
  return Start(std::move(call));
}

void WeftBackend::CheckList(const char* name, const std::vector<at::Tensor>& tensors,
                            const at::Tensor& like) const {
  TORCH_CHECK(static_cast<int>(tensors.size()) == size_, "weft ", name, ": got ", tensors.size(),
              " tensors for ", size_, " ranks");
  for (const at::Tensor& tensor : tensors) {
    CheckTensor(name, tensor);
    CheckSameType(name, tensor, like);
    CheckElements(name, tensor, like.numel(), "the tensor of this rank");
  }
}

WorkHandle WeftBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                               std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& options) {
  const char* name = "gather";
  const at::Tensor& input = OnlyTensor(name, inputs);
  CheckRank(name, "root", options.rootRank, size_);
  bool root = rank_ == options.rootRank;
  TORCH_CHECK(outputs.size() == (root ? 1U : 0U), "weft ", name, ": got ", outputs.size(),
              " lists of outputs; the root gives one, the others none");
  if (root) CheckList(name, outputs[0], input);
  DataType type = MovedType(name, input);
  Call call(OpType::GATHER, "weft:gather", options.timeout);
  at::Tensor source = call.Source(input);
  void* target = root ? call.FlatTargetOf(outputs[0]).data_ptr() : nullptr;
  call.Add(communicator_->Gather(source.data_ptr(), target, CountOf(source), type,
                                 RankOf(options.rootRank)));
  if (root) call.Results(outputs[0]);
  return Start(std::move(call));
}

WorkHandle WeftBackend::scatter(std::vector<at::Tensor>& outputs,
                                std::vector<std::vector<at::Tensor>>& inputs,
                                const c10d::ScatterOptions& options) {
  const char* name = "scatter";
  const at::Tensor& output = OnlyTensor(name, outputs);
  CheckRank(name, "root", options.rootRank, size_);
  bool root = rank_ == options.rootRank;
  TORCH_CHECK(inputs.size() == (root ? 1U : 0U), "weft ", name, ": got ", inputs.size(),
              " lists of inputs; the root gives one, the others none");
  if (root) CheckList(name, inputs[0], output);
  DataType type = MovedType(name, output);
  Call call(OpType::SCATTER, "weft:scatter", options.timeout);
  const void* source = root ? call.FlatSource(inputs[0]).data_ptr() : nullptr;
  at::Tensor target = call.Target(output, false);
  call.Add(communicator_->Scatter(source, target.data_ptr(), CountOf(target), type,
                                  RankOf(options.rootRank)));
  call.Results(outputs);
  return Start(std::move(call));
}

WorkHandle WeftBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                       std::vector<std::vector<at::Tensor>>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  const char* name = "reduce-scatter";
  const at::Tensor& output = OnlyTensor(name, outputs);
  TORCH_CHECK(inputs.size() == 1, "weft ", name, ": got ", inputs.size(), " lists of inputs");
  CheckList(name, inputs[0], output);
  ReduceOp op = OperatorOf(name, options.reduceOp);
  DataType type = ReducedType(name, output, op);
  Call call(OpType::REDUCE_SCATTER, "weft:reduce_scatter", options.timeout);
  at::Tensor source = call.FlatSource(inputs[0]);
  at::Tensor target = call.Target(output, false);
  call.Add(communicator_->ReduceScatter(source.data_ptr(), target.data_ptr(), CountOf(target), type,
                                        op));
  call.Results(outputs);
  return Start(std::move(call));
}

void WeftBackend::AddReduceScatter(Call& call, const char* name, const at::Tensor& output,
                                   const at::Tensor& input, ReduceOp op) {
  at::Tensor source = call.Source(input);
  at::Tensor target = call.Target(output, false);
  call.Add(communicator_->ReduceScatter(source.data_ptr(), target.data_ptr(), CountOf(target),
                                        ReducedType(name, target, op), op));
}

WorkHandle WeftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  const char* name = "reduce-scatter";
  CheckGathered(name, input, output);
  ReduceOp op = OperatorOf(name, options.reduceOp);
  ReducedType(name, output, op);
  Call call(OpType::_REDUCE_SCATTER_BASE, "weft:reduce_scatter", options.timeout);
  AddReduceScatter(call, name, output, input, op);
  call.Results({output});
  return Start(std::move(call));
}

WorkHandle WeftBackend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  const char* name = "coalesced reduce-scatter";
  TORCH_CHECK(outputs.size() == inputs.size(), "weft ", name, ": got ", outputs.size(),
              " outputs for ", inputs.size(), " inputs");
  ReduceOp op = OperatorOf(name, options.reduceOp);
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckGathered(name, inputs[i], outputs[i]);
    ReducedType(name, outputs[i], op);
  }
  Call call(OpType::COALESCED, "weft:reduce_scatter", options.timeout);
  for (size_t i = 0; i < inputs.size(); ++i) {
    AddReduceScatter(call, name, outputs[i], inputs[i], op);
  }
  call.Results(outputs);
  return Start(std::move(call));
}

WorkHandle WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
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
  Call call(OpType::ALLTOALL_BASE, "weft:all_to_all", options.timeout);
  at::Tensor source = call.Source(input);
  at::Tensor target = call.Target(output, false);
  if (even) {
    call.Add(communicator_->AllToAll(source.data_ptr(), target.data_ptr(), from.counts[0], type));
  } else {
    call.Add(communicator_->AllToAllV(source.data_ptr(), from.counts, from.offsets,
                                      target.data_ptr(), to.counts, to.offsets, type));
  }
  call.Results({output});
  return Start(std::move(call));
}

WorkHandle WeftBackend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                 const c10d::AllToAllOptions& options) {
  const char* name = "all-to-all";
  for (const std::vector<at::Tensor>* list : {&outputs, &inputs}) {
    TORCH_CHECK(static_cast<int>(list->size()) == size_, "weft ", name, ": got ", list->size(),
                " tensors for ", size_, " ranks");
    for (const at::Tensor& tensor : *list) {
      CheckTensor(name, tensor);
      CheckSameType(name, tensor, inputs[0]);
    }
  }
  DataType type = MovedType(name, inputs[0]);
  Call call(OpType::ALLTOALL, "weft:all_to_all", options.timeout);
  at::Tensor source = call.FlatSource(inputs);
  at::Tensor target = call.FlatTargetOf(outputs);
  Parts from = PartsOf(inputs);
  Parts to = PartsOf(outputs);
  call.Add(communicator_->AllToAllV(source.data_ptr(), from.counts, from.offsets, target.data_ptr(),
                                    to.counts, to.offsets, type));
  call.Results(outputs);
  return Start(std::move(call));
}

WorkHandle WeftBackend::send(std::vector<at::Tensor>& tensors, int target, int tag) {
  const char* name = "send";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckRank(name, "target", target, size_);
  TORCH_CHECK(tag >= 0, "weft send: tag ", tag, " is negative");
  Call call(OpType::SEND, "weft:send", c10d::kUnsetTimeout);
  at::Tensor data = call.Source(tensor);
  call.Add(communicator_->Send(data.data_ptr(), data.nbytes(), RankOf(target),
                               static_cast<uint32_t>(tag)));
  call.Results(tensors);
  return Start(std::move(call));
}

WorkHandle WeftBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  const char* name = "receive";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckRank(name, "source", source, size_);
  TORCH_CHECK(tag >= 0, "weft receive: tag ", tag, " is negative");
  Call call(OpType::RECV, "weft:recv", c10d::kUnsetTimeout);
  at::Tensor data = call.Target(tensor, false);
  call.Add(communicator_->Receive(data.data_ptr(), data.nbytes(), RankOf(source),
                                  static_cast<uint32_t>(tag)));
  call.Results(tensors);
  return Start(std::move(call));
}

WorkHandle WeftBackend::recvAnysource(std::vector<at::Tensor>& /*tensors*/, int /*tag*/) {
  TORCH_CHECK(false,
              "weft receive: a receive from any rank is not supported, because a receive asks one "
              "sender for its data; name the source");
}

WorkHandle WeftBackend::barrier(const c10d::BarrierOptions& options) {
  Call call(OpType::BARRIER, "weft:barrier", options.timeout);
  call.Add(communicator_->Barrier());
  return Start(std::move(call));
}

}  // namespace weft::collectives
