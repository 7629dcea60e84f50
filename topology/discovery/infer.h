// From probes between hosts (echo_prober.h, udp_prober.h) to a fabric.
//
// How it is told which routers are one: every probe names the routers that it passed, each by some
// address of it. Recorded ones are of the interface by which the probe left, answers to a time to
// live that ran out mostly of the one by which the answer leaves. So one router has many names:
//   1. names that one probe gives at one position are of one router;
//   2. an interface between two switches leads to one router: whatever follows it is one. Believed
//      only where, between two leaves, such interfaces and what follows them are as many, so that
//      names that a switch has for all its interfaces do not make all its neighbours one.
// Hosts with one router between them are under one leaf. LLDP must agree, where it answers.
//
// What probes do not settle is an error that says what is missing; nothing is guessed.
#ifndef WEFT_TOPOLOGY_DISCOVERY_INFER_H_
#define WEFT_TOPOLOGY_DISCOVERY_INFER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct SeenHost {
  std::string name;
  std::vector<IpAddress> addresses;   // [NIC]
  std::vector<Bandwidth> bandwidths;  // [NIC]
};

// A NIC, by the numbers of its host and on it.
struct SeenNic {
  int host = 0, nic = 0;
  auto operator<=>(const SeenNic&) const = default;
};

// Between two NICs, one way.
struct SeenPair {
  SeenNic source, target;
  bool heard = false;
  int routers = 0;
  absl::Duration rtt;  // the shortest
};

// One flow, by the names of the routers that it passed: [position], both empty or `routers` long.
struct SeenFlow {
  SeenNic source, target;
  uint16_t source_port = 0, target_port = 0;
  std::vector<std::string> recorded;  // of the interfaces by which it left
  std::vector<std::string> answered;  // of what answered; "": nothing did
};

// How many flows were asked for their way, between two NICs.
struct AskedFlows {
  SeenNic source, target;
  int flows = 0;
};

struct SeenFabric {
  std::vector<SeenHost> hosts;
  std::vector<SeenPair> pairs;
  std::vector<SeenFlow> flows;
  std::vector<AskedFlows> asked;  // empty: as many as `flows`
  // What LLDP names at the other end of a NIC's cable.
  std::map<SeenNic, std::string> neighbors;
  // By the name that flows answer: paths that were told apart by load (load_paths.h), and what
  // arrived over each. Flows were then asked towards one leaf alone.
  std::map<std::string, Bandwidth> loaded;
  // Names of one router each, as loads have shown: a path of `loaded`, and a router's name.
  std::vector<std::pair<std::string, std::string>> same;
  std::string load_note;  // how sure that is, for people
};

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

// Number of the leaf of each NIC: NICs with at most one router between them are under one leaf, as
// are those whose LLDP names one switch. No router between two NICs tells nothing where LLDP names
// the switches of both: switches may count no hops.
std::map<SeenNic, int> LeavesOf(const SeenFabric& seen);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_INFER_H_
