// From a plan of the path planner to what transports read (topology/plan/connection_plan.h).
#ifndef WEFT_TOPOLOGY_PATHS_PLAN_TEXT_H_
#define WEFT_TOPOLOGY_PATHS_PLAN_TEXT_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/ecmp/fabric_hashes.h"
#include "topology/paths/path_planner.h"
#include "topology/plan/connection_plan.h"

namespace weft::topology {

struct PlanTextOptions {
  std::vector<NodeId> hosts;  // of the job: those that the plan names
  std::string fingerprint;
  int ranks = 0;                    // of the job
  size_t spares = 8;                // ways kept for each pair of first switches, at most; over as
                                    // many links of the first as there are
  size_t spare_pairs_max = 16'384;  // of switches; where there are more, there are no spare ways
  std::map<std::string, std::string> routers;  // switches, by what probes call them
};

// `ranks`: source and target of each flow of the plan.
ConnectionPlanText MakePlanText(const Routes& routes, const FabricHashes& hashes,
                                const PathPlan& plan, absl::Span<const std::pair<int, int>> ranks,
                                const PlanTextOptions& options);

// Adds the ways that flows take while one switch that is no host's first carries nothing, for each
// of them that any flow passes: planned over what is left, as few flows as may be moving. `flows`
// and `options` are those of `plan`; no switch whose loss leaves a flow without a path. Where there
// are more than `switches_max` such switches, nothing is added: gives how many there are.
absl::StatusOr<int> AddDetours(const Routes& routes, const FabricHashes& hashes,
                               const PathPlannerOptions& options,
                               absl::Span<const TrafficFlow> flows, const PathPlan& plan,
                               int switches_max, ConnectionPlanText& text);

// Seconds that each link is busy with all of the plan, [link].
std::vector<double> LinkSeconds(const Fabric& fabric, absl::Span<const PlannedPath> paths);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_PLAN_TEXT_H_
