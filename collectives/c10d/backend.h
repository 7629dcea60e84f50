// Our collectives as a PyTorch backend: c10d::Backend over one Communicator.
//
// Tensors live in host memory. They may be non-contiguous (a contiguous copy is sent, and received
// ones are copied back when the work is done), but tensors of another device, sparse ones and
// numbers that a reduction does not know are refused by the call itself with the tensor's type,
// shape and device. What only the other ranks can know is reported by the returned work.
//
// c10d's contract wants exceptions, and only here something throws: wrong arguments as c10::Error
// from the call, failed collectives as c10::DistBackendError with the whole status text from
// Work::wait() and from the future. A wait whose own bound ran out throws as well, and the work
// goes on.
//
// Thread-safe as c10d asks it: calls in the same order on all ranks. The order of completion of one
// group's futures is the order of its calls. Futures are completed by a thread of this backend,
// which first runs when somebody asks for one.
#ifndef WEFT_COLLECTIVES_C10D_BACKEND_H_
#define WEFT_COLLECTIVES_C10D_BACKEND_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"

namespace weft::collectives {

class FutureThreads;  // collectives/c10d/work.h
struct TransferState;

class WeftBackend final : public c10d::Backend {
 public:
  // As Communicator::Create.
  static absl::StatusOr<c10::intrusive_ptr<WeftBackend>> Create(std::shared_ptr<Endpoint> endpoint,
                                                                absl::string_view name,
                                                                std::vector<Rank> ranks);
  explicit WeftBackend(std::unique_ptr<Communicator> communicator);
  ~WeftBackend() override;

  Communicator& communicator() { return *communicator_; }

  const std::string getBackendName() const override { return "weft"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setSequenceNumberForGroup() override {}  // every group counts from 0
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  // Bounds the waits for works started from now on that name no bound of their own. The
  // collectives themselves are bounded by the setting collective.timeout.
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  c10d::ErrorType getError() override;
  void abort() override;
  // Until everything started so far has ended, well or not; also what nobody kept a work of.
  void waitForPendingWorks() override;
  void shutdown() override {}

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  // Splits are counted in rows (dimension 0); empty: even.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int target,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source,
                                      int tag) override;
  // Not supported: throws.
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  class Call;
  c10::intrusive_ptr<c10d::Work> Start(Call call);
  c10::intrusive_ptr<c10d::Work> StartAllReduce(std::vector<at::Tensor>& tensors, Call call,
                                                const char* name, const c10d::ReduceOp& op);
  void AddAllGather(Call& call, const char* name, const at::Tensor& output,
                    const at::Tensor& input);
  void AddReduceScatter(Call& call, const char* name, const at::Tensor& output,
                        const at::Tensor& input, ReduceOp op);
  // `whole` has a part for each rank, each like `part`.
  void CheckGathered(const char* name, const at::Tensor& whole, const at::Tensor& part) const;
  // One tensor for each rank, each like `like`.
  void CheckList(const char* name, const std::vector<at::Tensor>& tensors,
                 const at::Tensor& like) const;

  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<FutureThreads> futures_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<std::chrono::milliseconds> timeout_{c10d::kUnsetTimeout};
  // What is on its way must outlive a work that nobody kept. Oldest first; pruned by the next call.
  std::mutex pending_mutex_;
  std::deque<std::shared_ptr<TransferState>> pending_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_BACKEND_H_
