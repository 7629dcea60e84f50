// Which groups of a job run their collectives at the same time: those along the same axes of its
// mesh, as all ranks of a training job do the same thing at once; and those along other axes that
// the setting collective.axes_at_once names. What one rank of a group answers every other does.
// Pure functions.
#ifndef WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_
#define WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "topology/job/mesh.h"

namespace weft::collectives::planner {

// The layout that a group suggests where the job has said none: the ranks cut into groups of its
// size and stride, one of which it is, as PyTorch's DeviceMesh cuts them. Nothing: it is no such
// group, or that of all ranks. The axes' names mean nothing.
std::optional<topology::Mesh> SuggestedLayout(absl::Span<const Rank> members, int ranks);

// How many groups share a host with the group of `members`, itself among them: groups of the mesh
// along the same axes, that is along those in which the members' places differ, on the member's
// host that has most of them. 1 where the members are not all ranks of a group of the mesh. A mesh
// of one axis says nothing of groups, and SuggestedLayout() takes its place. `host` gives the host
// of a rank of the job. Takes time in the order of the job's ranks.
int GroupsAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 absl::FunctionRef<int(Rank)> host);

// The axes that collective.axes_at_once names: "none", "all", or a list as "tp,data".
absl::StatusOr<topology::AxisSet> ParseAxesAtOnce(absl::string_view text);

// How many groups along other axes share the NICs of a host of `members`: the most of any of these
// hosts. Only groups with ranks on several hosts count. 0 where `at_once` lacks an axis of the
// group, or the members are not all ranks of a group.
int OthersAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 const topology::AxisSet& at_once, absl::FunctionRef<int(Rank)> host);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_
