#include "collectives/c10d/call.h"

#include <cstring>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <utility>

namespace weft::collectives {
namespace {

// An event record_param_comms, from which traces know sizes, peer, group and sequence number.
void RecordForProfiler(const WeftBackend& backend, c10d::OpType type, const char* title,
                       uint64_t sequence, at::ScalarType dtype, const Traffic& traffic) {
  const char* colon = std::strchr(title, ':');
  const std::vector<Rank>& ranks = backend.ranks();
  const int first = ranks[0].value();
  const int stride = ranks.size() > 1 ? ranks[1].value() - first : 1;
  const std::vector<int64_t> even;
  const std::vector<int64_t>& input_splits =
      traffic.input_splits == nullptr ? even : *traffic.input_splits;
  const std::vector<int64_t>& output_splits =
      traffic.output_splits == nullptr ? even : *traffic.output_splits;
  // PyTorch's format of traces has -1 for a peer that nobody knows yet.
  const int peer = traffic.peer == Traffic::kOwnRank       ? backend.getRank()
                   : traffic.peer == Traffic::kUnknownRank ? -1
                                                           : traffic.peer;
  RECORD_PARAM_COMMS(std::make_tuple(static_cast<int64_t>(sequence), c10d::isP2POp(type)),
                     std::make_tuple(backend.getGroupUid(), backend.getGroupDesc()), peer,
                     std::string(colon == nullptr ? title : colon + 1), traffic.input_elements,
                     traffic.output_elements, dtype, input_splits, output_splits, first, stride,
                     backend.getSize());
}

}  // namespace

int64_t ElementsOf(at::TensorList tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

Call::Call(WeftBackend& backend, c10d::OpType type, const char* title,
           std::chrono::milliseconds timeout, at::TensorList inputs, const Traffic& traffic)
    : backend_(backend),
      type_(type),
      title_(title),
      timeout_(timeout > std::chrono::milliseconds::zero() ? timeout : backend.timeout_.load()),
      communicator_(backend.communicator()) {
  for (const at::Tensor& tensor : inputs) {
    if (!tensor.is_sparse()) state_.bytes += tensor.nbytes();
  }
  if (!at::hasCallbacks()) return;
  RecordForProfiler(backend, type, title, backend.sequence_.load() + 1,
                    inputs.empty() ? at::kByte : inputs[0].scalar_type(), traffic);
  work_ = NewWork(inputs);
}

Call::~Call() {
  if (state_.done()) return;
  backend_.pending_->Keep(std::make_shared<TransferState>(std::move(state_)));
}

c10::intrusive_ptr<WeftWork> Call::NewWork(std::optional<at::TensorList> profiled_inputs) const {
  return c10::make_intrusive<WeftWork>(backend_.getRank(), type_, title_, profiled_inputs, timeout_,
                                       backend_.statistics_, backend_.futures_of_works_);
}

c10::intrusive_ptr<WeftWork> Call::TakeWork(at::TensorList results) {
  c10::intrusive_ptr<WeftWork> work = is_profiled() ? std::move(work_) : NewWork(std::nullopt);
  state_.endpoint = backend_.endpoint_of_works_;
  work->set_state(std::exchange(state_, {}));
  work->set_results(results);
  return work;
}

at::Tensor Call::Target(const at::Tensor& tensor, bool keep) {
  if (IsPlain(tensor)) return Hold(tensor);
  at::Tensor staged = keep ? Plain(tensor) : at::empty_like(tensor, at::MemoryFormat::Contiguous);
  AtEnd([tensor, staged] { CopyInto(tensor, staged); });
  return Hold(staged);
}

at::Tensor Call::FlatTarget(const std::vector<at::Tensor>& tensors) {
  bool staged = false;
  at::Tensor flat = collectives::FlatTarget(tensors, &staged);
  if (staged) AtEnd([flat, tensors] { Unflatten(flat, tensors); });
  return Hold(flat);
}

at::Tensor Call::Scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  at::NoGradGuard no_gradient;
  const auto* factor = reinterpret_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  const at::Scalar by = factor->tensor_factor.defined() ? factor->tensor_factor.item()
                                                        : at::Scalar(factor->double_factor);
  const at::ScalarType type = tensor.scalar_type();
  const bool is_whole = at::isIntegralType(type, /*includeBool=*/true);
  return (is_whole ? tensor.to(at::kDouble) : tensor).mul(by).to(type);
}

at::Tensor Call::FlatScaled(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return FlatSource(tensors);
  // Each for itself: of one block Flattened() gives the first alone, whose memory goes on.
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& tensor : tensors) scaled.push_back(Scaled(tensor, op));
  return FlatSource(scaled);
}

at::Tensor Call::Reduced(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return Target(tensor, true);
  at::Tensor scaled = Scaled(tensor, op).contiguous();
  AtEnd([tensor, scaled] { CopyInto(tensor, scaled); });
  return Hold(scaled);
}

void Call::AtEnd(std::function<void()> action) {
  if (!state_.deliver) {
    state_.deliver = std::move(action);
    return;
  }
  state_.deliver = [first = std::move(state_.deliver), second = std::move(action)] {
    first();
    second();
  };
}

}  // namespace weft::collectives
