// The path planner: source ports (for RoCE: flow labels, see ../ecmp/roce.h), numbers of queue
// pairs and rails for a set of flows, such that the most loaded link is as lightly loaded as can
// be. It knows what every switch hashes (FabricHashes), so that every path is exact.
//
// Load is time: bytes that a link carries in a phase over its bandwidth, in seconds. Flows of one
// phase are under way together; phases follow each other, and each is planned for itself. A flow of
// several queue pairs (subflows) puts an equal part of its bytes on each.
//
// How (docs/path-planning.md): 1. rails, heaviest flow first; 2. target paths by balanced edge
// colouring of the multigraph of leaves, and of pods, which is optimal for equal flows where the
// fabric is a regular Clos; 3. for each subflow a port whose hashes give that path; 4. local search
// with exchanges on what is left over: ports that were not found, irregular fabrics, failures.
//
// Deterministic. Errors: NotFound: no path between two endpoints (partition); FailedPrecondition:
// no port of the range gives any path; InvalidArgument: names the flow or option that is wrong.
#ifndef WEFT_TOPOLOGY_PATHS_PATH_PLANNER_H_
#define WEFT_TOPOLOGY_PATHS_PATH_PLANNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/units.h"
#include "topology/ecmp/fabric_hashes.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"

namespace weft::topology {

inline constexpr int kAnyNic = -1;

struct TrafficFlow {
  Endpoint source, target;  // nic kAnyNic: the planner chooses the rail, the same at both ends
                            // where both are open
  Bytes bytes;
  uint32_t phase = 0;
  uint16_t target_port = 0;  // 0: the options'
};

struct PathPlannerOptions {
  // Ports to choose from; RoCE's rule gives 0xC000..0xFFFF. Ports of one pair of endpoints, over
  // all phases, are different.
  uint16_t port_first = 0xC000;
  uint16_t port_last = 0xFFFF;
  uint16_t target_port = kRoceTargetPort;
  uint8_t protocol = kProtocolUdp;
  // Queue pairs of a flow: up to so many, as few as bring the worst link within `subflow_gain` of
  // the best number.
  int subflows_max = 1;
  double subflow_gain = 0.02;
  int probes_max = 65536;             // ports tried for one subflow in one attempt
  int64_t search_probes = 4'000'000;  // ports tried by the local search of one phase
};

// One subflow, as planned.
struct PlannedPath {
  uint32_t flow = 0;        // index into the flows
  uint32_t subflow = 0;     // of the flow's, from 0
  Endpoint source, target;  // with the rails chosen
  uint16_t source_port = 0;
  Bytes bytes;
  std::vector<LinkId> links;
  // No port is known to take any way, since a switch's hash is not known: port 0, without links.
  bool open = false;
};

// Loads of the links in one phase, in seconds of transmission.
struct PhaseLoad {
  double worst = 0;
  double mean = 0;  // over the links between switches that could carry some of the phase's flows
  LinkId worst_link;
};

struct PhaseReport {
  uint32_t phase = 0;
  int flows = 0;
  int subflows = 1;  // of each flow
  PhaseLoad before;  // one queue pair a flow, ports as drawn by chance (from the flow's number)
  PhaseLoad after;
  // No choice of paths gets below these: with subflows as planned, which cannot be cut further, and
  // with flows that could be split at will.
  double bound = 0;
  double bound_fluid = 0;
  std::string bound_reason;  // "8 subflows, 8 MiB in all, out of leaf2 over 4 links"
};

struct PathPlan {
  std::vector<PlannedPath> paths;  // by flow, then subflow
  std::vector<PhaseReport> phases;
  // The sum over the phases of the worst link's load: the time that the phases take at least.
  double seconds_before = 0, seconds_after = 0, seconds_bound = 0;
  int64_t probes = 0;  // ports whose path was computed
  int64_t moved = 0;   // Replan: subflows whose port is another than before
  int unmet = 0;       // subflows for which no port gave the path that was wanted
  int open = 0;        // subflows of which nothing is known; no load counts them
};

class PathPlanner {
 public:
  // All must outlive the planner. `routes` must be up to date with the fabric.
  PathPlanner(const Routes& routes, const FabricHashes& hashes,
              const PathPlannerOptions& options = {});

  absl::StatusOr<PathPlan> Plan(absl::Span<const TrafficFlow> flows) const;

  // After links failed or came back, and Routes::Update(): keeps rails, subflows and ports, and
  // gives another port only to subflows that overload a link. `flows` are those that `plan` is of.
  absl::StatusOr<PathPlan> Replan(absl::Span<const TrafficFlow> flows, const PathPlan& plan) const;

  // The loads of given ports, without planning: for comparison of plans. `paths` need flow,
  // source, target, source_port and bytes; links are filled in.
  absl::StatusOr<PathPlan> Evaluate(absl::Span<const TrafficFlow> flows,
                                    std::vector<PlannedPath> paths) const;

 private:
  const Routes& routes_;
  const FabricHashes& hashes_;
  PathPlannerOptions options_;
};

// A table for people: the phases with their loads before and after, the bounds and their reasons.
std::string Describe(const PathPlan& plan, const Fabric& fabric);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_PATH_PLANNER_H_
