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
#include "collectives/planner/nccl_times.h"
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

  const GroupPlace group(network.places);
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

// NCCL's algorithms are predicted on the same places as ours: what all leaves' hosts send to others
// shares the leaves' cables, whatever the protocol, and a ring passes each of them once.
TEST(NcclTimesTest, CablesBetweenSwitchesSlowWhatCrossesThemOften) {
  auto times = [](int oversubscription) {
    const topology::Fabric fabric =
        Load(absl::StrCat("leaf-spine:leaves=8,hosts_per_leaf=8,bandwidth=100Gbps,"
                          "oversubscription=",
                          oversubscription));
    const FabricNetwork network = *NetworkOf(fabric, fabric.hosts());
    return NcclTimes(64, 64,
                     {.nics = network.nics,
                      .nic = network.nic,
                      .delay = network.delay,
                      .hosts = network.places});
  };
  const NcclTimes even = times(1), narrow = times(8);
  auto ratio = [&](CollectiveKind kind, NcclAlgorithm algorithm, NcclProtocol protocol) {
    constexpr uint64_t kBytes = 256 << 20;
    return absl::FDivDuration(*narrow.Predict(kind, kBytes, algorithm, protocol),
                              *even.Predict(kind, kBytes, algorithm, protocol));
  };
  for (NcclProtocol protocol : {NcclProtocol::kLl, NcclProtocol::kLl128, NcclProtocol::kSimple}) {
    EXPECT_GT(ratio(CollectiveKind::kAllReduce, NcclAlgorithm::kTree, protocol), 1.4);
    EXPECT_GT(ratio(CollectiveKind::kAllGather, NcclAlgorithm::kPat, protocol), 1.5);
    EXPECT_NEAR(ratio(CollectiveKind::kAllReduce, NcclAlgorithm::kRing, protocol), 1, 0.01);
  }
  // So there are sizes at which a tree is faster on one fabric, and a ring on the other.
  int changes = 0;
  for (uint64_t bytes = 1 << 10; bytes <= uint64_t{1} << 30; bytes *= 2) {
    auto prefers_tree = [&](const NcclTimes& on) {
      return *on.Predict(CollectiveKind::kAllReduce, bytes, NcclAlgorithm::kTree,
                         NcclProtocol::kSimple) < *on.Predict(CollectiveKind::kAllReduce, bytes,
                                                              NcclAlgorithm::kRing,
                                                              NcclProtocol::kSimple);
    };
    EXPECT_LE(prefers_tree(narrow), prefers_tree(even)) << bytes;
    changes += prefers_tree(even) && !prefers_tree(narrow);
  }
  EXPECT_GT(changes, 0);
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

// What weft-run --plan sets is enough: the directory holds the fabric, and names hosts by address.
TEST(OwnPlaceTest, IsOnTheFabricOfThePlanDirectoryByThisMachinesAddress) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("plan", getpid());
  std::filesystem::create_directories(folder);
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("plan", folder.string(), "test").ok());
  EXPECT_EQ(OwnPlace(settings)->switch_name, "");  // nothing there
  std::ofstream(folder / "fabric.toml")
      << "generate = { type = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 2 }\n";
  auto write = [&](const char* own) {
    std::ofstream(folder / "paths.txt") << "weft-paths 1\nranks 2\n"
                                        << "host h3 " << own << " leaf1\n";
  };
  write("192.0.2.7");  // another machine's
  EXPECT_EQ(OwnPlace(settings)->switch_name, "");
  write("127.0.0.1");
  const topology::Fabric fabric = Load((folder / "fabric.toml").string());
  const RankPlace expected = *PlaceOnFabric(fabric, *fabric.Find("h3"));
  const absl::StatusOr<RankPlace> place = OwnPlace(settings);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->switch_name, expected.switch_name);
  EXPECT_EQ(place->switch_rate, expected.switch_rate);
  EXPECT_GT(place->nic_rate, 0);
  // The user's own goes first.
  ASSERT_TRUE(settings.Set("collective.fabric", kFabric, "test").ok());
  ASSERT_TRUE(settings.Set("collective.fabric_host", "h0", "test").ok());
  EXPECT_EQ(OwnPlace(settings)->nics, 2);
  std::filesystem::remove_all(folder);
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
