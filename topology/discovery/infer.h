// From probes between hosts (echo_prober.h, udp_prober.h) to a fabric.
//
// In this order: which NICs are under one leaf, and how far leaves are from each other (leaves.h):
// hosts with one router between them are under one leaf, and LLDP must agree, where it answers;
// which routers are one, and in which tier (switches.h); whether a path may be missing
// (path_checks.h).
//
// What probes do not settle is an error that says what is missing; nothing is guessed.
//
// Pure: no I/O, no clock.
#ifndef WEFT_TOPOLOGY_DISCOVERY_INFER_H_
#define WEFT_TOPOLOGY_DISCOVERY_INFER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "topology/discovery/seen_fabric.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct InferOptions {
  Bandwidth switch_bandwidth;  // of cables between switches; 0: what loads told, else that of NICs
  // The bandwidth of cables below a switch, by the switch's name in the fabric that is found or in
  // probes.
  std::map<std::string, Bandwidth> bandwidth_below;
  double missed_max =
      0.01;  // chance of a path that no probe took, of the least sure pair of leaves
};

struct InferredFabric {
  Fabric fabric;
  HashFile known;                  // addresses, and the names of routers
  std::vector<std::string> notes;  // what was seen and how sure it is, for people
  double missed = 0;               // as InferOptions::missed_max
  bool recorded = false;           // routers recorded routes
};

// Unavailable: switches told too little; load may tell more. FailedPrecondition: what was seen is
// not enough for another reason, or contradicts itself. Both name the hosts.
absl::StatusOr<InferredFabric> InferFabric(const SeenFabric& seen, const InferOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_INFER_H_
