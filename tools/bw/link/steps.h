// NCCL's own pattern of messages, without NCCL and without a GPU: what its proxy threads post for
// one collective of its Simple protocol on rings, channel by channel, slice by slice, with as many
// steps in flight as a channel's buffer holds. What a GPU would do between a receive and the send
// that depends on it takes no time here, so the result is what the network alone allows.
//
// From NCCL 2.28's sources (collectives.h, device.h, proxy.cc, facts only): NCCL_STEPS = 8 steps of
// NCCL_BUFFSIZE / 8 bytes; chunks of 4 steps in slices of 2 for all-reduce, all-gather and
// reduce-scatter; of 1 step in slices of 1 for broadcast, and for send and receive, there of 128
// KiB (NCCL_P2P_NET_CHUNKSIZE). A slice is at least 1/32 of its steps.
#ifndef WEFT_TOOLS_BW_LINK_STEPS_H_
#define WEFT_TOOLS_BW_LINK_STEPS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bw/link/measured_links.h"
#include "tools/bw/link/options.h"
#include "tools/bw/link/stream.h"

namespace weft::link_bw {

// What one rank sends and receives on one channel in one operation.
struct ChannelPlan {
  struct Send {
    int64_t bytes = 0;
    int64_t after = -1;  // the receive whose data it passes on; -1: its own
  };
  struct Receive {
    int64_t bytes = 0;
    bool passed_on = false;
  };
  std::vector<Send> sends;
  std::vector<Receive> receives;
  int in_flight = 1;       // slices
  int64_t slot_bytes = 0;  // of one slice, at most
};

// `bytes`: nccl-tests' size, of the whole buffer over all ranks where they have parts.
ChannelPlan PlanChannel(const Load& load, Bytes bytes, int rank, int ranks);
// From size / time to bus bandwidth, as nccl-tests has it.
double BusFactor(CollectiveKind collective, int ranks);

// One rank's part, operation after operation. Neighbours on the ring: rank - 1, rank + 1.
class Steps {
 public:
  static absl::StatusOr<std::unique_ptr<Steps>> Create(MeasuredLinks& links, const Load& load,
                                                       Bytes bytes, int rank, int ranks);
  // Runs `count` operations to their end, one after the other.
  absl::Status Run(int64_t count);
  int64_t sent_bytes() const { return sent_bytes_; }  // of one operation
  // Nanoseconds from the posting of a slice to its completion, since the last Forget().
  const std::vector<int64_t>& send_times() const { return send_times_; }
  void Forget() { send_times_.clear(); }

 private:
  struct Channel {
    explicit Channel(int in_flight)
        : sends(in_flight), receives(in_flight), posted_at(static_cast<size_t>(in_flight)) {}
    ChannelPlan plan;
    Requests sends, receives;
    Slots send_slots, receive_slots;
    std::vector<int64_t> posted_at;
    int64_t sent = 0, send_done = 0, posted = 0, received = 0, consumed = 0;
    // Counted over all operations, as the slots are; these are where this operation began.
    int64_t send_base = 0, receive_base = 0;
  };
  Steps(MeasuredLinks& links, int rank, int ranks) : links_(links), rank_(rank), ranks_(ranks) {}
  absl::Status Pump(int number, Channel& channel);
  absl::Status PumpReceives(int number, Channel& channel);
  absl::Status PumpSends(int number, Channel& channel);
  static bool Done(const Channel& channel);

  MeasuredLinks& links_;
  const int rank_, ranks_;
  std::vector<std::unique_ptr<Channel>> channels_;
  int64_t sent_bytes_ = 0;
  std::vector<int64_t> send_times_;
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_STEPS_H_
