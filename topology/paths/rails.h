// Which NIC a flow uses, where the caller leaves it open.
#ifndef WEFT_TOPOLOGY_PATHS_RAILS_H_
#define WEFT_TOPOLOGY_PATHS_RAILS_H_

#include <vector>

#include "absl/status/status.h"
#include "topology/paths/path_planner.h"

namespace weft::topology {

// Sets the NICs that are kAnyNic, the heaviest flow first, so that the busier of its two NICs is
// the least busy; among equals the lowest number. Where both ends are open it is the same number at
// both, which keeps to one rail of a rail-optimised fabric. Phases are balanced each for itself.
// InvalidArgument: a host without a NIC that both could use.
absl::Status ChooseRails(const Fabric& fabric, std::vector<TrafficFlow>& flows);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_RAILS_H_
