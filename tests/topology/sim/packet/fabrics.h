// Small fabrics and workloads for the tests of the packet level.
#ifndef WEFT_TESTS_TOPOLOGY_SIM_PACKET_FABRICS_H_
#define WEFT_TESTS_TOPOLOGY_SIM_PACKET_FABRICS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/fabric/clos.h"
#include "topology/sim/packet/options.h"

namespace weft::topology {

constexpr int64_t kFrame = 4160;  // bytes of a full packet with its header

inline NodeId AddNode(FabricBuilder& builder, const std::string& name, NodeKind kind) {
  FabricNode node;
  node.name = name;
  node.kind = kind;
  node.tier = kind == NodeKind::kHost ? 0 : 1;
  auto id = builder.Add(node);
  EXPECT_TRUE(id.ok()) << id.status();
  return *id;
}

inline LinkId Connect(FabricBuilder& builder, NodeId a, NodeId b, double gigabits,
                      absl::Duration delay, int nic = -1) {
  FabricBuilder::Cable cable;
  cable.bandwidth = Bandwidth::GigabitsPerSecond(gigabits);
  cable.delay = delay;
  cable.nic = nic;
  auto link = builder.Connect(a, b, cable);
  EXPECT_TRUE(link.ok()) << link.status();
  return *link;
}

// Hosts h0, h1, ... on one switch; the cable of host i has speeds[i] Gb/s.
inline Fabric Star(const std::vector<double>& speeds, absl::Duration delay) {
  FabricBuilder builder;
  std::vector<NodeId> hosts;
  for (size_t i = 0; i < speeds.size(); ++i) {
    hosts.push_back(AddNode(builder, absl::StrCat("h", i), NodeKind::kHost));
  }
  NodeId hub = AddNode(builder, "hub", NodeKind::kSwitch);
  for (size_t i = 0; i < speeds.size(); ++i) Connect(builder, hosts[i], hub, speeds[i], delay, 0);
  auto fabric = std::move(builder).Build();
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

inline Fabric LeafSpine(int leaves, int hosts, int spines, int ports = 1) {
  ClosSpec spec;
  spec.hosts_per_group = hosts;
  spec.groups = leaves;
  spec.spines = spines;
  spec.ports = ports;
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
  auto fabric = BuildClos(spec);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

inline Operation Send(int source, int target, int64_t bytes,
                      absl::Duration start = absl::ZeroDuration()) {
  Operation operation;
  operation.source = {NodeId(source), 0};
  operation.target = {NodeId(target), 0};
  operation.bytes = Bytes(bytes);
  operation.start = start;
  return operation;
}

inline SimulationResult Simulated(const Fabric& fabric, const Workload& workload,
                                  const PacketOptions& options) {
  auto result = SimulatePackets(fabric, workload, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : SimulationResult();
}

inline const LinkResult& LinkBetween(const Fabric& fabric, const SimulationResult& result,
                                     const char* a, const char* b) {
  auto link = fabric.FindLink(*fabric.Find(a), *fabric.Find(b));
  EXPECT_TRUE(link.ok()) << link.status();
  return result.links[link->index()];
}

inline int64_t Dropped(const SimulationResult& result) {
  int64_t sum = 0;
  for (const LinkResult& link : result.links) sum += link.dropped;
  return sum;
}

}  // namespace weft::topology

#endif  // WEFT_TESTS_TOPOLOGY_SIM_PACKET_FABRICS_H_
