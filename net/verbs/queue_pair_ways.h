// UDP source ports of one link's queue pairs by a plan directory: those that leave by the ways that
// are planned between the two ends' GIDs. A queue pair that replaces a failed one takes the way
// that the reports about paths give its flow (topology/plan/path_reports.h), or another one. It
// reports nothing itself: what acknowledges its data comes by a way of its own, so that a queue
// pair that fails does not tell which of the two is dead.
#ifndef WEFT_NET_VERBS_QUEUE_PAIR_WAYS_H_
#define WEFT_NET_VERBS_QUEUE_PAIR_WAYS_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "net/tcp/planned_ways.h"
#include "net/verbs/nic.h"

namespace weft::net {

class Rails;

topology::IpAddress ToIpAddress(const Gid& gid);
// As PlannedWays::Check() of every rail's GID.
absl::Status CheckRails(const PlannedWays& ways, Rails& rails);
// As PlannedWays::Watch() of every rail's GID.
void WatchRails(PlannedWays& ways, Rails& rails);

class QueuePairWays {
 public:
  QueuePairWays() = default;  // none are planned
  // `leads`: data goes from here to the peer; else only what answers it, which takes no planned
  // way.
  QueuePairWays(const PlannedWays& ways, Rank peer, bool leads)
      : ways_(ways), peer_(peer), leads_(leads) {}
  explicit operator bool() const { return static_cast<bool>(ways_); }

  // For queue pair `index` of `count`, which is connected from `own` to `remote`. `again`: none of
  // the ways that queue pairs have left is to be taken, as long as there is another. 0: there is
  // nothing to choose. FailedPrecondition: the peer is not in the plan.
  absl::StatusOr<uint16_t> Port(size_t index, int count, bool again, const Gid& own,
                                const Gid& remote);
  // Whether the reports about paths now give queue pair `index` another way than it has taken.
  bool IsOffItsWay(size_t index, const Gid& own, const Gid& remote) const;
  // Its successor takes that way, though queue pairs may have left it before.
  void Follow(size_t index, const Gid& own, const Gid& remote);

 private:
  struct Pair {
    std::vector<topology::PathWay> ways;
    std::map<size_t, topology::PathWay> taken;  // by queue pair
    std::vector<topology::PathWay> left;        // by queue pairs, each once, the newest last
    std::set<size_t> follows;                   // queue pairs whose successors take the way of now
  };
  absl::Status TakeAnother(Pair& pair, size_t index, const topology::PathEnds& ends);
  PlannedWays ways_;
  Rank peer_;
  bool leads_ = false;
  std::map<std::pair<Gid, Gid>, Pair> pairs_;
  uint64_t ports_ = 0;  // handed out
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_QUEUE_PAIR_WAYS_H_
