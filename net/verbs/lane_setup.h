// Makes and connects the queue pairs of a link's lanes: on which rail, by which UDP source port,
// with which packet number, MTU and traffic class. Not thread-safe.
#ifndef WEFT_NET_VERBS_LANE_SETUP_H_
#define WEFT_NET_VERBS_LANE_SETUP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "net/verbs/entry.h"
#include "net/verbs/lane.h"
#include "net/verbs/queue_pair_ways.h"
#include "net/verbs/rails.h"
#include "net/verbs/wire_shared.h"

namespace weft::net {

class LaneSetup {
 public:
  // `leads`: data goes from here. `link`: the token of this side's hello.
  LaneSetup(VerbsShared& shared, bool leads, int peer, uint64_t link)
      : shared_(shared), leads_(leads), peer_(peer), link_(link) {}

  // `ports`: source ports of a file; empty: the plan's, else drawn ones. kInvalidArgument: RoCE has
  // no such port.
  absl::Status SetPorts(absl::Span<const uint16_t> ports);
  bool has_ports() const { return !ports_.empty(); }
  bool is_planned() const { return static_cast<bool>(ways_); }
  // Whether the reports about paths now give the lane's queue pair another way; then its successor
  // takes that one.
  bool FollowsPaths(const Lane& lane, int index);

  // The rail of the same number as the other side's, `preferred` (-1: it has said none), as rails
  // are mostly networks of their own; the next one after a failure; none that is known to be out of
  // order, where there is another.
  int RailFor(int lane, uint32_t epoch, int preferred) const;
  bool IsUp(int rail) const;

  // A queue pair of `rail` for `lane`, which is number `index` of `lanes`; its completions go to
  // `user`. The lane's rate is what the others of that rail have, else the port's.
  absl::Status Make(Lane& lane, int index, uint32_t epoch, int rail, absl::Span<const Lane> lanes,
                    QueuePairUser* user);
  // With the other side's queue pair, `remote`, of so many `remote_rails`; then OnConnected().
  // `wanted`: lanes that the link keeps connected. kInvalidArgument: `remote` makes no sense.
  absl::Status Connect(Lane& lane, int index, int wanted, const Control& remote, int remote_rails);

 private:
  double RateLike(int rail, absl::Span<const Lane> lanes) const;

  VerbsShared& shared_;
  const bool leads_;
  const int peer_;
  const uint64_t link_;
  std::vector<uint16_t> ports_;
  QueuePairWays ways_;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_LANE_SETUP_H_
