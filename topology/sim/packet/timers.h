// What happens at a time and is no arrival on a link: deadlines of NICs, operations, faults. Few
// against arrivals, and any time ahead: a heap.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_TIMERS_H_
#define WEFT_TOPOLOGY_SIM_PACKET_TIMERS_H_

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "topology/sim/packet/time.h"

namespace weft::topology::packet {

enum class TimerKind : uint8_t {
  kFault,      // id: index into the options' faults
  kLate,       // id: a frame that was held back (link noise)
  kPause,      // id: a link whose source now heeds a pause frame
  kNic,        // id: a NIC whose protocol has a deadline
  kOperation,  // id: an operation that starts, or a computation that ends
  kWatchdog,   // PFC: look for deadlocks
};

struct Timer {
  Picoseconds time;
  TimerKind kind;
  uint32_t id;
  uint32_t argument;  // kLate: the link; kPause: see Network::OnPauseFrame
};

class Timers {
 public:
  void Push(const Timer& timer) {
    heap_.push_back(timer);
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  Picoseconds Earliest() const { return heap_.empty() ? kNever : heap_.front().time; }
  Timer Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Timer timer = heap_.back();
    heap_.pop_back();
    return timer;
  }

 private:
  static bool Later(const Timer& a, const Timer& b) {
    return std::tie(a.time, a.kind, a.id, a.argument) > std::tie(b.time, b.kind, b.id, b.argument);
  }
  std::vector<Timer> heap_;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_TIMERS_H_
