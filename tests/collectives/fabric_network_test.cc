// What a fabric says about the network between a group's hosts.
#include "collectives/planner/fabric_network.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/planner/own_place.h"
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
  EXPECT_EQ(network.delay, absl::Microseconds(5));  // four cables, three switches
  EXPECT_EQ(NetworkOf(fabric, fabric.hosts().subspan(0, 4))->delay, absl::Microseconds(2));

  std::vector<RankPlace> places;
  for (NodeId host : fabric.hosts()) places.push_back(*PlaceOnFabric(fabric, host));
  const GroupPlace group(places);
  ASSERT_EQ(group.switches.size(), 2U);
  EXPECT_EQ(group.switches[1], (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(group.nics, 2);
  EXPECT_DOUBLE_EQ(group.nic_rate, 12.5e9);
  EXPECT_DOUBLE_EQ(group.host_rate, 25e9);
  EXPECT_DOUBLE_EQ(group.switch_rate, 25e9);  // two cables
}

TEST(FabricNetworkTest, CablesThatAreDownDoNotCount) {
  topology::Fabric fabric = Load(kFabric);
  const NodeId host = fabric.hosts()[2];
  fabric.SetUp(fabric.Ports({host, 0})[0], false);
  EXPECT_DOUBLE_EQ(NetworkOf(fabric, fabric.hosts())->host.gigabits_per_second(), 100);
  fabric.SetUp(fabric.Ports({host, 1})[0], false);
  const absl::Status status = NetworkOf(fabric, fabric.hosts()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(fabric.node(host).name), std::string::npos);
}

// A rank finds its own host in the file of the setting.
TEST(OwnPlaceTest, IsOnTheFabricThatTheSettingsName) {
  Settings settings(LibrarySettings());
  EXPECT_EQ(OwnPlace(settings)->switch_name, "");
  ASSERT_TRUE(settings.Set("collective.fabric", kFabric, "test").ok());
  ASSERT_TRUE(settings.Set("collective.fabric_host", "h5", "test").ok());
  const RankPlace place = *OwnPlace(settings);
  EXPECT_EQ(place.nics, 2);
  EXPECT_EQ(place.switch_name,
            PlaceOnFabric(Load(kFabric), *Load(kFabric).Find("h5"))->switch_name);
  ASSERT_TRUE(settings.Set("collective.fabric_host", "h55", "test").ok());
  const absl::Status status = OwnPlace(settings).status();
  EXPECT_NE(status.message().find("lacks this host, \"h55\""), std::string::npos) << status;
}

TEST(OwnPlaceTest, TheNumaNodeIsTheOneThatHasAllCpus) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("numa", getpid());
  for (const auto& [node, mask] :
       {std::pair("node0", "0000000f"), std::pair("node1", "000000f0")}) {
    std::filesystem::create_directories(folder / node);
    std::ofstream(folder / node / "cpumap") << mask << "\n";
  }
  EXPECT_EQ(NumaNodeOf({0, 3}, folder), 0);
  EXPECT_EQ(NumaNodeOf({5}, folder), 1);
  EXPECT_EQ(NumaNodeOf({3, 4}, folder), -1);
  EXPECT_EQ(NumaNodeOf({}, folder), -1);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(NumaNodeOf({0}, folder), -1);
}

}  // namespace
}  // namespace weft::collectives::planner
