// The group that weft-plan collective is asked about: how many ranks, where they are, what costs.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_GROUP_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_GROUP_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "collectives/group_place.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/forced.h"
#include "topology/fabric/fabric.h"
#include "topology/job/collective_kind.h"
#include "topology/job/mesh.h"

namespace weft::plan {

inline constexpr int kRanksMax = 1 << 20;

struct CollectiveGroup {
  collectives::CollectiveKind kind = collectives::CollectiveKind::kBarrier;
  int ranks = 1, hosts = 1, root = 0;
  int at_once = 1;                 // groups like this one on its busiest host
  int others_at_once = 0;          // groups along other axes that share its NICs
  topology::AxisSet axes_at_once;  // collective.axes_at_once
  std::string name, fabric;        // the fabric's name; empty: none
  std::shared_ptr<const collectives::GroupPlace> place;
  collectives::planner::CostTable table;
  collectives::planner::Forced forced;
  size_t element = 4;
  bool sums_are_wide = false;  // elements are added up in a wider type (reduce.h)
  // With a fabric: it, the hosts of the group, and what the table had for `across` without it.
  std::optional<topology::Fabric> network;
  std::vector<NodeId> nodes;
  double software_latency = 0;

  // "16 ranks on 2 hosts of megascale, 2 cores each with a cache of 1 MiB; costs: defaults".
  std::string Describe() const;
};

// The hosts of the fabric `name`, a place each; sets what the group has of the fabric, and adds the
// fabric's delays to its costs. `hosts`: a number, a hostlist, or empty for all.
absl::StatusOr<std::vector<collectives::RankPlace>> PlacesOnFabric(const std::string& name,
                                                                   const std::string& hosts,
                                                                   CollectiveGroup& group);
// Hosts of no fabric: `hosts` is a number, or empty for one.
absl::StatusOr<std::vector<collectives::RankPlace>> PlacesByNumber(const std::string& hosts);

// Sets ranks, hosts and place. `ranks_per_host` 0: a rank a NIC, or one where there are none.
absl::Status Spread(absl::Span<const collectives::RankPlace> hosts, int ranks_per_host,
                    CollectiveGroup& group);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_GROUP_H_
