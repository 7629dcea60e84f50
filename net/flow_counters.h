// What has passed over one link, counted by every transport alike: the numbers that say which of
// three a flow that stands still waits for.
//
//   posted       by this side
//   matched      its other end is posted, too, as far as this side knows: the message may move
//   transmitted  handed to the kernel, the device or shared memory; of a receive: arrived
//   done         its request is complete
//
//   posted > matched        the other side does not post
//   matched > transmitted   this side has not moved it: its processor, or no room on the way
//   transmitted > done      it is on its way: the network, or the other side's processor
//
// Kept by the thread that drives the transport, without a lock or a system call, and read by the
// same thread. (Mycroft, arXiv 2509.03018, section 4, counts three of them in NCCL's proxy:
// GPU_ready is matched, RDMA_transmitted transmitted, RDMA_done done.)
#ifndef WEFT_NET_FLOW_COUNTERS_H_
#define WEFT_NET_FLOW_COUNTERS_H_

#include <cstdint>

namespace weft::net {

// Since the link was made. Bytes are of messages, without what the protocol adds.
struct FlowCounters {
  uint64_t messages_posted = 0;
  uint64_t messages_matched = 0;  // all that are posted, once the link is broken
  uint64_t messages_done = 0;     // well or not
  uint64_t bytes_posted = 0;      // of a receive: what it has room for
  uint64_t bytes_matched = 0;
  uint64_t bytes_transmitted = 0;
  uint64_t bytes_done = 0;  // of messages that ended well
  // Packets or pieces that were sent again, or sockets that were replaced (tcp).
  uint64_t repeats = 0;
  int64_t rtt_ns = 0;  // as it is now, smoothed; 0: the transport does not measure it

  uint64_t outstanding() const { return messages_posted - messages_done; }
  uint64_t waiting_for_peer() const { return messages_posted - messages_matched; }
  bool operator==(const FlowCounters&) const = default;

  // For transports.
  void Post(uint64_t bytes) { ++messages_posted, bytes_posted += bytes; }
  void Match(uint64_t bytes) { ++messages_matched, bytes_matched += bytes; }
  void Transmit(uint64_t bytes) { bytes_transmitted += bytes; }
  void Finish(uint64_t bytes) { ++messages_done, bytes_done += bytes; }
  void FinishAll() { messages_done = messages_matched = messages_posted; }
};

// How long a flow has stood still: something is outstanding, and no message, no byte has moved.
class FlowProgress {
 public:
  // True if anything has changed since the last call, or this is the first.
  bool Update(const FlowCounters& now, int64_t now_ns) {
    const bool moved = last_.messages_matched != now.messages_matched ||
                       last_.messages_done != now.messages_done ||
                       last_.bytes_transmitted != now.bytes_transmitted;
    const bool began = last_.outstanding() == 0 && now.outstanding() > 0;
    const bool changed = !(last_ == now) || moved_ns_ == 0;
    if (moved || began || moved_ns_ == 0) moved_ns_ = now_ns;
    last_ = now;
    return changed;
  }
  int64_t stuck_ns(int64_t now_ns) const {
    return last_.outstanding() == 0 ? 0 : now_ns - moved_ns_;
  }

 private:
  FlowCounters last_;
  int64_t moved_ns_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_FLOW_COUNTERS_H_
