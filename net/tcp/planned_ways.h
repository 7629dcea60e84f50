// A plan directory (topology/plan/connection_plan.h, the setting `plan`) as one transport uses it:
// its own addresses and ranks put in, its source ports looked up.
#ifndef WEFT_NET_TCP_PLANNED_WAYS_H_
#define WEFT_NET_TCP_PLANNED_WAYS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/settings.h"
#include "net/tcp/socket.h"
#include "topology/plan/connection_plan.h"

namespace weft::net {

topology::IpAddress ToIpAddress(const SocketAddress& address);
// What switches see of packets from `source` to `target`, whose ports are there.
topology::FiveTuple MakeTuple(const SocketAddress& source, const SocketAddress& target,
                              uint8_t protocol);

// Null inside: no plan. Copyable; thread-safe as ConnectionPlan.
class PlannedWays {
 public:
  PlannedWays() = default;
  // Of the setting `plan`; none where that is empty. `world_size`: where it is the plan's, ranks
  // are those that were planned for. Errors name the file that cannot be used.
  static absl::StatusOr<PlannedWays> Open(const Settings& settings, Rank self, int world_size);

  explicit operator bool() const { return plan_ != nullptr; }
  const topology::ConnectionPlan* operator->() const { return plan_.get(); }

  // As ConnectionPlan's. `peer`: its rank in this transport.
  absl::StatusOr<std::vector<topology::PathWay>> Take(const topology::IpAddress& own,
                                                      const topology::IpAddress& target, Rank peer,
                                                      int count) const;
  absl::StatusOr<std::vector<topology::PathWay>> Answer(const topology::IpAddress& own,
                                                        const topology::IpAddress& target,
                                                        int count) const;
  absl::StatusOr<topology::PathWay> Instead(const topology::IpAddress& own,
                                            const topology::IpAddress& target,
                                            const topology::PathWay& failed) const;

 private:
  std::shared_ptr<topology::ConnectionPlan> plan_;
  Rank self_;
  bool has_ranks_ = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_PLANNED_WAYS_H_
