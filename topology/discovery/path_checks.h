// Whether flows told enough of the paths between leaves that none is missing, and how sure that is.
//
// Pure: no I/O, no clock.
#ifndef WEFT_TOPOLOGY_DISCOVERY_PATH_CHECKS_H_
#define WEFT_TOPOLOGY_DISCOVERY_PATH_CHECKS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "topology/discovery/leaves.h"
#include "topology/discovery/seen_fabric.h"
#include "topology/discovery/switches.h"

namespace weft::topology {

struct PathCounts {
  double missed = 0;      // chance of a path that no probe took, of the least sure pair of leaves
  int fewest = 1 << 30;   // flows that told their path, from one leaf to another
  size_t paths_most = 0;  // from one leaf to another
};

// Unavailable: switches told too little; load may tell more. FailedPrecondition: leaves without a
// switch between them, switches that hash no ports, or a chance of a missed path above
// `missed_max`. Both name leaves and hosts.
absl::StatusOr<PathCounts> CheckPaths(const SeenFabric& seen, const Leaves& leaves,
                                      const Switches& switches, double missed_max);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_PATH_CHECKS_H_
