// Says of a link's counters when a record of them is due: when they have changed, and, while the
// flow stands still, ever less often.
#ifndef WEFT_NET_FLOW_WATCH_H_
#define WEFT_NET_FLOW_WATCH_H_

#include <algorithm>
#include <cstdint>

#include "base/records.h"
#include "net/flow_counters.h"

namespace weft::net {

class FlowWatch {
 public:
  // True: *record has the counters, but for the names of its ends.
  bool Sample(const FlowCounters& counters, int64_t now_ns, FlowRecord* record) {
    const bool changed = progress_.Update(counters, now_ns);
    const int64_t stuck_ns = progress_.stuck_ns(now_ns);
    const bool due = stuck_ns > 0 && now_ns - written_ns_ >= stuck_ns / 4;
    if (!changed && !due) return false;
    written_ns_ = now_ns;
    record->time_ns = now_ns;
    record->stuck_ms = AtMost32(stuck_ns / 1'000'000);
    record->rtt_us = AtMost32(counters.rtt_ns / 1000);
    record->outstanding = AtMost16(counters.outstanding());
    record->waiting = AtMost16(counters.waiting_for_peer());
    record->repeats = AtMost32(static_cast<int64_t>(counters.repeats));
    record->bytes_matched = counters.bytes_matched;
    record->bytes_transmitted = counters.bytes_transmitted;
    record->bytes_done = counters.bytes_done;
    return true;
  }

 private:
  static uint16_t AtMost16(uint64_t value) {
    return static_cast<uint16_t>(std::min<uint64_t>(value, 65535));
  }
  static uint32_t AtMost32(int64_t value) {
    return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
  }

  FlowProgress progress_;
  int64_t written_ns_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_FLOW_WATCH_H_
