// A plan directory (topology/plan/connection_plan.h, the setting `plan`) as one transport uses it:
// its own addresses and ranks put in, its source ports looked up.
#ifndef WEFT_NET_TCP_PLANNED_WAYS_H_
#define WEFT_NET_TCP_PLANNED_WAYS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/settings.h"
#include "net/tcp/socket.h"
#include "topology/plan/connection_plan.h"
#include "topology/plan/path_watch.h"

namespace weft::net {

topology::IpAddress ToIpAddress(const SocketAddress& address);
// What switches see of packets from `source` to `target`, whose ports are there.
topology::FiveTuple MakeTuple(const SocketAddress& source, const SocketAddress& target,
                              uint8_t protocol);

// Null inside: no plan. Copyable; thread-safe as ConnectionPlan.
class PlannedWays {
 public:
  PlannedWays() = default;
  // Reads what the setting `plan` names, if anything. `self` and `world_size` are the job's, or not
  // known: `world_size` is above kJobRanksMost then, as in NCCL's plugin, and connections are
  // looked up by addresses. Errors name the file that cannot be used.
  static constexpr int kJobRanksMost = 1 << 30;
  static absl::StatusOr<PlannedWays> Open(const Settings& settings, Rank self, int world_size);

  explicit operator bool() const { return plan_ != nullptr; }
  topology::ConnectionPlan* operator->() const { return plan_.get(); }

  // FailedPrecondition: the plan is for other hosts than the one with this address, for another
  // number of ranks, or has this rank elsewhere.
  absl::Status Check(const topology::IpAddress& own) const;
  // From now on the next hops of the switch above this address are watched (the setting
  // plan.watch), as long as a copy of this lives.
  void Watch(const topology::IpAddress& own);

  // As ConnectionPlan's. `peer`: its rank in this transport.
  absl::StatusOr<std::vector<topology::PathWay>> Take(const topology::IpAddress& own,
                                                      const topology::IpAddress& target, Rank peer,
                                                      int count) const;
  absl::StatusOr<std::vector<topology::PathWay>> Answer(const topology::IpAddress& own,
                                                        const topology::IpAddress& target,
                                                        int count) const;
  absl::StatusOr<topology::PathWay> Instead(const topology::IpAddress& own,
                                            const topology::IpAddress& target,
                                            const topology::PathWay& failed, absl::Time now) const;
  absl::StatusOr<topology::PathWay> Another(const topology::IpAddress& own,
                                            const topology::IpAddress& target,
                                            absl::Span<const topology::PathWay> left) const;
  void Fails(const topology::IpAddress& own, const topology::IpAddress& target,
             const topology::PathWay& way, absl::Time now) const;
  void Answers(const topology::IpAddress& own, const topology::IpAddress& target,
               const topology::PathWay& way) const;

 private:
  std::shared_ptr<topology::ConnectionPlan> plan_;
  absl::Duration watch_every_;
  std::vector<std::shared_ptr<topology::PathWatcher>> watchers_;
  Rank self_;
  int world_size_ = 0;
  bool has_ranks_ = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_PLANNED_WAYS_H_
