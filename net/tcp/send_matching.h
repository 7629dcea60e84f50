// Which posted send goes to which posted receive of the other side, at the connecting end of a
// link, whatever carries its bytes: a send is matched with a clear-to-send of the same tag, first
// posted first matched, and what is matched is cut into pieces. No I/O, and no waiting: the link
// says what has come and what has gone.
#ifndef WEFT_NET_TCP_SEND_MATCHING_H_
#define WEFT_NET_TCP_SEND_MATCHING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "absl/status/status.h"
#include "base/ids.h"
#include "net/flow_counters.h"
#include "net/matcher.h"
#include "net/tcp/frame.h"
#include "net/tcp/slot_pool.h"
#include "net/tcp/stream.h"
#include "net/transport.h"

namespace weft::net {

class SendMatching {
 public:
  // What a send or a clear-to-send has led to.
  enum class Outcome : uint8_t {
    kWaits,     // for the other
    kMatched,   // NextData() has more to send
    kMismatch,  // they differ: the receiver must be told mismatch(); the send has ended
  };

  // `counters` are the link's, and outlive it.
  SendMatching(Rank self, Rank peer, size_t requests_max, FlowCounters& counters)
      : self_(self), peer_(peer), requests_max_(requests_max), counters_(counters) {}

  bool IsFull() const { return sends_.used() >= requests_max_; }  // then no Post()
  Outcome Post(const MessageKey& key, const SendSource& source, Request* request);
  // Whether a frame may be passed to OnClearToSend(); else what is wrong with it.
  absl::Status Admit(const FrameHeader& header) const;
  Outcome OnClearToSend(const FrameHeader& header);
  const FrameHeader& mismatch() const { return mismatch_; }  // the last

  size_t outstanding() const { return sends_.used(); }  // sends that have not ended
  // ---- What is matched and has not been given away by NextData().
  bool HasData() const { return !active_.empty(); }
  uint64_t bytes_left() const { return active_bytes_; }
  // The message that NextData() goes on with: the receiver's id of the receive, and its bytes.
  struct Head {
    uint64_t receive = 0, total = 0;
  };
  Head head() const {  // HasData()
    const Send& send = sends_[active_.front()];
    return {send.receive, send.data.size()};
  }
  // The next piece of the most urgent, of at most `most` bytes; its payload stays in place until
  // OnSent(its token). False: none.
  bool NextData(size_t most, OutFrame* frame);
  void OnSent(uint32_t token);

  // ---- For sends that need no clear-to-send, which their data path counts.
  FlowCounters& counters() { return counters_; }
  // Whether nothing of this tag waits: no send, no clear-to-send, nothing matched that has not all
  // been given away.
  bool IsIdle(uint64_t tag) const { return !matcher_.Waits(tag) && !IsActive(tag); }
  // The first send of this tag that waits for a clear-to-send, once all that was matched before has
  // been given away: `take` may take it over, and its request with it. Not one that has to wait
  // (SendSource::waits), nor any behind it.
  using TakeOver = std::function<bool(const MessageKey&, const RegionView&, Request*)>;
  enum class TakenOver : uint8_t { kNone, kNotYet, kTaken };
  TakenOver TakeFirstWaiting(uint64_t tag, const TakeOver& take);

  // Ends all of them with `why`; nothing is matched any more.
  void Fail(const absl::Status& why);

 private:
  struct Send {
    MessageKey key;
    RegionView data;
    uint8_t urgency = 0;
    bool waits = false;          // SendSource's
    Request* request = nullptr;  // null: the slot is free
    uint64_t receive = 0;        // the receiver's id, once matched
    size_t next_offset = 0;      // up to here it was given away
    uint32_t frames_queued = 0;  // given away and not sent yet
  };
  struct ClearToSend {
    uint64_t receive = 0, check = 0, capacity = 0;
  };

  bool IsActive(uint64_t tag) const;
  Outcome Match(uint32_t slot, const ClearToSend& clear);
  void Complete(uint32_t slot, const absl::Status& status);

  const Rank self_, peer_;
  const size_t requests_max_;
  FlowCounters& counters_;
  SlotPool<Send> sends_;
  Matcher<ClearToSend, uint32_t> matcher_;  // and slots of sends
  // Matched sends with something left to give: the most urgent first, equal ones as they matched.
  std::deque<uint32_t> active_;
  uint64_t active_bytes_ = 0;  // that are left
  FrameHeader mismatch_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SEND_MATCHING_H_
