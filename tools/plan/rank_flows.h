// The flows between the ranks of an order, as the path planner plans for them, and what the plan
// makes of each kind of traffic, which is a phase of its own.
#ifndef WEFT_TOOLS_PLAN_RANK_FLOWS_H_
#define WEFT_TOOLS_PLAN_RANK_FLOWS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tools/plan/input.h"
#include "topology/paths/path_planner.h"

namespace weft::plan {

// Each pair of ranks and rail once: in the phase of the traffic that it sends most of; where all
// traffic runs at once, with the bytes of all of it.
struct RankFlows {
  std::vector<topology::TrafficFlow> flows;  // `phase`: the kind, of Job::traffic
  std::vector<std::pair<int, int>> ranks;    // [flow] source, target
};

struct PlannedFlows {
  RankFlows flows;
  topology::PathPlan plan;
};

// `at_once`: all kinds run together, in the phase of the first. Errors are the planner's.
absl::StatusOr<PlannedFlows> PlanFlows(const topology::PathPlanner& planner, const Placed& placed,
                                       absl::Span<const size_t> kinds, bool at_once);

// Seconds that the plan takes for a kind of traffic: those of its fullest link.
struct TrafficRow {
  std::string name;
  int flows = 0, subflows = 1;
  double before = 0, after = 0, mean = 0, bound = 0;
  std::string bound_reason;
};
std::vector<TrafficRow> TrafficRows(const Input& input, const PlannedFlows& planned, bool at_once);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_RANK_FLOWS_H_
