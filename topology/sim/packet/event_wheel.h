// The calendar of the packet level: which link has something arriving when.
//
// A link is a pipe, so only its first arrival is in the calendar: one slot a link, and as many
// entries as links, however many packets fly. Slots lie in a ring of buckets of time (R. Brown,
// "Calendar queues", CACM 31(10), 1988) whose width is at most the time of the smallest frame on
// the fastest link; a bucket is sorted when it is opened. Within a bucket no link causes an arrival
// on another, as both the frame and the pipe take longer than that; so what lies ahead in the
// batch can be fetched from memory early. Beyond the ring there is a heap.
//
// Events at one time come in order of their slots: an order that does not depend on how they were
// scheduled.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_EVENT_WHEEL_H_
#define WEFT_TOPOLOGY_SIM_PACKET_EVENT_WHEEL_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "topology/sim/packet/arena.h"
#include "topology/sim/packet/time.h"

namespace weft::topology::packet {

struct Event {
  Picoseconds time;
  uint32_t slot;
  bool operator<(const Event& other) const {
    return time != other.time ? time < other.time : slot < other.slot;
  }
};

class EventWheel {
 public:
  // 2^width_bits picoseconds a bucket, 2^bucket_bits buckets (at least 64).
  EventWheel(uint32_t slots, int width_bits, int bucket_bits)
      : width_bits_(width_bits),
        mask_((uint64_t{1} << bucket_bits) - 1),
        heads_(size_t{1} << bucket_bits, kNone),
        occupied_((size_t{1} << bucket_bits) / 64),
        next_(slots),
        times_(slots) {}

  // A slot may be scheduled once at a time, at or after the time of the last event taken.
  void Schedule(uint32_t slot, Picoseconds time) {
    uint64_t bucket = static_cast<uint64_t>(time) >> width_bits_;
    ++pending_;
    if (bucket == open_) [[unlikely]] {
      InsertIntoBatch({time, slot});
    } else if (bucket - current_ > mask_) [[unlikely]] {
      far_.push_back({time, slot});
      std::push_heap(far_.begin(), far_.end(), Later);
    } else {
      Link(slot, time, bucket);
    }
  }

  bool empty() const { return pending_ == 0; }
  // The time at which the next event can be at the earliest; kNever: there is none.
  Picoseconds Earliest() {
    if (position_ < batch_.size()) return batch_[position_].time;
    uint64_t bucket = NextBucket();
    return bucket == kNoBucket ? kNever : static_cast<Picoseconds>(bucket << width_bits_);
  }

  // Opens the next bucket that holds something; false: none. The batch before must be used up.
  bool Open() {
    uint64_t bucket = NextBucket();
    if (bucket == kNoBucket) return false;
    current_ = open_ = bucket;
    FetchFar();
    batch_.clear();
    position_ = 0;
    uint64_t index = bucket & mask_;
    for (uint32_t slot = heads_[index]; slot != kNone; slot = next_[slot]) {
      batch_.push_back({times_[slot], slot});
    }
    heads_[index] = kNone;
    occupied_[index / 64] &= ~(uint64_t{1} << (index % 64));
    std::sort(batch_.begin(), batch_.end());
    return true;
  }
  // Of the open bucket.
  bool HasNext() const { return position_ < batch_.size(); }
  const Event& Peek() const { return batch_[position_]; }
  Event Take() {
    --pending_;
    return batch_[position_++];
  }
  // How many of the open bucket were taken, and the slot of its `event`-th; kNone: it has fewer.
  size_t position() const { return position_; }
  uint32_t InBatch(size_t event) const {
    return event < batch_.size() ? batch_[event].slot : kNone;
  }
  static constexpr uint32_t kNone = ~0u;

  // No event before `time` will be scheduled from now on: keeps Schedule() fast after a pause.
  void AdvanceTo(Picoseconds time) {
    uint64_t bucket = static_cast<uint64_t>(time) >> width_bits_;
    if (bucket <= current_ || HasNext()) return;
    open_ = kNoBucket;
    current_ = bucket;
    FetchFar();
  }

 private:
  static constexpr uint64_t kNoBucket = ~uint64_t{0};
  static bool Later(const Event& a, const Event& b) { return b < a; }

  void Link(uint32_t slot, Picoseconds time, uint64_t bucket) {
    uint64_t index = bucket & mask_;
    times_[slot] = time;
    next_[slot] = heads_[index];
    heads_[index] = slot;
    occupied_[index / 64] |= uint64_t{1} << (index % 64);
  }

  void InsertIntoBatch(Event event) {
    auto from = batch_.begin() + static_cast<std::ptrdiff_t>(position_);
    batch_.insert(std::upper_bound(from, batch_.end(), event), event);
  }

  void FetchFar() {
    while (!far_.empty()) {
      uint64_t bucket = static_cast<uint64_t>(far_.front().time) >> width_bits_;
      if (bucket - current_ > mask_) return;
      Link(far_.front().slot, far_.front().time, bucket);
      std::pop_heap(far_.begin(), far_.end(), Later);
      far_.pop_back();
    }
  }

  uint64_t NextBucket() const {
    uint64_t start = current_ & mask_, words = occupied_.size();
    uint64_t word = start / 64;
    uint64_t bits = occupied_[word] & (~uint64_t{0} << (start % 64));
    for (uint64_t i = 0; i <= words; ++i) {
      if (bits != 0) {
        uint64_t index = word * 64 + static_cast<uint64_t>(std::countr_zero(bits));
        return current_ + ((index - start) & mask_);
      }
      word = word + 1 == words ? 0 : word + 1;
      bits = occupied_[word];
    }
    if (far_.empty()) return kNoBucket;
    return static_cast<uint64_t>(far_.front().time) >> width_bits_;
  }

  const int width_bits_;
  const uint64_t mask_;
  std::vector<uint32_t> heads_;     // [bucket & mask_]: a list of slots
  std::vector<uint64_t> occupied_;  // a bit a bucket
  std::vector<uint32_t> next_;      // [slot]
  std::vector<Picoseconds> times_;  // [slot]
  std::vector<Event> far_;          // a heap: beyond the ring
  std::vector<Event> batch_;        // of the open bucket, sorted
  size_t position_ = 0;
  uint64_t current_ = 0;  // no event lies before this bucket
  uint64_t open_ = kNoBucket;
  uint64_t pending_ = 0;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_EVENT_WHEEL_H_
