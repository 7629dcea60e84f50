// The collectives as workloads of the simulator by name, a name for each kind:
//
//   all_reduce:algorithm=ring,bytes=64MiB      all_to_all:algorithm=bruck,bytes=1MiB,ranks=64
//
// What runs is the schedule of that algorithm (collectives/algorithms), as on the wire; `auto`
// takes the planner's choice. One shorthand: where every part of a ring is one message, the ring is
// the simulator's own (OperationKind::kRing), so that one over 12,288 endpoints fits into memory.
#ifndef WEFT_COLLECTIVES_SIMULATE_WORKLOADS_H_
#define WEFT_COLLECTIVES_SIMULATE_WORKLOADS_H_

#include "absl/types/span.h"
#include "topology/sim/workloads/registry.h"

namespace weft::collectives {

// For topology::MakeWorkload and WorkloadHelp.
absl::Span<const topology::WorkloadKind> CollectiveWorkloads();

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_SIMULATE_WORKLOADS_H_
