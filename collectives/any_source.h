// Receives from any rank, over links on which a receive asks one sender for its data.
//
// A receive that names no sender asks every rank of its group whether a message with its tag is
// there, and then becomes a receive from the first that says so:
//
//   seek(tag, known)    "I have posted `known` receives of your messages with this tag"
//   offer(tag, known)   "I have sent more than that": at once, or with the next send
//
// An offer counts while no other receive was posted from that rank since; else the receiver seeks
// again. Messages of one rank keep their order, as they match in it. This is one group's part on
// one rank: counts, without I/O. Ranks are group ranks.
#ifndef WEFT_COLLECTIVES_ANY_SOURCE_H_
#define WEFT_COLLECTIVES_ANY_SOURCE_H_

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "collectives/drain.h"

namespace weft::collectives {

class AnySource {
 public:
  // A send has started. A value: `peer` sought it, and is to be offered it with that `known`.
  std::optional<uint32_t> Sent(int peer, uint32_t tag) {
    State& state = states_[Key(peer, tag)];
    ++state.sent;
    if (!state.sought.has_value() || state.sent == *state.sought) return std::nullopt;
    std::optional<uint32_t> known;
    known.swap(state.sought);
    return known;
  }
  // `peer` seeks. True: offer it one now; else Sent() will tell.
  bool Sought(int peer, uint32_t tag, uint32_t known) {
    State& state = states_[Key(peer, tag)];
    state.sought = known;
    if (state.sent == known) return false;
    state.sought.reset();
    return true;
  }
  // What links have accepted of one peer and tag; see drain.h.
  PostedCount& posted(int peer, uint32_t tag) { return states_[Key(peer, tag)].posted; }
  // A receive was posted.
  void Received(int peer, uint32_t tag) { ++states_[Key(peer, tag)].received; }
  uint32_t received(int peer, uint32_t tag) const {
    auto found = states_.find(Key(peer, tag));
    return found == states_.end() ? 0 : found->second.received;
  }

 private:
  struct State {
    uint32_t sent = 0, received = 0;  // wrap
    PostedCount posted;
    std::optional<uint32_t> sought;
  };
  static uint64_t Key(int peer, uint32_t tag) {
    return uint64_t{static_cast<uint32_t>(peer)} << 32 | tag;
  }
  std::unordered_map<uint64_t, State> states_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ANY_SOURCE_H_
