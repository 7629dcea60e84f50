// Rank order: which host takes which slot of a job, so that the step's predicted communication is
// least.
//
//   1. Slots are a grid of the axes, hosts a tree of switches. The grid is walked in tiles
//      (slot_grid.h), the hosts in the order of the tree, packed so that tiles do not straddle
//      switches (PackHosts): every tile's slots come to lie under one switch. All walks are
//      evaluated where they are few; else the best is climbed to from the plain ones.
//   2. Local search from there by exchanges of hosts, aimed at the fullest cut (search.h).
//   3. Where there are few arrangements, up to kSearchAll, all of them instead.
//
// Hosts beyond those that the job needs are left out where they serve it least. Deterministic by
// seed: limits are counts, not times. 12,288 GPUs take seconds (docs/planning.md).
#ifndef WEFT_TOPOLOGY_ORDER_ORDER_PLANNER_H_
#define WEFT_TOPOLOGY_ORDER_ORDER_PLANNER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cost/cost_model.h"
#include "topology/order/rank_order.h"

namespace weft::topology {

inline constexpr int64_t kSearchAll = 60'000;

struct OrderOptions {
  uint64_t seed = 1;
  Balance balance = Balance::kHashed;
  // May choose which ranks share a host; else blocks of consecutive ranks do, as launchers place
  // them.
  bool regroup = false;
  // Work: flows laid on the fabric, for evaluating walks and for local search each.
  int64_t effort = 30'000'000;
  // Called now and then with a stage and its share done; false: stop with the best so far.
  std::function<bool(const std::string& stage, double share)> progress;
};

struct PlannedOrder {
  RankOrder order;
  StepCost cost;
  StepCost bound;   // see bound.h
  std::string how;  // "tiles of data 8 x pipeline 8, ...; then 12 exchanges"
  int64_t evaluated = 0;
  // The same, before local search: what the walk alone gives.
  absl::Duration walked;
};

// Errors: those of Job::Validate and CostModel::Create.
absl::StatusOr<PlannedOrder> PlanOrder(const CutTree& tree, const Job& job,
                                       const std::vector<NodeId>& hosts,
                                       const OrderOptions& options);

// GPUs of a host: the job's, or as many as the hosts have NICs.
int GpusOf(const Job& job, const Fabric& fabric, const std::vector<NodeId>& hosts);
// Consecutive ranks share a host. InvalidArgument: the layout does not fill hosts of as many GPUs.
absl::StatusOr<RankBlocks> DefaultBlocks(const Job& job, const Fabric& fabric,
                                         const std::vector<NodeId>& hosts);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_ORDER_PLANNER_H_
