// What hosts saw of the fabric between them: distances, the routers that flows passed, LLDP, and
// what arrived under load; and which NICs are under one leaf by that. Input of infer.h.
//
// Plain data and pure functions.
#ifndef WEFT_TOPOLOGY_DISCOVERY_SEEN_FABRIC_H_
#define WEFT_TOPOLOGY_DISCOVERY_SEEN_FABRIC_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/units.h"
#include "topology/ecmp/five_tuple.h"

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

  const std::string& NameOf(SeenNic nic) const { return hosts[static_cast<size_t>(nic.host)].name; }
};

// Number of the leaf of each NIC: NICs with at most one router between them are under one leaf, as
// are those whose LLDP names one switch. No router between two NICs tells nothing where LLDP names
// the switches of both: switches may count no hops.
std::map<SeenNic, int> LeavesOf(const SeenFabric& seen);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_SEEN_FABRIC_H_
