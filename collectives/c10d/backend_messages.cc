// Point to point, and what is made of it.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/c10d/call.h"

namespace weft::collectives {
namespace {

using c10d::OpType;

// Beyond what c10d's tags, which are not negative, can be.
constexpr uint32_t kBarrierTag = 0x8000'0000;

void CheckMessage(const char* name, const char* what, int peer, int tag, int rank, int size) {
  CheckRank(name, what, peer, size);
  TORCH_CHECK(peer != rank, "weft ", name, ": rank ", rank, " cannot be its own ", what);
  TORCH_CHECK(tag >= 0, "weft ", name, ": tag ", tag, " is negative");
}

Traffic Message(const at::Tensor& tensor, int peer) {
  return {.input_elements = tensor.numel(), .output_elements = tensor.numel(), .peer = peer};
}

}  // namespace

WeftBackend::WorkHandle WeftBackend::send(Tensors& tensors, int target, int tag) {
  const char* name = "send";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckMessage(name, "target", target, tag, rank_, size_);
  Call call(*this, OpType::SEND, "weft:send", c10d::kUnsetTimeout, tensors,
            Message(tensor, target));
  at::Tensor data = call.Source(tensor);
  call.Add(call.communicator().Send(data.data_ptr(), data.nbytes(), RankOf(target),
                                    static_cast<uint32_t>(tag)));
  return Start(call, /*is_async=*/true, tensors);
}

WeftBackend::WorkHandle WeftBackend::recv(Tensors& tensors, int source, int tag) {
  const char* name = "receive";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  CheckMessage(name, "source", source, tag, rank_, size_);
  Call call(*this, OpType::RECV, "weft:recv", c10d::kUnsetTimeout, tensors,
            Message(tensor, source));
  at::Tensor data = call.Target(tensor, false);
  call.Add(call.communicator().Receive(data.data_ptr(), data.nbytes(), RankOf(source),
                                       static_cast<uint32_t>(tag)));
  return Start(call, /*is_async=*/true, tensors);
}

WeftBackend::WorkHandle WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  const char* name = "receive";
  const at::Tensor& tensor = OnlyTensor(name, tensors);
  TORCH_CHECK(size_ > 1, "weft ", name, ": a group of one rank has nobody to receive from");
  TORCH_CHECK(tag >= 0, "weft ", name, ": tag ", tag, " is negative");
  Call call(*this, OpType::RECVANYSOURCE, "weft:recvAnySource", c10d::kUnsetTimeout, tensors,
            Message(tensor, Traffic::kUnknownRank));
  at::Tensor data = call.Target(tensor, false);
  call.Add(
      call.communicator().ReceiveAny(data.data_ptr(), data.nbytes(), static_cast<uint32_t>(tag)));
  return Start(call, /*is_async=*/true, tensors);
}

void WeftBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  std::shared_ptr<Communicator> communicator = this->communicator();
  std::chrono::milliseconds timeout = options.timeout;
  if (timeout == c10d::kUnsetTimeout) timeout = timeout_.load();
  const SystemClock clock;
  const absl::Time deadline =
      timeout >= kNoTimeout ? clock.Now() + absl::FromChrono(timeout) : absl::InfiniteFuture();
  auto wait = [&](const WorkPtr& work) { return work->Wait(deadline - clock.Now()); };
  // Messages that run out of time go on, until the rank that was late has come too. Those of the
  // next barrier have another tag.
  const uint32_t tag = kBarrierTag | (monitored_++ & ~kBarrierTag);
  at::Tensor all_came = at::zeros({1}, at::kBool);  // rank 0's answer
  auto posted = std::make_shared<TransferState>();
  posted->held.push_back(all_came);
  if (rank_ != 0) {
    posted->works = {communicator->Send(nullptr, 0, GroupRank(0), tag),
                     communicator->Receive(all_came.data_ptr(), 1, GroupRank(0), tag)};
    pending_->Keep(posted);
    absl::Status status = wait(posted->works[1]);
    if (status.ok() && !all_came.item<bool>()) {
      status = absl::DeadlineExceededError("a rank did not come to rank 0 in time");
    }
    if (status.ok()) return;
    std::rethrow_exception(
        BackendError(Annotate(status, absl::StrCat("monitoredBarrier of group \"", name_, "\""))));
  }
  std::vector<WorkPtr> arrivals;
  for (int rank = 1; rank < size_; ++rank) {
    arrivals.push_back(communicator->Receive(nullptr, 0, GroupRank(rank), tag));
  }
  std::string missing;
  absl::Status reason;
  for (int rank = 1; rank < size_ && (all || missing.empty()); ++rank) {
    absl::Status status = wait(arrivals[static_cast<size_t>(rank) - 1]);
    if (status.ok()) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
    reason.Update(status);
  }
  all_came.fill_(missing.empty());
  for (int rank = 1; rank < size_; ++rank) {
    posted->works.push_back(communicator->Send(all_came.data_ptr(), 1, GroupRank(rank), tag));
  }
  pending_->Keep(posted);
  if (!missing.empty()) {
    const bool late = reason.code() == absl::StatusCode::kDeadlineExceeded;
    std::rethrow_exception(BackendError(absl::Status(
        reason.code(),
        absl::StrCat("Rank 0 ", late ? "timed out" : "failed", " in monitoredBarrier of group \"",
                     name_, "\": Rank ", missing, " did not come: ", reason.message()))));
  }
  for (const WorkPtr& work : posted->works) {
    if (absl::Status status = wait(work); !status.ok()) {
      std::rethrow_exception(BackendError(status));
    }
  }
}

}  // namespace weft::collectives
