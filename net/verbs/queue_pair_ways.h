// UDP source ports of one link's queue pairs by a plan directory: those that leave by the ways that
// are planned between the two ends' GIDs. A queue pair that replaces one takes another way.
#ifndef WEFT_NET_VERBS_QUEUE_PAIR_WAYS_H_
#define WEFT_NET_VERBS_QUEUE_PAIR_WAYS_H_

#include <cstdint>
#include <map>
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

 private:
  struct Pair {
    std::vector<topology::PathWay> ways;
    std::map<size_t, topology::PathWay> taken;  // by queue pair
    std::vector<topology::PathWay> left;        // by queue pairs, each once, the newest last
  };
  PlannedWays ways_;
  Rank peer_;
  bool leads_ = false;
  std::map<std::pair<Gid, Gid>, Pair> pairs_;
  uint64_t ports_ = 0;  // handed out
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_QUEUE_PAIR_WAYS_H_
