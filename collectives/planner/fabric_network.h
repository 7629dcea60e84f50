// What a fabric says about the network between the hosts of a group: rates of NICs, delays, and
// which hosts share a switch. Pure functions of the fabric and the hosts.
#ifndef WEFT_COLLECTIVES_PLANNER_FABRIC_NETWORK_H_
#define WEFT_COLLECTIVES_PLANNER_FABRIC_NETWORK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/planner/cost.h"
#include "topology/fabric/fabric.h"

namespace weft::collectives::planner {

struct FabricNetwork {
  int nics = 0;          // of the host with the fewest
  Bandwidth nic;         // of the slowest NIC, all its ports that are up
  Bandwidth host;        // of the host whose NICs are slowest together
  absl::Duration delay;  // one way between the two hosts farthest from the first: cables, switches
  absl::Duration nearest;             // between two hosts of one switch; 0: no two share one
  std::vector<std::string> switches;  // by host: the switch that its first NIC is connected to
  // Of the switch that offers least: its cables to other switches, over the hosts of the group that
  // it serves. Without such cables, or with one switch for all, the host's.
  Bandwidth beyond_switch;
};

// `hosts` are different hosts of the fabric. FailedPrecondition names a host without a link that is
// up, or two that do not reach each other.
absl::StatusOr<FabricNetwork> NetworkOf(const topology::Fabric& fabric,
                                        absl::Span<const NodeId> hosts);

// `table` with the network's rates in place of what was measured between hosts, where these are
// slower, and its delays on top.
CostTable OnNetwork(CostTable table, const FabricNetwork& network);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_FABRIC_NETWORK_H_
