// What no order of ranks on these hosts can beat, under the cost model: for each kind of traffic
//   latency    every message between hosts as short as under one leaf
//   transfer   every NIC carries what its slot sends; and of a switch group with k hosts of the
//              job, k no multiple of a group's m slots, at least one group must cross its cut: with
//              one flow for rings, trees and pipelines, and with r (m - r) pairs for all-to-all,
//              r = k mod m (the sum of x (m - x) over the groups is concave, so least where all but
//              one group are whole)
// and the sum over the kinds, each at its best at the same time, which may be impossible.
#ifndef WEFT_TOPOLOGY_ORDER_BOUND_H_
#define WEFT_TOPOLOGY_ORDER_BOUND_H_

#include <cstdint>
#include <vector>

#include "topology/cost/cost_model.h"

namespace weft::topology {

// What every order puts at least on the fuller direction of one cut, by the same argument; of other
// cuts it says nothing, so that one order need not reach all of them.
struct CutBound {
  int group = -1;  // of the tree
  int64_t flows = 0;
  Bytes bytes;
  absl::Duration time;  // of the fullest cable
};
// Bounds of all cuts above the NICs, in order of the tree's groups.
std::vector<CutBound> CutBounds(const CostModel& model, size_t traffic);

// Only once, exposed, latency and transfer are filled in.
StepCost LowerBound(const CostModel& model);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_BOUND_H_
