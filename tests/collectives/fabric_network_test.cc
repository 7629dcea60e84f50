// What a fabric says about the network between a group's hosts.
#include "collectives/planner/fabric_network.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "topology/fabric/load.h"

namespace weft::collectives::planner {
namespace {

topology::Fabric Load(const std::string& name) { return *topology::LoadFabric(name); }

// Four hosts a leaf with NICs of 100 Gbps, two cables of 100 Gbps up from each leaf.
constexpr char kFabric[] =
    "leaf-spine:leaves=2,spines=2,hosts_per_leaf=4,nics=2,bandwidth=100Gbps,delay=500ns,latency="
    "1us";

TEST(FabricNetworkTest, RatesDelaysAndSwitchesAreThoseOfTheHosts) {
  const topology::Fabric fabric = Load(kFabric);
  const FabricNetwork network = *NetworkOf(fabric, fabric.hosts());
  EXPECT_EQ(network.nics, 2);
  EXPECT_DOUBLE_EQ(network.nic.gigabits_per_second(), 100);
  EXPECT_DOUBLE_EQ(network.host.gigabits_per_second(), 200);
  EXPECT_EQ(network.nearest, absl::Microseconds(2));  // two cables, one switch
  EXPECT_EQ(network.delay, absl::Microseconds(5));    // four cables, three switches
  ASSERT_EQ(network.switches.size(), 8U);
  EXPECT_EQ(network.switches[0], network.switches[3]);
  EXPECT_NE(network.switches[3], network.switches[4]);
  EXPECT_DOUBLE_EQ(network.beyond_switch.gigabits_per_second(), 50);
}

TEST(FabricNetworkTest, OneSwitchHasNothingBeyond) {
  const topology::Fabric fabric = Load(kFabric);
  const FabricNetwork network = *NetworkOf(fabric, fabric.hosts().subspan(0, 4));
  EXPECT_EQ(network.delay, absl::Microseconds(2));
  EXPECT_EQ(network.beyond_switch, network.host);
}

TEST(FabricNetworkTest, CablesThatAreDownDoNotCount) {
  topology::Fabric fabric = Load(kFabric);
  fabric.SetUp(fabric.Ports({fabric.hosts()[2], 0})[0], false);
  EXPECT_DOUBLE_EQ(NetworkOf(fabric, fabric.hosts())->host.gigabits_per_second(), 100);
  fabric.SetUp(fabric.Ports({fabric.hosts()[2], 1})[0], false);
  const absl::Status status = NetworkOf(fabric, fabric.hosts()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(fabric.node(fabric.hosts()[2]).name), std::string::npos);
}

TEST(FabricNetworkTest, TheTableGetsTheNetworksRatesAndDelays) {
  const topology::Fabric fabric = Load(kFabric);
  CostTable table;
  table.across = {.latency = 3000, .message = 600, .byte = 0.01, .host_byte = 1};
  table = OnNetwork(table, *NetworkOf(fabric, fabric.hosts()));
  EXPECT_DOUBLE_EQ(table.across.byte, 0.08);  // 12.5 GB/s
  EXPECT_DOUBLE_EQ(table.across.host_byte, 0.04);
  EXPECT_DOUBLE_EQ(table.across.latency, 8000);
}

}  // namespace
}  // namespace weft::collectives::planner
