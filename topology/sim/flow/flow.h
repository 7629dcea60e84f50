// The flow level: no packets, but rates. At every moment the transfers under way share the links
// max-min fairly; when one comes, goes, or a link changes, the rates that this touches are computed
// anew, and only those.
//
// When a transfer ends. Its bytes go out with their headers (`header` for every `payload`) at the
// rates that it got; the last of them arrives a path's latency later: propagation, the switches'
// own latency, and store-and-forward of a packet on every link but the slowest. On an idle path
// this is what the packet level finds, to the packet. A transfer within one host takes no time.
//
// Load balancing. kEcmp: one path, by the hash that the packet level uses too (path_choice.h).
// kSpray and kAdaptive: the bytes part equally at every node over all links that are equally near.
//
// Rings (OperationKind::kRing) of large workloads are one variable each: all members advance at the
// rate of the slowest, which is what the steps, written out, come to (docs/simulator-flow.md says
// why, and where it is only an approximation).
//
// What is not here: queues, loss, congestion control that does not reach its fair share at once.
//
// Time O(events x rates touched); memory some 200 bytes an operation and 50 a link of a path.
// Bertsekas, Gallager, "Data Networks", 2nd edition, section 6.5.2: max-min fairness, progressive
// filling, and the bottleneck condition that the solver checks.
#ifndef WEFT_TOPOLOGY_SIM_FLOW_FLOW_H_
#define WEFT_TOPOLOGY_SIM_FLOW_FLOW_H_

#include "absl/status/statusor.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/simulation.h"
#include "topology/sim/workload.h"

namespace weft::topology {

// What the level did, for those who measure it.
struct FlowStatistics {
  int64_t flows = 0;   // started: transfers, lanes of wide ones and of rings, and again if moved
  int64_t solves = 0;  // times at which rates were computed
  int64_t rates = 0;   // computed, over all solves and rounds
};

struct FlowOptions : SimulationOptions {
  // false: every rate is computed anew at every event; the reference for tests.
  bool incremental = true;
  // What a target sends back for every full packet. A link then gives data the share that is left
  // when its reverse is as busy as itself: right for hosts in collectives, 64 / 4160 too little
  // where data goes one way. With one path a flow, links between switches give all: one that is
  // full, as flows collide on it, has the acknowledgements of others, which did not collide.
  // 0: acknowledgements take nothing.
  Bytes ack;
  // A workload with rings of at most that many transfers is written out (Expand) and is exact then;
  // in a larger one rings are one variable each.
  int64_t exact_rings = 1'000'000;
  // With more different paths than that under way at once, rates may be late: by this share of the
  // time that what came or went takes. A hashed mesh of 1,024 changes a hundred thousand times, and
  // each time a million rates. 0: never late.
  int64_t exact_paths = 15'000;
  double late = 0.005;
  // false: every link by itself, also where spraying uses many alike; the reference for tests.
  bool merge_links = true;
  FlowStatistics* statistics = nullptr;  // written at the end
};

// Threads: none; several calls may run at once. InvalidArgument or NotFound: the workload does not
// fit the fabric (Validate), or an option is out of range. Cancelled: `progress` said stop.
// NotFound also names who cannot reach whom from the start, if no fault brings a link up
// (CheckReachable). Transfers that lose their way later stay unfinished, like those beyond `limit`.
absl::StatusOr<SimulationResult> SimulateFlows(const Fabric& fabric, const Workload& workload,
                                               const FlowOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_FLOW_FLOW_H_
