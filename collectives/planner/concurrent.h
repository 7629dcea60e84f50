// Which groups of a job run their collectives at the same time: those along the same axes of its
// mesh, as all ranks of a training job do the same thing at once. What one rank of a group answers
// every other does. Pure functions.
#ifndef WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_
#define WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "topology/job/mesh.h"

namespace weft::collectives::planner {

// How many groups share a host with the group of `members`, itself among them: groups of the mesh
// along the same axes, that is along those in which the members' places differ, on the member's
// host that has most of them. 1 where the members are not all ranks of a group of the mesh. `host`
// gives the host of a rank of the job. Takes time in the order of the job's ranks.
int GroupsAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 absl::FunctionRef<int(Rank)> host);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_
