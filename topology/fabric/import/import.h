// Fabrics from what other programs write. Each names the error's file, line and reason.
#ifndef WEFT_TOPOLOGY_FABRIC_IMPORT_IMPORT_H_
#define WEFT_TOPOLOGY_FABRIC_IMPORT_IMPORT_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

// Numbers that a format does not state.
struct ImportDefaults {
  Bandwidth bandwidth = Bandwidth::GigabitsPerSecond(400);  // of cables
  absl::Duration delay = absl::Nanoseconds(500);            // of cables, one way
  Bytes buffer;                                             // of the queues of cables
  absl::Duration latency;                                   // of switches
  // Formats that say only which switch is below which (Slurm's, hosts -> switch): bandwidth of a
  // switch's cables down over its one cable up; that of a layer of switches, drawn as one.
  double oversubscription = 1;
  // LLDP only: patterns with * and ?, separated by commas. Which nodes are hosts; empty: those that
  // announce neither bridging nor routing. Which are left out: "mgmt*".
  std::string hosts, ignore;
};

// htsim's topology files: Nodes, Tiers, Podsize, then Tier 0 to 2. Host i of a traffic file is node
// i; leaf<i>, spine<i> and core<i> are htsim's lower-pod, upper-pod and core switch i, cabled
// alike.
absl::StatusOr<Fabric> ImportHtsim(absl::string_view text, const std::string& name,
                                   const ImportDefaults& defaults);

// Slurm's topology.conf (topology/tree): lines SwitchName=s0 Nodes=n[0-3], SwitchName=s1
// Switches=s[0-3]; LinkSpeed= is not used by Slurm, nor here.
absl::StatusOr<Fabric> ImportSlurm(absl::string_view text, const std::string& name,
                                   const ImportDefaults& defaults);

// Lines "host switch", "host -> switch" or "host,switch", lists allowed ("h[0-15] -> leaf0"), also
// of switches below switches. A host's second switch is that of its second NIC.
absl::StatusOr<Fabric> ImportHostList(absl::string_view text, const std::string& name,
                                      const ImportDefaults& defaults);

// `lldpctl -f json` of many machines: either one JSON object {"<machine>": <its lldpctl output>},
// or the outputs one after the other, each preceded by a line "# <machine>". Also json0.
absl::StatusOr<Fabric> ImportLldp(absl::string_view text, const std::string& name,
                                  const ImportDefaults& defaults);

// Reads a machine's `lldpctl -f json`: the switch at the other end of each interface that has one;
// the first, where several are seen. Errors name the machine.
absl::StatusOr<std::map<std::string, std::string>> LldpSwitches(absl::string_view text,
                                                                const std::string& machine);

// `ibnetdiscover` of an InfiniBand subnet: switches, adapters, widths and speeds of their links.
absl::StatusOr<Fabric> ImportIbnetdiscover(absl::string_view text, const std::string& name,
                                           const ImportDefaults& defaults);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_IMPORT_IMPORT_H_
