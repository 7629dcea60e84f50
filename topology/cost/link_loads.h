// What each link of the fabric is expected to carry, exactly: every flow spread evenly over its
// equal-cost paths, switch by switch (Routes). The mean over hashes, without collisions; what
// cost_model.h says of cuts is the fullest of their links.
//
// Cost: a breadth-first search for each set of leaves that a NIC hangs on, so 12,288 GPUs behind
// 192 leaves take a fraction of a second.
#ifndef WEFT_TOPOLOGY_COST_LINK_LOADS_H_
#define WEFT_TOPOLOGY_COST_LINK_LOADS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "topology/cost/cost_model.h"
#include "topology/fabric/routes.h"

namespace weft::topology {

// Bytes of each link, [link], for one time of one kind of traffic. `routes` must be of the model's
// fabric and up to date. NotFound: two hosts of the job cannot reach each other.
absl::StatusOr<std::vector<double>> LinkBytes(const Routes& routes, const CostModel& model,
                                              const Placement& placement, size_t traffic);

// The same of a whole step: every kind of traffic as often as it happens.
absl::StatusOr<std::vector<double>> StepLinkBytes(const Routes& routes, const CostModel& model,
                                                  const Placement& placement);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_LINK_LOADS_H_
