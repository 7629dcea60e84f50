// Collectives for the simulator: the very schedules that the executor runs and the verifier proves,
// as a Workload of the fabric.
//
// Every send becomes a transfer to the peer's endpoint, which starts once the sender has reached it
// and, as on the wire, once the receiver has posted the receive that meets it; short ones may be
// stated not to wait for that. As the executor does, a rank posts its sends to one peer in the
// order of the schedule, and its receives from one peer likewise, so that a message never leaves
// before those ahead of it. Steps that only touch memory (copy, reduce, scale) take no time, or
// `memory` if it is stated.
#ifndef WEFT_COLLECTIVES_SIMULATE_SIMULATE_H_
#define WEFT_COLLECTIVES_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/schedule.h"
#include "topology/sim/workload.h"

namespace weft::collectives {

struct SimulationPlacement {
  std::vector<topology::Endpoint> endpoints;  // by rank
  Bytes element{4};
  Bandwidth memory;  // of copies and reductions, by bytes written; 0: they take no time
  // The rate and the latency of a message between two ranks of a host, each message alone. A rate
  // of 0: the message takes its latency only; both 0: it takes no time.
  Bandwidth local;
  absl::Duration local_latency;
  absl::Duration send_latency;  // of a message to another host, before it leaves
  // Time of a core for a message to another host: half of it before it leaves, by the sender's, and
  // half when it has come, by the receiver's. A core does one after the other, copies as well.
  absl::Duration message;
  // By rank, of the workload; empty: messages take no core's time, and a rank copies all at once.
  std::vector<uint32_t> cores;
  Bytes eager;  // messages to other hosts up to this long leave before their receive is posted
};

// Appends a collective to `workload`, in a group of its own called `name`. No rank starts before
// `after`; the id returned ends when every rank has ended. InvalidArgument: ranks and endpoints
// differ in number, or sends and receives do not meet (naming rank and step).
absl::StatusOr<topology::OperationId> AddSchedules(topology::Workload& workload,
                                                   const std::vector<RankSchedule>& schedules,
                                                   const SimulationPlacement& placement,
                                                   absl::string_view name,
                                                   absl::Span<const topology::OperationId> after);

// One collective by an algorithm of algorithms/, likewise. `spec.size` ranks; `spec.rank` is
// ignored. InvalidArgument: the algorithm has no such kind.
absl::StatusOr<topology::OperationId> AddCollective(
    topology::Workload& workload, const Algorithm& algorithm, const CollectiveSpec& spec,
    const SimulationPlacement& placement, absl::string_view name,
    absl::Span<const topology::OperationId> after = {});

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_SIMULATE_SIMULATE_H_
