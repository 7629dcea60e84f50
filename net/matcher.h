// Pairs posted sends with clear-to-sends, for every transport: same tag, first come first served on
// both sides.
//
// For one tag only one of the two kinds can be waiting at any time. A table of tags (open
// addressing, linear probing) holds the ends of each tag's queue; the queues are lists through one
// pool, so that nothing is allocated once the pool has grown to what a program uses.
#ifndef WEFT_NET_MATCHER_H_
#define WEFT_NET_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace weft::net {

template <typename A, typename B>
class Matcher {
 public:
  // The oldest waiting B of this tag; or keeps `a` for a later B.
  std::optional<B> OfferA(uint64_t tag, const A& a) { return Offer<B>(tag, a, &b_, &a_); }
  std::optional<A> OfferB(uint64_t tag, const B& b) { return Offer<A>(tag, b, &a_, &b_); }

  size_t waiting_a() const { return a_.size; }
  size_t waiting_b() const { return b_.size; }

  // Whether anything of this tag waits.
  bool Waits(uint64_t tag) const { return entries_ > 0 && table_[Find(tag)].used; }
  // The oldest waiting B of this tag; null: none. Good until the next call that is not const.
  const B* FirstB(uint64_t tag) const {
    if (entries_ == 0) return nullptr;
    const Entry& entry = table_[Find(tag)];
    return entry.used && entry.owner == &b_ ? &b_.nodes[entry.head].first : nullptr;
  }
  void DropFirstB(uint64_t tag) {  // there is one
    const size_t at = Find(tag);
    b_.Pop(&table_[at]);
    if (table_[at].head == kEnd) Erase(at);
  }
  void Clear() {
    table_.clear();
    entries_ = 0;
    a_ = {};
    b_ = {};
  }

  // Empties the side of the Bs, in no particular order.
  template <typename Visit>
  void DrainB(Visit visit) {
    for (size_t i = 0; i < table_.size();) {
      if (table_[i].used && table_[i].owner == &b_) {
        visit(b_.Pop(&table_[i]));
        if (table_[i].head == kEnd) Erase(i);  // may move another entry to i
      } else {
        ++i;
      }
    }
  }

 private:
  static constexpr uint32_t kEnd = ~uint32_t{0};

  struct Entry {
    uint64_t tag = 0;
    uint32_t head = kEnd, tail = kEnd;
    const void* owner = nullptr;  // &a_ or &b_
    bool used = false;
  };

  template <typename T>
  struct Pool {
    void Push(Entry* entry, const T& value) {
      uint32_t node = free;
      if (node == kEnd) {
        node = static_cast<uint32_t>(nodes.size());
        nodes.emplace_back(value, kEnd);
      } else {
        free = nodes[node].second;
        nodes[node] = {value, kEnd};
      }
      if (entry->head == kEnd) {
        entry->head = node;
      } else {
        nodes[entry->tail].second = node;
      }
      entry->tail = node;
      ++size;
    }
    T Pop(Entry* entry) {
      uint32_t node = entry->head;
      entry->head = nodes[node].second;
      nodes[node].second = free;
      free = node;
      --size;
      return nodes[node].first;
    }
    std::vector<std::pair<T, uint32_t>> nodes;  // a value and the next node
    uint32_t free = kEnd;
    size_t size = 0;
  };

  template <typename Wanted, typename Offered>
  std::optional<Wanted> Offer(uint64_t tag, const Offered& offered, Pool<Wanted>* wanted,
                              Pool<Offered>* kept) {
    if (2 * (entries_ + 1) > table_.size()) Grow();
    size_t at = Find(tag);
    Entry& entry = table_[at];
    if (entry.used && entry.owner == wanted) {
      Wanted match = wanted->Pop(&entry);
      if (entry.head == kEnd) Erase(at);
      return match;
    }
    if (!entry.used) {
      entry = Entry{tag, kEnd, kEnd, kept, true};
      ++entries_;
    }
    kept->Push(&entry, offered);
    return std::nullopt;
  }

  size_t Home(uint64_t tag) const {
    return ((tag + 1) * 0x9E3779B97F4A7C15ULL >> 20) & (table_.size() - 1);
  }
  size_t Find(uint64_t tag) const {  // of the tag, or of the place for it
    size_t at = Home(tag);
    while (table_[at].used && table_[at].tag != tag) at = (at + 1) & (table_.size() - 1);
    return at;
  }
  // Closes the gap, so that probing never meets a tombstone.
  void Erase(size_t gap) {
    size_t mask = table_.size() - 1;
    for (size_t at = (gap + 1) & mask; table_[at].used; at = (at + 1) & mask) {
      if (((at - Home(table_[at].tag)) & mask) >= ((at - gap) & mask)) {
        table_[gap] = table_[at];
        gap = at;
      }
    }
    table_[gap].used = false;
    --entries_;
  }
  void Grow() {
    std::vector<Entry> old = std::exchange(table_, {});
    table_.resize(old.empty() ? 64 : 2 * old.size());
    for (const Entry& entry : old) {
      if (entry.used) table_[Find(entry.tag)] = entry;
    }
  }

  std::vector<Entry> table_;
  size_t entries_ = 0;
  Pool<A> a_;
  Pool<B> b_;
};

}  // namespace weft::net

#endif  // WEFT_NET_MATCHER_H_
