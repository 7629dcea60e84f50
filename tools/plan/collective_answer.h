// What weft-plan collective answers of a group and a size: the planner's choice, and all others.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_ANSWER_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_ANSWER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/planner/planner.h"
#include "tools/plan/collective_group.h"

namespace weft::plan {

// What is planned for one size.
struct CollectiveAnswer {
  int64_t bytes = 0;  // of the whole buffer: of the size asked for, those that elements take up
  collectives::planner::Plan choice;
  std::vector<collectives::planner::Plan> plans;  // cheapest first
  // With --simulate, by plan: ns, or nothing where there are too many steps.
  std::vector<std::optional<int64_t>> simulated;

  std::optional<int64_t> Simulated(const collectives::planner::Plan& plan) const;
  // Time of the choice over the best, both simulated; nothing where the choice is not.
  std::optional<double> Regret() const;
};

// A call with `bytes` of the whole buffer, as in weft-bw, less what elements and equal parts do not
// divide; parts of all-gather-v, ... are equal too.
collectives::CollectiveSpec SpecFor(const CollectiveGroup& group, int64_t bytes);
CollectiveAnswer Ask(const CollectiveGroup& group, int64_t bytes);

// nccl-tests' bus bandwidth of a collective that takes so long, GB/s.
double BusBandwidth(const CollectiveGroup& group, int64_t bytes, int64_t nanoseconds);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_ANSWER_H_
