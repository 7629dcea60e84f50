// The ranks that share one axis of the mesh: collectives of tensors over a Communicator, and none
// at all for a group of one. Collectives and messages return a Pending at once (pending.h); what
// the ranks agree upon blocks (agreement.h).
//
// A group counts the time that its caller is blocked in Wait (exposed seconds) and, given a trace,
// records it: "wait_NAME" on the track of the computation, the collective itself on the group's.
// Used by one thread. Tensors are contiguous.
#ifndef WEFT_TRAINER_GROUPS_GROUP_H_
#define WEFT_TRAINER_GROUPS_GROUP_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/trace.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"
#include "trainer/groups/agreement.h"
#include "trainer/groups/nccl_collectives.h"
#include "trainer/groups/pending.h"
#include "trainer/groups/staging.h"
#include "trainer/groups/wait_times.h"

namespace weft::train {

class Group : public Agreement {
 public:
  Group() = default;  // a group of one
  // `name` is used once in a job; `ranks` are ranks of the job, in the group's order, this
  // process's own among them. Needs no message.
  static absl::StatusOr<std::unique_ptr<Group>> Create(
      std::shared_ptr<collectives::Endpoint> endpoint, absl::string_view name,
      std::vector<Rank> ranks);

  // [elements] of zeroes, which the ranks of this host reduce where they lie (Endpoint::Allocate);
  // ordinary memory in a group of one. Each takes a descriptor: for large buffers that stay.
  at::Tensor Zeros(int64_t elements, const at::TensorOptions& options) const;
  // A host tensor whose memory stays as it is until the result is gone: NICs have it registered
  // once, and not for each call. Null where nothing is registered.
  std::shared_ptr<void> KeepRegistered(const at::Tensor& tensor) const;

  // From now on collectives of tensors that go a device's way (device/device.h) are NCCL's; what is
  // agreed upon stays with the communicator. Called by all ranks of the group, which wait for each
  // other. `current`: the stream that computes.
  struct NcclUse {
    bool high_priority = false;       // of its stream: computation waits for what the group moves
    bool exchanges_messages = false;  // connected for them at once (ConnectForMessages)
  };
  absl::Status UseNccl(std::shared_ptr<NcclSession> session, WeftStream* current,
                       const NcclUse& use);
  // The same of messages. A channel is a way from one rank to another on which they are received in
  // the order in which they are sent; NCCL knows no tags, so each has a communicator and a stream.
  // All ranks give the same list.
  struct Channel {
    int from = 0, to = 0;
    uint32_t number = 0;  // its own
  };
  absl::Status UseNcclChannels(std::shared_ptr<NcclSession> session, WeftStream* current,
                               absl::Span<const Channel> channels);
  // Whether all ranks are there, as the communicator knows without asking them: a function for
  // other threads, which may outlive the group.
  std::function<absl::Status()> HealthCheck() const;

  // See WaitTimes.
  void SetTrace(Trace* trace, const WaitTimes::Tracks& tracks) { times().SetTrace(trace, tracks); }
  void set_step(int64_t step) { times().set_step(step); }
  // Without overlap a collective is done when its call returns, and the time counts as a wait;
  // messages stay as they are, since a rank cannot wait for one before it has posted its own. With,
  // at the beginning.
  void set_overlaps(bool overlaps) { overlaps_ = overlaps; }
  bool overlaps() const { return overlaps_; }
  // Computation waits for the group's collectives of tensors, so that they go before parameters and
  // gradients on the links that they share; on a GPU NcclUse::high_priority says so.
  void set_awaited(bool awaited) { awaited_ = awaited; }
  // Time blocked in Wait, in what the caller has added, and of a GPU's computation, since the last
  // call.
  double TakeExposedSeconds();
  // Counts another wait of the caller, as Sum's, which Sum does not count.
  void AddExposed(int64_t start_ns, int64_t end_ns, const char* name) {
    times().AddWait(start_ns, end_ns, name);
  }

  // shard = average over the ranks of this rank's part of `full`.
  absl::StatusOr<Pending> ReduceScatterAverage(at::Tensor shard, at::Tensor full);
  absl::StatusOr<Pending> ReduceScatterSum(at::Tensor shard, at::Tensor full);
  // `full` of all ranks' parts; `shard` may be this rank's part of `full` itself.
  absl::StatusOr<Pending> AllGather(at::Tensor full, at::Tensor shard);
  // In place.
  absl::StatusOr<Pending> AllReduceSum(at::Tensor tensor);
  // Part i of `sent` to rank i, from each rank its part of `received`: as many equal parts as
  // ranks.
  absl::StatusOr<Pending> AllToAll(at::Tensor received, at::Tensor sent);
  // Rows of any number to and from each rank. Both tensors are
  // [rows, the same width]; names are literals, for the trace. `typical_rows`: from one rank to one
  // other on average, the same number on all ranks; 0: they do not know it.
  absl::StatusOr<Pending> ExchangeRows(at::Tensor received, const RowParts& received_parts,
                                       at::Tensor sent, const RowParts& sent_parts,
                                       int64_t typical_rows, const char* name,
                                       const char* wait_name);
  // Matched by (peer, tag) in order; on a channel of UseNcclChannels, of a tensor that goes a
  // device's way, in order alone.
  absl::StatusOr<Pending> Send(at::Tensor tensor, int peer, uint32_t tag,
                               std::optional<uint32_t> channel = std::nullopt);
  absl::StatusOr<Pending> Receive(at::Tensor tensor, int peer, uint32_t tag,
                                  std::optional<uint32_t> channel = std::nullopt);
  // `sent` to rank `to` and `received` from rank `from`, in a call that all ranks make in one
  // order, as around a ring.
  struct Shifted {
    Pending received, sent;
  };
  absl::StatusOr<Shifted> Shift(at::Tensor received, int from, at::Tensor sent, int to,
                                uint32_t tag);
  // Counts and records the time blocked. The error of a collective that failed keeps its code.
  absl::Status Wait(Pending& pending);
  // In the place of Wait, for what was sent: true where that is done, which it then needs no more.
  absl::StatusOr<bool> TryFinish(Pending& pending);

 private:
  Group(std::shared_ptr<collectives::Endpoint> endpoint,
        std::unique_ptr<collectives::Communicator> communicator, absl::string_view name,
        std::vector<Rank> ranks);
  absl::StatusOr<Pending> ReduceScatter(at::Tensor shard, at::Tensor full,
                                        collectives::ReduceOp op);
  bool TakesNccl(const at::Tensor& tensor) const;
  collectives::Priority PriorityOf(collectives::Priority usual) const {
    return awaited_ ? collectives::Priority::kHigh : usual;
  }
  // The channel's, for a tensor that takes it; else null.
  NcclCollectives* ChannelOf(std::optional<uint32_t> channel, const at::Tensor& tensor) const;
  // `pending` with the work of `by` and its tensors.
  static absl::StatusOr<Pending> OnGpu(Pending pending, NcclCollectives& by,
                                       absl::StatusOr<NcclCollectives::Work> work,
                                       std::vector<at::Tensor> tensors);
  // The same of a collective.
  absl::StatusOr<Pending> LaunchedOnGpu(Pending pending, absl::StatusOr<NcclCollectives::Work> work,
                                        std::vector<at::Tensor> tensors);
  // `pending`, waited for where the group does not overlap.
  absl::StatusOr<Pending> Launched(Pending pending);

  // What follows goes first: then no work is under way.
  std::shared_ptr<LeftTensors> left_ = std::make_shared<LeftTensors>();
  std::shared_ptr<collectives::Endpoint> endpoint_;  // null, as the next: a group of one
  std::shared_ptr<collectives::Communicator> communicator_;
  std::string name_;
  std::unique_ptr<NcclCollectives> nccl_;                          // null: NCCL is not used
  std::map<uint32_t, std::unique_ptr<NcclCollectives>> channels_;  // of this rank, by number
  bool overlaps_ = true, awaited_ = false;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_GROUP_H_
