// A map whose keys come in ascending order, mostly, and whose oldest entries mostly go first: a
// client's requests. In one piece of memory that is used again and again, where a tree would take
// and give back a node for each. Finding, adding at the end and erasing cost O(log n) at most,
// amortised; adding before the end O(n).
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_ASCENDING_MAP_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_ASCENDING_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace weft::collectives {

template <typename T>
class AscendingMap {
 public:
  // False: the key is there already.
  bool Insert(uint64_t key, T value) {
    if (slots_.empty() || slots_.back().key < key) {
      slots_.push_back({key, std::move(value)});
    } else {
      auto at = LowerBound(key);
      if (at->key == key && at->value.has_value()) return false;
      if (at->key == key) {
        at->value = std::move(value);
      } else {
        slots_.insert(at, {key, std::move(value)});
      }
    }
    ++size_;
    return true;
  }

  T* Find(uint64_t key) {
    auto at = LowerBound(key);
    return at != slots_.end() && at->key == key && at->value.has_value() ? &*at->value : nullptr;
  }

  // What was there; it is gone.
  std::optional<T> Take(uint64_t key) {
    std::optional<T> taken;
    auto at = LowerBound(key);
    if (at == slots_.end() || at->key != key || !at->value.has_value()) return taken;
    taken = std::exchange(at->value, std::nullopt);
    --size_;
    Trim();
    return taken;
  }
  bool Erase(uint64_t key) { return Take(key).has_value(); }

  // Takes entries below `end` away, each after `visit(value)`.
  template <typename Visit>
  void EraseBelow(uint64_t end, Visit visit) {
    if (empty() || first_key() >= end) return;
    for (size_t i = first_; i < slots_.size() && slots_[i].key < end; ++i) {
      if (!slots_[i].value.has_value()) continue;
      visit(*slots_[i].value);
      slots_[i].value.reset();
      --size_;
    }
    Trim();
  }

  // visit(key, value), in ascending order. It must not change the map.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t i = first_; i < slots_.size(); ++i) {
      if (slots_[i].value.has_value()) visit(slots_[i].key, *slots_[i].value);
    }
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t slots() const { return slots_.size(); }  // that take memory
  size_t bytes() const { return slots_.capacity() * sizeof(Slot); }
  uint64_t first_key() const { return slots_[first_].key; }  // of a map that is not empty

 private:
  struct Slot {
    uint64_t key;
    std::optional<T> value;  // none: erased
  };

  typename std::vector<Slot>::iterator LowerBound(uint64_t key) {
    auto begin = slots_.begin() + static_cast<std::ptrdiff_t>(first_);
    // Mostly there are no holes, and the place is known.
    if (begin != slots_.end() && key >= begin->key) {
      uint64_t guess = key - begin->key;
      auto left = static_cast<uint64_t>(slots_.end() - begin);
      if (guess < left && begin[static_cast<std::ptrdiff_t>(guess)].key == key) {
        return begin + static_cast<std::ptrdiff_t>(guess);
      }
    }
    return std::lower_bound(begin, slots_.end(), key,
                            [](const Slot& slot, uint64_t wanted) { return slot.key < wanted; });
  }

  // The first slot stays one that is in use, and no more than half of the slots are not.
  void Trim() {
    if (size_ == 0) {
      slots_.clear();
      first_ = 0;
      if (slots_.capacity() > kKept) slots_.shrink_to_fit();
      return;
    }
    while (!slots_[first_].value.has_value()) ++first_;
    if (slots_.size() <= 2 * size_ + kSlack) return;
    std::erase_if(slots_, [](const Slot& slot) { return !slot.value.has_value(); });
    first_ = 0;
  }

  static constexpr size_t kSlack = 32;
  static constexpr size_t kKept = 16;  // slots whose memory an empty map keeps
  std::vector<Slot> slots_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_ASCENDING_MAP_H_
