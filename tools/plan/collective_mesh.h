// weft-plan collective --mesh: what the groups along each axis of a job take, when all of them run
// at once and share their hosts' cores, memory and NICs.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_MESH_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_MESH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/plan/collective_group.h"

namespace weft::plan {

// Prints a table an axis of the layout `text`, for groups of `job`, whose ranks the `hosts` have in
// their order; and writes it as JSON where `json` names a file, or "-": prints that alone.
absl::Status PlanMesh(const std::string& text, const CollectiveGroup& job,
                      absl::Span<const collectives::RankPlace> hosts,
                      absl::Span<const int64_t> sizes, const std::string& json);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_MESH_H_
