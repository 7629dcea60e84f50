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

// Of the groups along the axes that `members` differ in, how many have ranks on the host of a
// member: of the host where that is most. 1: the members are not all ranks of a group of the mesh.
// `host`: of a rank of the job. Takes time in the order of the job's ranks.
int GroupsAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 absl::FunctionRef<int(Rank)> host);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_CONCURRENT_H_
