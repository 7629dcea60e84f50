// How a group is given up without closing the links that it used: in a job that goes on after the
// loss of a rank (rejoin.h), links between the others are kept.
//
// What a rank has posted at a link of a group that has failed is matched by nothing any more: the
// other side has stopped as well. So each rank tells each peer whose link holds memory of one of
// its calls how many sends and receives of that call it has posted:
//
//   drain(call, sends, receives)
//
// and the peer, which posts no more of the call either, posts what is missing to its own: receives
// for the sends, and sends for the receives, that its own do not match. These fillers have a check
// that no call has, so that both sides' requests fail, and no byte is written. Then the link is as
// if there had been no call. A call that the peer has finished matches all that is posted.
//
// A link that is not drained within kDrainNs is closed, and with it go the plans to keep the links:
// all ranks of the job join anew.
#ifndef WEFT_COLLECTIVES_DRAIN_H_
#define WEFT_COLLECTIVES_DRAIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "collectives/tag_counts.h"
#include "net/transport.h"

namespace weft::collectives {

inline constexpr int64_t kDrainNs = 2'000'000'000;

// What a rank has posted to one peer of one call, or of all messages with one tag. Wraps.
struct PostedCount {
  uint32_t sends = 0, receives = 0;
  std::string ToText() const;
  // False: the text is not one.
  static bool FromText(absl::string_view text, PostedCount* out);
};

// What a communicator has posted of its messages, by peer and tag.
class PostedMessages {
 public:
  void Add(bool sends, int peer, uint32_t tag) { (sends ? sends_ : receives_).Add(peer, tag); }
  PostedCount Of(int peer, uint32_t tag) const {
    return {sends_.Of(peer, tag), receives_.Of(peer, tag)};
  }

 private:
  TagCounts sends_, receives_;
};

// Which calls of a communicator are finished. They are so nearly in their order.
class FinishedCalls {
 public:
  void Add(uint32_t sequence);
  bool Has(uint32_t sequence) const { return sequence < next_ || later_.count(sequence) > 0; }

 private:
  uint32_t next_ = 0;  // all before it are
  std::set<uint32_t> later_;
};

struct Peer;

// Requests that match those of peers which nothing else will match. They go after the links.
class Fillers {
 public:
  // The peer has posted `theirs` at a tag, and this side `mine`: fills up what is missing here.
  void Match(Peer& peer, uint64_t tag, PostedCount theirs, PostedCount mine);
  // As far as links take them. True if anything moved.
  bool Post();
  // The peer's links are closed.
  void Drop(const Peer& peer);
  bool empty() const { return under_way_.empty(); }
  // Tags of the epoch before do not come again.
  void BeginEpoch() { filled_.clear(); }

 private:
  struct Filler {
    Peer* peer = nullptr;
    bool sends = false;
    uint64_t tag = 0;
    bool is_posted = false;
    std::unique_ptr<net::Request> request = std::make_unique<net::Request>();
  };
  std::map<std::pair<uint64_t, Rank>, PostedCount> filled_;  // by tag and peer
  std::vector<Filler> under_way_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_DRAIN_H_
