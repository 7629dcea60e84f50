// What a transfer uses of the fabric: links with the share of the transfer that each carries, and
// the time that its last packet takes besides.
#ifndef WEFT_TOPOLOGY_SIM_FLOW_PATHS_H_
#define WEFT_TOPOLOGY_SIM_FLOW_PATHS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"
#include "topology/sim/flow/max_min.h"
#include "topology/sim/simulation.h"

namespace weft::topology {

struct FlowPath {
  bool reachable = false;
  std::vector<MaxMin::Use> uses;  // resource: the link's number; empty on one host
  double propagation = 0;         // seconds: of links and switches
  double per_byte = 0;            // seconds that storing and forwarding one byte of a packet takes

  double Latency(double packet) const { return propagation + packet * per_byte; }
};

class FlowPaths {
 public:
  // Refers to `routes`, and sees each Update() of it.
  // `hash`: as in SimulationOptions.
  FlowPaths(const Routes& routes, uint64_t seed, LoadBalance balance,
            const PathHash* hash = nullptr);

  // `path` is overwritten; its memory is used again.
  void Find(Endpoint source, Endpoint target, uint16_t source_port, FlowPath& path);

  // The union of the paths of a ring's edges, and the time besides in which `steps` packets, one
  // after the other had arrived, follow each other round it: the largest over where they begin.
  void FindRing(absl::Span<const Endpoint> members, int nic, uint16_t source_port, uint32_t steps,
                double packet, FlowPath& path);

 private:
  void FindOne(const PathHash::Flow& flow, FlowPath& path);
  void FindAll(Endpoint source, Endpoint target, FlowPath& path);

  const Routes& routes_;
  const Fabric& fabric_;
  uint64_t seed_;
  LoadBalance balance_;
  const PathHash* hash_;
  // Scratch.
  struct Visit {
    double share = 0;        // of the transfer, that comes through this node
    double propagation = 0;  // the longest way to here
    double per_byte = 0;
    double slowest = 0;  // of the links to here, by that way
  };
  std::vector<Visit> visits_;  // [node]
  std::vector<NodeId> level_, next_level_;
  std::vector<double> weights_;  // [link]
  std::vector<LinkId> used_;
  FlowPath edge_;
  std::vector<double> latencies_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_FLOW_PATHS_H_
