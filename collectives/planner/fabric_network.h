// What a fabric says about the network between the hosts of a group: rates of NICs, delays, and
// the switch of each host. Pure functions of the fabric and the hosts.
#ifndef WEFT_COLLECTIVES_PLANNER_FABRIC_NETWORK_H_
#define WEFT_COLLECTIVES_PLANNER_FABRIC_NETWORK_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/units.h"
#include "collectives/group_place.h"
#include "topology/fabric/fabric.h"

namespace weft::collectives::planner {

// Where the ranks of a host stand; the name of the host, and no NUMA node. FailedPrecondition: none
// of its links is up; InvalidArgument: it is a switch.
absl::StatusOr<RankPlace> PlaceOnFabric(const topology::Fabric& fabric, NodeId host);

struct FabricNetwork {
  int nics = 0;          // of the host with the fewest
  Bandwidth nic;         // of the slowest NIC, all its ports that are up
  Bandwidth host;        // of the host whose NICs are slowest together
  absl::Duration delay;  // one way between the first host and the farthest: cables, switches
  std::vector<RankPlace> places;  // by host
};

// `hosts` are different hosts of the fabric. FailedPrecondition names a host without a link that is
// up, or two that do not reach each other.
absl::StatusOr<FabricNetwork> NetworkOf(const topology::Fabric& fabric,
                                        absl::Span<const NodeId> hosts);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_FABRIC_NETWORK_H_
