// The posted receives of the accepting end of a link, whatever carries its bytes: each becomes a
// clear-to-send, and the pieces that come for it are put where they belong. No I/O, and no waiting:
// the link says what has come.
#ifndef WEFT_NET_TCP_RECEIVE_MATCHING_H_
#define WEFT_NET_TCP_RECEIVE_MATCHING_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "net/flow_counters.h"
#include "net/tcp/frame.h"
#include "net/tcp/slot_pool.h"
#include "net/tcp/stream.h"
#include "net/transport.h"

namespace weft::net {

class ReceiveMatching {
 public:
  // `counters` are the link's, and outlive it.
  ReceiveMatching(Rank self, Rank peer, size_t requests_max, FlowCounters& counters)
      : self_(self), peer_(peer), requests_max_(requests_max), counters_(counters) {}

  bool IsFull() const { return receives_.used() >= requests_max_; }  // then no Post()
  // The clear-to-send that the sender must be given.
  FrameHeader Post(const MessageKey& key, const ReceiveTarget& target, Request* request);

  // As StreamOwner's, for a frame of data or a mismatch.
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header);
  absl::Status OnFrameDone(const FrameHeader& header);
  // Whether a message has become whole, since the last call, whose sender waits to hear that it is
  // taken (kTellTaken).
  bool TakeOwesTelling() { return std::exchange(owes_telling_, false); }

  size_t posted() const { return receives_.used(); }  // receives that have not ended
  // Target and key of a posted receive, by its id; valid until the next is posted. Null: none (any
  // more).
  const ReceiveTarget* TargetOf(uint64_t id) const;
  const MessageKey* KeyOf(uint64_t id) const;

  void Fail(const absl::Status& why);  // ends all of them with `why`

 private:
  struct Receive {
    MessageKey key;
    ReceiveTarget target;
    Request* request = nullptr;  // null: the slot is free
    uint32_t generation = 0;     // changes with each use, so that a stale id is noticed
    bool begun = false;          // a frame has come; `total` is known
    bool tell_taken = false;     // the sender waits for that
    uint64_t total = 0;
    uint64_t begun_bytes = 0;  // of all frames whose header has come: never above total
    uint64_t done_bytes = 0;
  };
  const Receive* At(uint64_t id) const;
  absl::StatusOr<uint32_t> Find(const FrameHeader& header) const;
  void Complete(uint32_t slot, const absl::Status& status, uint64_t bytes);

  const Rank self_, peer_;
  const size_t requests_max_;
  FlowCounters& counters_;
  SlotPool<Receive> receives_;
  bool owes_telling_ = false;
};

// The same words on both sides.
absl::Status MismatchStatus(bool too_long, uint64_t tag, Rank sender, uint64_t sender_check,
                            uint64_t sender_bytes, Rank receiver, uint64_t receiver_check,
                            uint64_t receiver_bytes);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_RECEIVE_MATCHING_H_
