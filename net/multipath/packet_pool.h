// Packets that a frame of the simulator names by a handle.
#ifndef WEFT_NET_MULTIPATH_PACKET_POOL_H_
#define WEFT_NET_MULTIPATH_PACKET_POOL_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "net/multipath/packet.h"
#include "topology/sim/packet/time.h"

namespace weft::net::multipath {

// Acknowledgements on their way: a frame carries a handle. One that is lost frees its place when it
// is too old to be on its way.
class PacketPool {
 public:
  struct Handle {
    uint32_t slot, generation;
  };
  Packet& operator[](uint32_t slot) { return slots_[slot].packet; }
  Handle Allocate(topology::packet::Picoseconds now) {
    while (!aging_.empty()) {
      Aging oldest = aging_.front();
      bool is_flying = IsValid(oldest.handle);
      if (is_flying && oldest.since + kOldest >= now) break;
      aging_.pop_front();
      if (is_flying) Free(oldest.handle.slot);
    }
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.in_use = true;
    Handle handle{index, ++slot.generation};
    aging_.push_back({handle, now});
    return handle;
  }
  // False: it was heard of already (duplicated on the way), or is too old.
  bool IsValid(Handle handle) const {
    return slots_[handle.slot].in_use && slots_[handle.slot].generation == handle.generation;
  }
  void Free(uint32_t slot) {
    slots_[slot].in_use = false;
    free_.push_back(slot);
  }

 private:
  static constexpr topology::packet::Picoseconds kOldest = 20 * topology::packet::kMillisecond;
  struct Slot {
    Packet packet;
    uint32_t generation = 0;
    bool in_use = false;
  };
  struct Aging {
    Handle handle;
    topology::packet::Picoseconds since;
  };
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_;
  std::deque<Aging> aging_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_PACKET_POOL_H_
