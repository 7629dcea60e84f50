// What the tests of the flow level share.
#ifndef WEFT_TESTS_TOPOLOGY_SIM_FLOW_FLOWS_H_
#define WEFT_TESTS_TOPOLOGY_SIM_FLOW_FLOWS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"

namespace weft::topology {

// Leaves of `hosts` hosts, all links 400 Gbit/s and 1 us, as in the htsim cases.
inline Fabric LeafSpine(int leaves, int hosts, int spines, int nics = 1) {
  ClosSpec spec;
  spec.groups = leaves;
  spec.hosts_per_group = hosts;
  spec.spines = spines;
  spec.nics = nics;
  spec.rail_leaves = nics > 1;
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
  absl::StatusOr<Fabric> fabric = BuildClos(spec);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

inline Endpoint Host(const Fabric& fabric, size_t i, int nic = 0) {
  return {fabric.hosts()[i], nic};
}

inline SimulationResult Simulate(const Fabric& fabric, const Workload& workload,
                                 const FlowOptions& options = {}) {
  absl::StatusOr<SimulationResult> result = SimulateFlows(fabric, workload, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

inline double Microseconds(absl::Duration duration) { return absl::ToDoubleMicroseconds(duration); }

inline constexpr double kRate = 50e9;  // bytes a second of 400 Gbit/s
// On the wire, of payload in packets of 4096 with 64 of header.
inline double Wire(int64_t bytes) {
  const int64_t packets = (bytes + 4095) / 4096;
  return static_cast<double>(bytes + packets * 64);
}

}  // namespace weft::topology

#endif  // WEFT_TESTS_TOPOLOGY_SIM_FLOW_FLOWS_H_
