// Receives from any rank, over links on which a receive asks one sender for its data.
//
// A receive that names no sender asks every rank of its group whether a message with its tag is
// there, and then becomes a receive from the first that says so:
//
//   seek(tag, known)    "I have posted `known` receives of your messages with this tag"
//   offer(tag, known)   "I have sent more than that": at once, or with the next send
//
// "More": what has been sent may also be less, where receives were posted ahead of their sends. An
// offer counts while no other receive was posted from that rank since; else the receiver seeks
// again. Messages of one rank keep their order, as they match in it. This is one group's part on
// one rank: counts, without I/O. Ranks are group ranks.
#ifndef WEFT_COLLECTIVES_ANY_SOURCE_H_
#define WEFT_COLLECTIVES_ANY_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "collectives/tag_counts.h"

namespace weft::collectives {

class AnySource {
 public:
  // A seek that was kept for a later send may be forgotten: a receive that is still without a
  // sender seeks again, within a second (MessageWork::Remind), and is told then what was sent
  // meanwhile. Others need no answer.
  static constexpr size_t kSoughtMost = size_t{1} << 16;

  // A send has started. A value: `peer` sought it, and is to be offered it with that `known`.
  std::optional<uint32_t> Sent(int peer, uint32_t tag) {
    sent_.Add(peer, tag);
    if (sought_.empty()) return std::nullopt;
    const auto sought = sought_.find({peer, tag});
    if (sought == sought_.end() || !HasMore(peer, tag, sought->second)) return std::nullopt;
    const uint32_t known = sought->second;
    sought_.erase(sought);
    return known;
  }
  // `peer` seeks. True: offer it one now; else Sent() will tell.
  bool Sought(int peer, uint32_t tag, uint32_t known) {
    if (HasMore(peer, tag, known)) {
      sought_.erase({peer, tag});
      return true;
    }
    if (sought_.size() >= kSoughtMost) sought_.clear();
    sought_[{peer, tag}] = known;
    return false;
  }
  // A receive was posted.
  void Received(int peer, uint32_t tag) { received_.Add(peer, tag); }
  uint32_t received(int peer, uint32_t tag) const { return received_.Of(peer, tag); }

  size_t entries() const { return sent_.entries() + received_.entries() + sought_.size(); }

 private:
  // Counts wrap.
  bool HasMore(int peer, uint32_t tag, uint32_t known) const {
    return static_cast<int32_t>(sent_.Of(peer, tag) - known) > 0;
  }

  TagCounts sent_, received_;
  std::map<std::pair<int, uint32_t>, uint32_t> sought_;  // what the seeker knew
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ANY_SOURCE_H_
