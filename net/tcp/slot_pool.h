// A vector of reusable entries with stable numbers; entries can be chained by number.
#ifndef WEFT_NET_TCP_SLOT_POOL_H_
#define WEFT_NET_TCP_SLOT_POOL_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace weft::net {

inline constexpr uint32_t kNoSlot = ~0u;

// References to entries are good until the next Acquire().
template <typename T>
class SlotPool {
 public:
  uint32_t Acquire() {
    ++used_;
    if (free_.empty()) {
      entries_.emplace_back();
      return static_cast<uint32_t>(entries_.size() - 1);
    }
    uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Release(uint32_t slot) {
    --used_;
    free_.push_back(slot);
  }
  T& operator[](uint32_t slot) { return entries_[slot]; }
  const T& operator[](uint32_t slot) const { return entries_[slot]; }
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }  // in use or not
  size_t used() const { return used_; }

 private:
  std::vector<T> entries_;
  std::vector<uint32_t> free_;
  size_t used_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SLOT_POOL_H_
