// The calendar of the packet level: which link has something arriving when.
//
// A link is a pipe, so only its first arrival is in the calendar: at most one event a slot, however
// many packets fly. Events lie in a ring of buckets of time (R. Brown, "Calendar queues", CACM
// 31(10), 1988) whose width is at most the time of the smallest frame on the fastest link. A bucket
// is a list of blocks, filled at its end, so that writing an event touches memory that is in cache;
// it is sorted when it is opened. Within a bucket no link causes an arrival on another, as both the
// frame and the pipe take longer than that; so what lies ahead in the batch can be fetched from
// memory early. Beyond the ring there is a heap.
//
// Events at one time come in order of their slots: an order that does not depend on how they were
// scheduled.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_EVENT_WHEEL_H_
#define WEFT_TOPOLOGY_SIM_PACKET_EVENT_WHEEL_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
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
  // 2^width_bits picoseconds a bucket (at most 2^30), 2^bucket_bits buckets (at least 64).
  EventWheel(int width_bits, int bucket_bits)
      : width_bits_(width_bits),
        mask_((uint64_t{1} << bucket_bits) - 1),
        buckets_(size_t{1} << bucket_bits),
        occupied_((size_t{1} << bucket_bits) / 64) {
    WEFT_CHECK(width_bits <= 30, "a bucket of 2^" << width_bits << " picoseconds");
  }

  // At or after the time of the last event taken.
  void Schedule(uint32_t slot, Picoseconds time) {
    uint64_t bucket = static_cast<uint64_t>(time) >> width_bits_;
    ++pending_;
    if (bucket == open_) [[unlikely]] {
      InsertIntoBatch(KeyOf(slot, time));
    } else if (bucket - current_ > mask_) [[unlikely]] {
      far_.push_back({time, slot});
      std::push_heap(far_.begin(), far_.end(), Later);
    } else {
      Add(KeyOf(slot, time), bucket);
    }
  }

  bool empty() const { return pending_ == 0; }
  // The time at which the next event can be at the earliest; kNever: there is none.
  Picoseconds Earliest() {
    if (HasNext()) return TimeOf(batch_[position_]);
    uint64_t bucket = NextBucket();
    return bucket == kNoBucket ? kNever : static_cast<Picoseconds>(bucket << width_bits_);
  }

  // Opens the next bucket that holds something; false: none. The batch before must be used up.
  bool Open() {
    uint64_t index = NextBucket();
    if (index == kNoBucket) return false;
    current_ = open_ = index;
    FetchFar();
    batch_.clear();
    position_ = 0;
    index &= mask_;
    Bucket& bucket = buckets_[index];
    for (; bucket.block != kNone; bucket.fill = kBlockKeys) {
      Block& block = blocks_[bucket.block];
      batch_.insert(batch_.end(), block.keys.begin(), block.keys.begin() + bucket.fill);
      free_.push_back(bucket.block);
      bucket.block = block.next;
    }
    occupied_[index / 64] &= ~(uint64_t{1} << (index % 64));
    SortBatch();
    batch_.insert(batch_.end(), kAhead, kNothing);
    return true;
  }
  // The next event of the open bucket.
  bool HasNext() const { return position_ + kAhead < batch_.size(); }
  Picoseconds NextTime() const { return TimeOf(batch_[position_]); }
  Event Take() {
    --pending_;
    uint64_t key = batch_[position_++];
    return {TimeOf(key), static_cast<uint32_t>(key)};
  }
  // How many of the open bucket were taken, and the slot of its `event`-th, which may be up to
  // kAhead beyond the last; kNone: there is none.
  size_t position() const { return position_; }
  uint32_t InBatch(size_t event) const { return static_cast<uint32_t>(batch_[event]); }
  static constexpr uint32_t kNone = ~0u;
  static constexpr size_t kAhead = 24;

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
  static constexpr uint64_t kNothing = ~uint64_t{0};  // after the last key of a batch
  static bool Later(const Event& a, const Event& b) { return b < a; }

  // An event of a known bucket: picoseconds since the bucket's begin, then the slot.
  uint64_t KeyOf(uint32_t slot, Picoseconds time) const {
    uint64_t offset = static_cast<uint64_t>(time) & ((uint64_t{1} << width_bits_) - 1);
    return offset << 32 | slot;
  }
  Picoseconds TimeOf(uint64_t key) const {
    return static_cast<Picoseconds>((open_ << width_bits_) + (key >> 32));
  }

  static constexpr uint32_t kBlockKeys = 15;
  struct alignas(64) Block {
    std::array<uint64_t, kBlockKeys> keys;
    uint32_t next = kNone;
  };
  struct Bucket {
    uint32_t block = kNone;      // that is being filled; those before it are full
    uint32_t fill = kBlockKeys;  // of that block
  };

  void Add(uint64_t key, uint64_t number) {
    uint64_t index = number & mask_;
    Bucket& bucket = buckets_[index];
    if (bucket.fill == kBlockKeys) {
      AddBlock(bucket);
      occupied_[index / 64] |= uint64_t{1} << (index % 64);
    }
    blocks_[bucket.block].keys[bucket.fill++] = key;
  }

  void AddBlock(Bucket& bucket) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(blocks_.size()));
      blocks_.emplace_back();
    }
    uint32_t block = free_.back();
    free_.pop_back();
    blocks_[block].next = bucket.block;
    bucket = {block, 0};
  }

  void InsertIntoBatch(uint64_t key) {
    if (batch_.empty()) batch_.assign(kAhead, kNothing);
    auto from = batch_.begin() + static_cast<std::ptrdiff_t>(position_);
    batch_.insert(std::upper_bound(from, batch_.end() - kAhead, key), key);
  }

  // By counting on the leading bits of the offset, so that about one event falls on each count, and
  // by comparing the few that share one. Links that work in step have many events at one time:
  // these are sorted by the digits in which they differ.
  void SortBatch() {
    constexpr size_t kFew = 16, kMany = 64;
    size_t count = batch_.size();
    if (count <= kFew) {
      InsertionSort(batch_.data(), batch_.data() + count);
      return;
    }
    int digit_bits = std::min({static_cast<int>(std::bit_width(count)), width_bits_, 11});
    sorted_.resize(count);
    CountingPass(batch_.data(), sorted_.data(), count, 32 + width_bits_ - digit_bits, digit_bits);
    batch_.swap(sorted_);
    uint32_t begin = 0;
    size_t digits = size_t{1} << digit_bits;
    for (size_t i = 0; i < digits; begin = ends_[i++]) {
      size_t here = ends_[i] - begin;
      if (here <= 1) continue;
      uint64_t* first = batch_.data() + begin;
      if (here <= kFew) {
        InsertionSort(first, first + here);
      } else if (here <= kMany) {
        std::sort(first, first + here);
      } else {
        many_.push_back({begin, ends_[i]});  // ends_ is needed for the others first
      }
    }
    for (auto [from, to] : many_) RadixSort(batch_.data() + from, sorted_.data() + from, to - from);
    many_.clear();
  }

  // Stable. Leaves in ends_ where each digit's keys end.
  void CountingPass(const uint64_t* from, uint64_t* to, size_t count, int shift, int digit_bits) {
    size_t digits = size_t{1} << digit_bits;
    uint64_t mask = digits - 1;
    ends_.assign(digits + 1, 0);
    for (size_t i = 0; i < count; ++i) ++ends_[(from[i] >> shift & mask) + 1];
    for (size_t i = 1; i < digits; ++i) ends_[i] += ends_[i - 1];
    for (size_t i = 0; i < count; ++i) to[ends_[from[i] >> shift & mask]++] = from[i];
  }

  void RadixSort(uint64_t* keys, uint64_t* scratch, size_t count) {
    constexpr int kDigitBits = 8;
    uint64_t differ = 0;
    for (size_t i = 1; i < count; ++i) differ |= keys[i] ^ keys[0];
    uint64_t *from = keys, *to = scratch;
    for (int shift = 0; shift < 64; shift += kDigitBits) {
      if ((differ >> shift & 0xff) == 0) continue;
      CountingPass(from, to, count, shift, kDigitBits);
      std::swap(from, to);
    }
    if (from != keys) std::copy(from, from + count, keys);
  }

  static void InsertionSort(uint64_t* first, uint64_t* last) {
    for (uint64_t* at = first; at != last; ++at) {
      uint64_t key = *at;
      uint64_t* hole = at;
      for (; hole != first && hole[-1] > key; --hole) *hole = hole[-1];
      *hole = key;
    }
  }

  void FetchFar() {
    while (!far_.empty()) {
      uint64_t bucket = static_cast<uint64_t>(far_.front().time) >> width_bits_;
      if (bucket - current_ > mask_) return;
      Add(KeyOf(far_.front().slot, far_.front().time), bucket);
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
  std::vector<Bucket> buckets_;     // [bucket & mask_]
  std::vector<uint64_t> occupied_;  // a bit a bucket
  LargeVector<Block> blocks_;
  std::vector<uint32_t> free_;                       // of blocks_, used again last in, first out
  std::vector<Event> far_;                           // a heap: beyond the ring
  std::vector<uint64_t> batch_;                      // of the open bucket, sorted
  std::vector<uint64_t> sorted_;                     // scratch
  std::vector<uint32_t> ends_;                       // scratch: [digit]
  std::vector<std::pair<uint32_t, uint32_t>> many_;  // scratch
  size_t position_ = 0;
  uint64_t current_ = 0;  // no event lies before this bucket
  uint64_t open_ = kNoBucket;
  uint64_t pending_ = 0;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_EVENT_WHEEL_H_
