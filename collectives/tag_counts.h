// How many messages there were of each peer and tag.
//
// Counts are never forgotten: the other end compares them with its own (any_source.h, drain.h), and
// would take a count that began anew for messages that are missing. But neighbouring tags with the
// same count share an entry, so that a program that numbers its messages by tags takes no more
// memory than one with a single tag.
#ifndef WEFT_COLLECTIVES_TAG_COUNTS_H_
#define WEFT_COLLECTIVES_TAG_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace weft::collectives {

class TagCounts {
 public:
  // Wraps.
  uint32_t Of(int peer, uint32_t tag) const { return Before(steps_.upper_bound(Key(peer, tag))); }

  void Add(int peer, uint32_t tag) {
    const uint64_t key = Key(peer, tag);
    auto next = steps_.upper_bound(key);
    const uint32_t count = Before(next);
    const bool begins = next != steps_.begin() && std::prev(next)->first == key;
    const bool ends = next != steps_.end() && next->first == key + 1;
    if (!ends) next = steps_.emplace_hint(next, key + 1, count);
    const auto own = begins ? std::prev(next) : steps_.emplace_hint(next, key, count);
    own->second = count + 1;
    // A step to the same count is none.
    if (next->second == own->second) steps_.erase(next);
    if (Before(own) == own->second) steps_.erase(own);
  }

  size_t entries() const { return steps_.size(); }

 private:
  using Steps = std::map<uint64_t, uint32_t>;

  static uint64_t Key(int peer, uint32_t tag) {
    return uint64_t{static_cast<uint32_t>(peer)} << 32 | tag;
  }
  // The count between this step and the one before it.
  uint32_t Before(Steps::const_iterator step) const {
    return step == steps_.begin() ? 0 : std::prev(step)->second;
  }

  Steps steps_;  // from a key on, up to the next one, counts are the same
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_TAG_COUNTS_H_
