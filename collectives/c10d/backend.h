// Our collectives as a PyTorch backend: c10d::Backend over one Communicator.
//
// Tensors live in host memory. They may be non-contiguous (a contiguous copy is sent, and received
// ones are copied back when the work is done), but tensors of another device and numbers that a
// reduction does not know are refused by the call itself with the tensor's type, shape and device.
// What only the other ranks can know is reported by the returned work.
//
// c10d's contract wants exceptions, and only here something throws: wrong arguments as c10::Error
// from the call, failed collectives as c10::DistBackendError with the whole status text from
// Work::wait() and from the future. A wait whose own bound ran out throws as well, and the work
// goes on.
//
// Thread-safe as c10d asks it: calls in the same order on all ranks. The order of completion of one
// group's futures is the order of its calls. Futures are completed by a thread of this backend,
// which first runs when somebody asks for one.
//
// A group ends by shutdown(), or with its last reference, in this order:
//
//   1. the communicator, with which all works that are unfinished fail, also those that calls of
//      other threads wait for. Such a call keeps it until it returns;
//   2. the sparse all-reduces, whose thread may wait for one of those works;
//   3. the futures, all of which complete, and their threads, which call the completion hook;
//   4. tensors of works that nobody kept: once the works are done nothing writes to them;
//   5. the share of the endpoint, whose links close with the last group. A wait for a work keeps
//      it, but not the communicator.
//
// After shutdown() or abort() every call throws. In a process that was forked from the one that
// made the group every call throws, those of its works too, and the destructor leaves all that was
// inherited as it is.
//
// Files: backend.cc (a group's life), backend_collectives.cc, backend_lists.cc (collectives on
// lists of tensors), backend_messages.cc (point to point), call.h (one call on its way),
// pending_transfers.h (what was called and is not done).
#ifndef WEFT_COLLECTIVES_C10D_BACKEND_H_
#define WEFT_COLLECTIVES_C10D_BACKEND_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "collectives/c10d/backend_settings.h"
#include "collectives/c10d/communicator_names.h"
#include "collectives/c10d/memory_pool.h"
#include "collectives/c10d/pending_transfers.h"
#include "collectives/c10d/statistics.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"

namespace weft::collectives {

class BackendRegistry;  // collectives/c10d/group.h
class Call;             // collectives/c10d/call.h
class CompletionHook;   // collectives/c10d/completion_hook.h
class Deferred;         // collectives/c10d/deferred.h
class FutureThreads;    // collectives/c10d/work.h

class WeftBackend final : public c10d::Backend {
 public:
  using WorkHandle = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // As Communicator::Create: the first group of an endpoint, of which Subgroup() makes others.
  static absl::StatusOr<c10::intrusive_ptr<WeftBackend>> Create(std::shared_ptr<Endpoint> endpoint,
                                                                absl::string_view name,
                                                                std::vector<Rank> ranks);
  // `communicator` is of the group called `name`, and has its name from `names`.
  WeftBackend(std::shared_ptr<Endpoint> endpoint, std::unique_ptr<Communicator> communicator,
              absl::string_view name, std::vector<Rank> ranks, BackendSettings settings,
              std::shared_ptr<CommunicatorNames> names);
  ~WeftBackend() override;
  // At the last reference: weak ones, as the registry has, put the destructor off.
  void release_resources() override { End(); }

  // Throws where the group was shut down, or was inherited by fork(2).
  std::shared_ptr<Communicator> communicator() const;
  const std::vector<Rank>& ranks() const { return ranks_; }  // of the endpoint, by group rank
  const std::string& name() const { return name_; }
  Statistics& statistics() { return *statistics_; }
  // Enters `group` into the registry, and with it every group that is made of it.
  static void Register(const c10::intrusive_ptr<WeftBackend>& group,
                       std::shared_ptr<BackendRegistry> registry);
  // Makes a group of some ranks of this group, on the same endpoint, whose waits have the same
  // timeout. `ranks` are this group's group ranks. Makes no connection and waits for no other rank.
  // A group of the same ranks may have had the name before.
  // InvalidArgument where this group has no such rank, FailedPrecondition where it was shut down.
  absl::StatusOr<c10::intrusive_ptr<WeftBackend>> Subgroup(absl::string_view name,
                                                           const std::vector<int64_t>& ranks,
                                                           BackendSettings settings) const;
  std::shared_ptr<Endpoint> endpoint() const;  // null after shutdown()
  bool inherited_by_fork() const;
  // Sets the priority of this group's calls from now on (Communicator::SetPriority) and returns the
  // one that they had before. Throws where communicator() does.
  Priority SetPriority(Priority priority);

  const std::string getBackendName() const override { return "weft"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setSequenceNumberForGroup() override {}  // every group counts from 0
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  // Bounds the waits for works started from now on that name no bound of their own, and their
  // futures. The collectives themselves are bounded by the setting collective.timeout, which
  // follows a longer timeout that the group is made with (backend_settings.h).
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  c10d::ErrorType getError() override;
  // Fails everything unfinished, here and on the other ranks.
  void abort() override;
  // Until everything started so far has ended, well or not; also what nobody kept a work of. Throws
  // in a forked child.
  void waitForPendingWorks() override;
  // As above. The second call does nothing.
  void shutdown() override;
  // `hook` hears of every call from now on, but for monitoredBarrier(), once the call has ended,
  // well or not, or has run out of time: of collectives in their order, of each between
  // startCoalescing() and endCoalescing() too. A thread of this backend calls it. It has heard of
  // all calls before when waitForPendingWorks() or shutdown() returns. What it throws fails the
  // group. A group has one.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void enableCollectivesTiming() override {}  // every work measures itself

  // The ranks given, of this group, become a group named `options->group_name`; this rank gets
  // null where it is not one of them. Makes no connection and waits for nobody.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  // A group of the processes of several groups, which meet at `store`. Waits for all of them.
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override;
  // This group without the ranks that are excluded, which need not live any more; after a failure
  // too (Communicator::Shrink). Waits for the others. `flags` are those of torch.distributed:
  // kShrinkDefault leaves what this group has under way alone, kShrinkAbort first fails it, on
  // every rank, for when it waits for a rank that will not answer. Uses `options` for the name,
  // where that is not empty, and for the timeout of waits, where that is set.
  static constexpr int kShrinkDefault = 0, kShrinkAbort = 1;
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<Options>& options) override;

  // Host memory is read by peers where it lies: any will do, on a page of its own. Contents are
  // arbitrary: memory of tensors that have gone is used again (memory_pool.h).
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // Calls in between are one work in the end.
  void startCoalescing() override;
  WorkHandle endCoalescing() override;

  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Sums sparse tensors, coalesced. allreduce() calls it for sparse tensors.
  WorkHandle allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkHandle allreduce_coalesced(Tensors& tensors,
                                 const c10d::AllreduceCoalescedOptions& options) override;
  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  // Outputs may differ in size: rank r's input fills the r-th.
  WorkHandle allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& options) override;
  // outputs[r][i] is rank r's inputs[i].
  WorkHandle allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) override;
  WorkHandle _allgather_base(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& options) override;
  WorkHandle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) override;
  WorkHandle gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override;
  WorkHandle scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override;
  // Inputs may differ in size: the r-th goes to rank r.
  WorkHandle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override;
  WorkHandle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override;
  WorkHandle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::ReduceScatterOptions& options) override;
  // Splits are counted in rows (dimension 0); empty: even.
  WorkHandle alltoall_base(at::Tensor& output, at::Tensor& input,
                           std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                           const c10d::AllToAllOptions& options) override;
  WorkHandle alltoall(Tensors& outputs, Tensors& inputs,
                      const c10d::AllToAllOptions& options) override;
  WorkHandle barrier(const c10d::BarrierOptions& options) override;
  // Rank 0 throws the ranks that have not come in time, the first of them or with `all` every one,
  // and the others throw that some have not. The next one works all the same.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;

  WorkHandle send(Tensors& tensors, int target, int tag) override;
  WorkHandle recv(Tensors& tensors, int source, int tag) override;
  // Receives from the first rank that sends with this tag: sourceRank() of the work.
  WorkHandle recvAnysource(Tensors& tensors, int tag) override;

 private:
  friend class Call;
  struct Coalescing;

  // Numbers what `call` started and keeps it until it is done. Unless `is_async`, waits for it and
  // returns null, or throws, as Work::wait() does: c10d's synchronous calls accept that, and it
  // spares them the making of a work and of its Python object. Between startCoalescing() and
  // endCoalescing() it never waits. `results`: of the work. The last use of `call`.
  WorkHandle Start(Call& call, bool is_async, at::TensorList results);
  // The tensors are dense and in host memory: the caller has checked that.
  WorkHandle StartAllReduce(Tensors& tensors, Call call, const char* name, const c10d::ReduceOp& op,
                            bool is_async);
  void Finish(Call& call);  // waits for it, without a work
  void AddAllGather(Call& call, const char* name, const at::Tensor& output,
                    const at::Tensor& input);
  // A tensor a rank, of any sizes.
  void AddGatheredList(Call& call, const char* name, const Tensors& outputs,
                       const at::Tensor& input);
  void AddReduceScatter(Call& call, const char* name, const at::Tensor& output,
                        const at::Tensor& input, const c10d::ReduceOp& op);
  // `whole` has a part for each rank, each like `part`.
  void CheckGathered(const char* name, const at::Tensor& whole, const at::Tensor& part) const;
  // One tensor for each rank, each like `like`; with `uneven`, only the own as large as that.
  void CheckList(const char* name, const Tensors& tensors, const at::Tensor& like,
                 bool uneven = false) const;
  void CheckProcess() const;  // throws in a forked child
  // Calls drop it before they wait: the end of its last reference ends what they wait for.
  std::shared_ptr<Deferred> deferred();
  // With mutex_ held, and before shutdown().
  absl::StatusOr<std::shared_ptr<Deferred>> MadeDeferred();
  static absl::StatusOr<c10::intrusive_ptr<WeftBackend>> Create(
      std::shared_ptr<Endpoint> endpoint, absl::string_view name, std::vector<Rank> ranks,
      BackendSettings settings, std::shared_ptr<CommunicatorNames> names);
  void End();
  // Fails everything unfinished, here and on the other ranks. Does nothing after shutdown().
  void Fail(const absl::Status& reason);
  // Registers a group that was made of this one.
  c10::intrusive_ptr<WeftBackend> Registered(c10::intrusive_ptr<WeftBackend> group) const;

  const std::string name_;
  const std::vector<Rank> ranks_;
  const BackendSettings settings_;
  const std::shared_ptr<CommunicatorNames> names_;
  const std::weak_ptr<Endpoint> endpoint_of_works_;
  const int forks_;  // ForkCount() at birth
  const std::shared_ptr<Statistics> statistics_;
  std::unique_ptr<PendingTransfers> pending_ = std::make_unique<PendingTransfers>();
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint32_t> monitored_{0};  // monitored barriers so far
  std::atomic<std::chrono::milliseconds> timeout_{c10d::kUnsetTimeout};
  std::atomic<Priority> priority_{Priority::kNormal};
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Communicator> communicator_;           // null after shutdown()
  std::shared_ptr<FutureThreads> futures_;               // null after shutdown()
  const std::weak_ptr<FutureThreads> futures_of_works_;  // the same, to be had without the mutex
  std::shared_ptr<Deferred> deferred_;                   // made by its first use
  std::shared_ptr<CompletionHook> hook_;
  std::unique_ptr<Coalescing> coalescing_;
  // Whether there is one; to be asked without the mutex.
  std::atomic<bool> is_coalescing_{false}, has_hook_{false};
  std::shared_ptr<BackendRegistry> registry_;
  int shrunk_ = 0;  // groups made by shrink()
  const std::shared_ptr<MemoryPool> memory_ =
      std::make_shared<MemoryPool>();  // of allocateTensor()
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_BACKEND_H_
