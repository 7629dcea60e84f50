// From probes between hosts (echo_prober.h, udp_prober.h) to a fabric.
//
// How it is told which routers are one: every probe names the routers that it passed, each by some
// address of it. Recorded ones are of the interface by which the probe left, answers to a time to
// live that ran out mostly of the one by which the answer leaves. So one router has many names:
//   1. names that one probe gives at one position are of one router;
//   2. an interface between two switches leads to one router: whatever follows it is one. Believed
//      only where, between two leaves, such interfaces and what follows them are as many, so that
//      names that a switch has for all its interfaces do not make all its neighbours one.
// Hosts with one router between them are under one leaf.
//
// What probes do not settle is an error that says what is missing; nothing is guessed.
#ifndef WEFT_TOPOLOGY_DISCOVERY_INFER_H_
#define WEFT_TOPOLOGY_DISCOVERY_INFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct SeenHost {
  std::string name;
  std::vector<IpAddress> addresses;  // [NIC]
  Bandwidth bandwidth;               // of a NIC
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

struct SeenFabric {
  std::vector<SeenHost> hosts;
  std::vector<SeenPair> pairs;
  std::vector<SeenFlow> flows;
};

struct InferOptions {
  Bandwidth switch_bandwidth;  // of cables between switches; 0: that of NICs
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

// FailedPrecondition: what the probes say is not enough, or contradicts itself; names the hosts.
absl::StatusOr<InferredFabric> InferFabric(const SeenFabric& seen, const InferOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_INFER_H_
