// Finding the placement of least score: all of them where they are few, else local search.
#ifndef WEFT_TOPOLOGY_ORDER_SEARCH_H_
#define WEFT_TOPOLOGY_ORDER_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/random.h"
#include "topology/cost/cost_model.h"
#include "topology/cost/placement_state.h"

namespace weft::topology {

// In how many ways `hosts` of these classes (of level 0: interchangeable within) can be laid on as
// many positions; more than `most` counts as most + 1.
int64_t CountArrangements(const std::vector<int32_t>& class_of, int64_t most);

// The best of all arrangements. Costs CountArrangements evaluations.
Placement SearchAll(const CostModel& model, const std::vector<int32_t>& class_of);

struct SearchLimits {
  int64_t updates = 0;  // flows moved, at most about so many
  // Called now and then with the share of the limit that is used; false: stop.
  std::function<bool(double)> progress;
};

// Hill climbing by exchanges of two positions, from `start`: all pairs, with perturbations when
// stuck, where positions are few; else exchanges that take flows off the fullest cut, and random
// ones. Never gives what scores worse than `start`. Deterministic by `random`.
Placement SearchLocally(const CostModel& model, const std::vector<int32_t>& class_of,
                        const Placement& start, Random& random, const SearchLimits& limits);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_SEARCH_H_
