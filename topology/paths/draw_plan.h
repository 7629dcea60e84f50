// A picture of a plan: what each cable between a first switch and a spine carries, up and down,
// before and after planning, as two heat maps of leaves by spines; and the job's flows over the
// fabric. SVG.
#ifndef WEFT_TOPOLOGY_PATHS_DRAW_PLAN_H_
#define WEFT_TOPOLOGY_PATHS_DRAW_PLAN_H_

#include <string>

#include "absl/types/span.h"
#include "topology/paths/path_planner.h"

namespace weft::topology {

struct DrawPlanOptions {
  std::string title;
  size_t flows_most = 512;  // drawn as lines; of more, the first
};

// `before`, `after`: the same flows. Fabrics with more than 64 first switches or spines have the
// first 64 of either.
std::string DrawPlan(const Fabric& fabric, absl::Span<const PlannedPath> before,
                     absl::Span<const PlannedPath> after, const DrawPlanOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_DRAW_PLAN_H_
