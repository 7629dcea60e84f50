// What probes between the hosts of a job tell of a fabric that is known: which next hop each switch
// chose for a flow, and whether hashes predict it.
#ifndef WEFT_TOPOLOGY_DISCOVERY_PROBED_FLOWS_H_
#define WEFT_TOPOLOGY_DISCOVERY_PROBED_FLOWS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "topology/ecmp/fabric_hashes.h"
#include "topology/ecmp/five_tuple.h"
#include "topology/ecmp/linux_seed.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"

namespace weft::topology {

struct ProbedFlow {
  Endpoint source, target;
  FiveTuple tuple;
  std::vector<NodeId> switches;  // [position] that it passed; NodeId(): not known
};

// What one switch did.
struct SwitchChoices {
  std::vector<NodeId> members;  // its next hops, in the order of the fabric
  std::vector<HashObservation> seen;
};

// The choices of each switch, where both it and what followed it are known; at a switch with
// several groups of next hops, those of the first group that was met. None of a group with several
// cables to one switch: a probe tells the switch that a flow came to, and not over which cable.
std::map<NodeId, SwitchChoices> ChoicesOf(const Routes& routes, absl::Span<const ProbedFlow> flows);

// The switches that can be on a way between two of the NICs and choose there.
std::set<NodeId> SwitchesWithChoice(const Routes& routes, absl::Span<const Endpoint> nics);
// Switches that can choose among several cables to one other switch between these NICs, each with
// such an other switch.
std::map<NodeId, NodeId> SwitchesWithParallelCables(const Routes& routes,
                                                    absl::Span<const Endpoint> nics);

struct Tally {
  int64_t told = 0, right = 0;
  double share() const {
    return told > 0 ? static_cast<double>(right) / static_cast<double>(told) : 0;
  }
};

struct PredictionCheck {
  int64_t asked = 0;
  Tally flows;                    // those of which a choice is known; right: all that are known
  std::map<NodeId, Tally> nodes;  // choices, by switch

  // Switches of `learned` that no flow has checked, or of which fewer than a share `right_min` of
  // choices were predicted; where none is below and all flows together are, those with any wrong.
  std::set<NodeId> Failed(const std::set<NodeId>& learned, double right_min) const;
  // FailedPrecondition: nothing was told, a switch of `learned` has not been checked, or fewer than
  // a share `right_min` of flows or of a switch's choices were predicted; says which.
  absl::Status Verdict(const Fabric& fabric, const std::set<NodeId>& learned,
                       double right_min) const;
};

// Holds every known choice that a switch of `learned` made for `flows`, and that its hash knows,
// against `hashes`. A flow that tells of no such choice counts as asked, and as nothing else.
PredictionCheck CheckPredictions(const Routes& routes, const FabricHashes& hashes,
                                 const std::set<NodeId>& learned,
                                 absl::Span<const ProbedFlow> flows);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_PROBED_FLOWS_H_
