#include "topology/ecmp/fabric_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

ClosSpec ThreeTier() {
  ClosSpec spec;
  spec.pods = 2;
  spec.groups = 2;
  spec.hosts_per_group = 2;
  spec.spines = 4;
  spec.cores = 16;
  return spec;
}

struct Bed {
  Bed() : fabric(*BuildClos(ThreeTier())), routes(fabric), hashes(*FabricHashes::Create(fabric)) {}
  Endpoint Host(size_t i) const { return {fabric.hosts()[i], 0}; }
  NodeId Node(absl::string_view name) const { return *fabric.Find(name); }
  std::vector<LinkId> Path(uint16_t port) const {
    FiveTuple tuple = hashes.Tuple(Host(0), Host(7), port, kRoceTargetPort, kProtocolUdp);
    return *hashes.Path(routes, Host(0), Host(7), tuple);
  }
  // Different paths of source ports first..last.
  size_t PathsReached(uint16_t first, uint16_t last) const {
    std::set<std::vector<LinkId>> paths;
    for (uint32_t port = first; port <= last; ++port) {
      paths.insert(Path(static_cast<uint16_t>(port)));
    }
    return paths.size();
  }

  Fabric fabric;
  Routes routes;
  FabricHashes hashes;
};

TEST(FabricHashes, LeadOverEveryPathByDefault) {
  Bed bed;
  EXPECT_EQ(bed.routes.Paths(bed.Host(0), bed.Host(7)), 16);
  EXPECT_EQ(bed.PathsReached(0xC000, 0xC3FF), 16U);
  std::vector<LinkId> path = bed.Path(50000);
  ASSERT_EQ(path.size(), 6u);
  EXPECT_EQ(bed.fabric.link(path.front()).source, bed.Host(0).host);
  EXPECT_EQ(bed.fabric.link(path.back()).target, bed.Host(7).host);
}

TEST(FabricHashes, TellPolarisedTiers) {
  Bed bed;
  for (int i = 0; i < bed.fabric.nodes(); ++i) {
    // Seeds that differ do not help: the hash is linear.
    bed.hashes.SetHash(NodeId(i), *SwitchHash::Create({.function = HashFunction::kCrc32,
                                                       .seed = static_cast<uint32_t>(i)}));
  }
  EXPECT_EQ(bed.PathsReached(0xC000, 0xFFFF), 4U);
}

TEST(FabricHashes, ResilientGroupsKeepFlowsOfLinksThatAreUp) {
  for (HashSelect select : {HashSelect::kResilient, HashSelect::kModulo}) {
    Bed bed;
    for (int i = 0; i < bed.fabric.nodes(); ++i) {
      SwitchHashOptions options = PerTierHash(bed.fabric.node(NodeId(i)).tier, 5);
      options.select = select;
      bed.hashes.SetHash(NodeId(i), *SwitchHash::Create(options));
    }
    std::vector<std::vector<LinkId>> before;
    for (uint16_t port = 0xC000; port < 0xC200; ++port) before.push_back(bed.Path(port));
    LinkId lost = *bed.fabric.FindLink(bed.Node("leaf0"), bed.Node("spine1"));
    bed.fabric.SetUp(lost, false);
    bed.routes.Update();
    int moved = 0, on_lost = 0;
    for (uint16_t port = 0xC000; port < 0xC200; ++port) {
      const std::vector<LinkId>& old = before[port - 0xC000u];
      on_lost += old[1] == lost ? 1 : 0;
      moved += bed.Path(port)[1] != old[1] ? 1 : 0;
    }
    EXPECT_GT(on_lost, 64);
    if (select == HashSelect::kResilient) {
      EXPECT_EQ(moved, on_lost);
    } else {
      EXPECT_GT(moved, 2 * on_lost);
    }
  }
}

TEST(FabricHashes, AddressesAreAsSet) {
  Bed bed;
  EXPECT_EQ(bed.hashes.address(bed.Host(3)).ToString(), "10.0.0.48");
  bed.hashes.SetAddress(bed.Host(3), *IpAddress::Parse("192.168.7.9"));
  EXPECT_EQ(bed.hashes.Tuple(bed.Host(3), bed.Host(0), 1, 2, 17).source.ToString(), "192.168.7.9");
  EXPECT_EQ(IpAddress::Parse("fd00::7")->ToString(), "fd00::7");
  EXPECT_THAT(std::string(IpAddress::Parse("10.0.0").status().message()), HasSubstr("10.0.0.1"));
}

TEST(FabricHashes, AHostWithTooManyNicsIsNamed) {
  ClosSpec spec = ThreeTier();
  spec.nics = 17;
  Fabric fabric = *BuildClos(spec);
  EXPECT_THAT(std::string(FabricHashes::Create(fabric).status().message()),
              HasSubstr("host h0 has 17 NICs"));
}

}  // namespace
}  // namespace weft::topology
