// Whether a workload's transfers can reach their targets at all.
#ifndef WEFT_TOPOLOGY_SIM_REACHABLE_H_
#define WEFT_TOPOLOGY_SIM_REACHABLE_H_

#include "absl/status/status.h"
#include "topology/fabric/routes.h"
#include "topology/sim/simulation.h"
#include "topology/sim/workload.h"

namespace weft::topology {

// NotFound: the first transfer (or edge of a ring) whose hosts have no way between them, by name,
// and how many more there are. Always OK where one of `faults` brings a link up: there may be a way
// later.
absl::Status CheckReachable(const Workload& workload, const Routes& routes,
                            absl::Span<const LinkFault> faults);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_REACHABLE_H_
