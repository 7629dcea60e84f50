#include "topology/fabric/clos.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "topology/fabric/generator.h"
#include "topology/fabric/routes.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Fabric Generate(const std::string& text) {
  absl::StatusOr<Fabric> fabric = GenerateFabric(text);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

std::string ErrorOf(const std::string& text) {
  absl::StatusOr<Fabric> fabric = GenerateFabric(text);
  EXPECT_FALSE(fabric.ok()) << text;
  return std::string(fabric.status().message());
}

std::vector<int> SwitchesByTier(const Fabric& fabric) {
  std::vector<int> counts(4, 0);
  for (NodeId node : fabric.switches()) ++counts[static_cast<size_t>(fabric.node(node).tier)];
  counts.erase(counts.begin());
  return counts;
}

// Cables to each tier, of every switch of `tier`; they must all have the same.
std::map<int, int> Degrees(const Fabric& fabric, int tier) {
  std::set<std::map<int, int>> all;
  for (NodeId node : fabric.switches()) {
    if (fabric.node(node).tier != tier) continue;
    std::map<int, int> degrees;
    for (LinkId link : fabric.LinksFrom(node)) {
      ++degrees[fabric.node(fabric.link(link).target).tier];
    }
    all.insert(degrees);
  }
  EXPECT_THAT(all, SizeIs(1)) << "tier " << tier;
  return *all.begin();
}

using Degree = std::map<int, int>;

int64_t PathsBetween(const Fabric& fabric, int a, int nic_a, int b, int nic_b) {
  Routes routes(fabric);
  return routes.Paths({NodeId(a), nic_a}, {NodeId(b), nic_b});
}

TEST(LeafSpine, HasTheCountsDegreesAndPathsOfItsNumbers) {
  Fabric fabric = Generate("leaf-spine:leaves=6,hosts_per_leaf=5,spines=4,nics=2");
  EXPECT_THAT(fabric.hosts(), SizeIs(30));
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(6, 4, 0));
  EXPECT_EQ(Degrees(fabric, 1), (Degree{{0, 10}, {2, 4}}));
  EXPECT_EQ(Degrees(fabric, 2), (Degree{{1, 6}}));
  EXPECT_EQ(fabric.endpoints(), 60);
  EXPECT_EQ(fabric.links(), 2 * (60 + 24));
  EXPECT_EQ(PathsBetween(fabric, 0, 1, 29, 0), 4);
  EXPECT_EQ(fabric.node(NodeId(7)).name, "h7");
  EXPECT_EQ(fabric.node(*fabric.Find("spine3")).tier, 2);
}

TEST(LeafSpine, OversubscriptionChoosesTheSpines) {
  Fabric fabric = Generate("leaf-spine:leaves=4,hosts_per_leaf=16,oversubscription=2");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(4, 8, 0));
  fabric = Generate(
      "leaf-spine:leaves=4,hosts_per_leaf=16,bandwidth=200Gbps,spine_bandwidth=400Gbps,"
      "oversubscription=1");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(4, 8, 0));
  EXPECT_THAT(ErrorOf("leaf-spine:hosts_per_leaf=16,oversubscription=3"),
              HasSubstr("needs 5.33333 switches"));
  EXPECT_THAT(ErrorOf("leaf-spine:spines=4,oversubscription=1"), HasSubstr("not both"));
}

TEST(LeafSpine, CarriesItsNumbersToNodesAndLinks) {
  Fabric fabric = Generate(
      "leaf-spine:leaves=2,hosts_per_leaf=1,spines=1,bandwidth=100Gbps,spine_bandwidth=50Gbps,"
      "host_delay=1us,spine_delay=2us,latency=600ns,buffer=64KiB,switch_buffer=16MiB");
  const FabricLink& down = fabric.link(LinkId(0));
  EXPECT_EQ(down.bandwidth, Bandwidth::GigabitsPerSecond(100));
  EXPECT_EQ(down.delay, absl::Microseconds(1));
  EXPECT_EQ(down.buffer, KiB(64));
  const FabricLink& up =
      fabric.link(*fabric.FindLink(*fabric.Find("leaf0"), *fabric.Find("spine0")));
  EXPECT_EQ(up.bandwidth, Bandwidth::GigabitsPerSecond(50));
  EXPECT_EQ(up.delay, absl::Microseconds(2));
  EXPECT_EQ(fabric.node(*fabric.Find("spine0")).latency, absl::Nanoseconds(600));
  EXPECT_EQ(fabric.node(*fabric.Find("leaf0")).buffer, MiB(16));
}

TEST(FatTree, OfRadixKHasKCubedOverFourHostsAndKSquaredOverFourPaths) {
  for (int k : {2, 4, 8}) {
    Fabric fabric = Generate("fat-tree:radix=" + std::to_string(k));
    EXPECT_THAT(fabric.hosts(), SizeIs(k * k * k / 4));
    EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(k * k / 2, k * k / 2, k * k / 4));
    EXPECT_EQ(Degrees(fabric, 1), (Degree{{0, k / 2}, {2, k / 2}}));
    EXPECT_EQ(Degrees(fabric, 2), (Degree{{1, k / 2}, {3, k / 2}}));
    EXPECT_EQ(Degrees(fabric, 3), (Degree{{2, k}}));
    EXPECT_EQ(PathsBetween(fabric, 0, 0, k * k * k / 4 - 1, 0), k * k / 4);
    if (k > 2) {
      EXPECT_EQ(PathsBetween(fabric, 0, 0, k / 2, 0), k / 2);
    }
  }
}

TEST(ThreeTier, CoresReachTheSpinesThatAreCongruentToThem) {
  Fabric fabric = Generate(
      "three-tier:pods=3,leaves_per_pod=2,hosts_per_leaf=2,spines_per_pod=2,cores=6,core_cables=2");
  EXPECT_EQ(Degrees(fabric, 2), (Degree{{1, 2}, {3, 6}}));
  EXPECT_EQ(Degrees(fabric, 3), (Degree{{2, 6}}));
  EXPECT_TRUE(fabric.FindLink(*fabric.Find("spine1"), *fabric.Find("core3")).ok());
  EXPECT_FALSE(fabric.FindLink(*fabric.Find("spine1"), *fabric.Find("core2")).ok());
  EXPECT_EQ(fabric.node(*fabric.Find("spine5")).pod, 2);
  EXPECT_EQ(fabric.node(*fabric.Find("h11")).pod, 2);
  EXPECT_EQ(fabric.node(*fabric.Find("core0")).pod, -1);
  EXPECT_EQ(PathsBetween(fabric, 0, 0, 11, 0), 6 * 2 * 2);
}

TEST(ThreeTier, MayHaveFewerCoresThanSpines) {
  Fabric fabric =
      Generate("three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=1,spines_per_pod=4,cores=2");
  EXPECT_EQ(Degrees(fabric, 2), (Degree{{1, 2}, {3, 1}}));
  EXPECT_EQ(Degrees(fabric, 3), (Degree{{2, 4}}));
  // Up by any spine, down by the two of the other pod that share its core.
  EXPECT_EQ(PathsBetween(fabric, 0, 0, 3, 0), 4 * 2);
}

TEST(ThreeTier, CoreOversubscriptionChoosesTheCores) {
  Fabric fabric = Generate(
      "three-tier:pods=4,leaves_per_pod=8,hosts_per_leaf=8,oversubscription=1,"
      "core_oversubscription=2");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(32, 32, 32));
}

TEST(Clos, PodsAndGroupsWithoutHostsAreNotBuilt) {
  Fabric fabric = Generate(
      "three-tier:pods=4,leaves_per_pod=2,hosts_per_leaf=4,spines_per_pod=2,cores=4,hosts=13");
  EXPECT_THAT(fabric.hosts(), SizeIs(13));
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(4, 4, 4));
}

TEST(RailOptimised, PutsNicROfAGroupUnderLeafR) {
  Fabric fabric = Generate("rail-optimised:groups=2,hosts_per_group=3,rails=4,spines=2");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(8, 2, 0));
  EXPECT_EQ(Degrees(fabric, 1), (Degree{{0, 3}, {2, 2}}));
  for (int host = 0; host < 6; ++host) {
    for (int rail = 0; rail < 4; ++rail) {
      absl::Span<const LinkId> ports = fabric.Ports({NodeId(host), rail});
      ASSERT_THAT(ports, SizeIs(1));
      EXPECT_EQ(fabric.node(fabric.link(ports[0]).target).name,
                "leaf" + std::to_string(host / 3 * 4 + rail));
    }
  }
}

TEST(RailOnly, HasNoPathFromRailToRail) {
  Fabric fabric = Generate("rail-only:groups=2,hosts_per_group=2,rails=3,spines=2");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(6, 6, 0));
  EXPECT_EQ(PathsBetween(fabric, 0, 1, 3, 1), 2);
  EXPECT_EQ(PathsBetween(fabric, 0, 1, 3, 2), 0);
}

TEST(DualTor, GivesANicTwoLeavesUnderTheSameSpines) {
  Fabric fabric = Generate("dual-tor:groups=2,hosts_per_group=4,rails=2,spines=3");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(8, 3, 0));
  absl::Span<const LinkId> ports = fabric.Ports({NodeId(0), 1});
  ASSERT_THAT(ports, SizeIs(2));
  EXPECT_EQ(fabric.node(fabric.link(ports[0]).target).name, "leaf2");
  EXPECT_EQ(fabric.node(fabric.link(ports[1]).target).name, "leaf3");
  // Two ports out, three spines, and each spine reaches both leaves of the target.
  EXPECT_EQ(PathsBetween(fabric, 0, 1, 7, 1), 2 * 3 * 2);
}

TEST(DualPlane, KeepsItsPlanesApart) {
  Fabric fabric = Generate("dual-plane:groups=2,hosts_per_group=4,rails=2,spines=3");
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(8, 6, 0));
  // The plane is chosen by the port out; within it there are three spines.
  EXPECT_EQ(PathsBetween(fabric, 0, 1, 7, 1), 2 * 3);
  for (int i = 0; i < fabric.links(); ++i) {
    const FabricNode& a = fabric.node(fabric.link(LinkId(i)).source);
    const FabricNode& b = fabric.node(fabric.link(LinkId(i)).target);
    if (a.tier > 0 && b.tier > 0) {
      EXPECT_EQ(a.plane, b.plane);
    }
  }
}

// NSDI'24, section 3.6: 64 x 400G switches, 32 up and 32 down, ToR ports down split in two.
TEST(MegaScale, HasTheSwitchesOfThePaper) {
  Fabric fabric = Generate("megascale");
  EXPECT_EQ(fabric.endpoints(), 12'288);
  EXPECT_THAT(SwitchesByTier(fabric), ElementsAre(192, 192, 128));
  EXPECT_EQ(Degrees(fabric, 1), (Degree{{0, 64}, {2, 32}}));
  EXPECT_EQ(Degrees(fabric, 2), (Degree{{1, 32}, {3, 32}}));
  EXPECT_EQ(Degrees(fabric, 3), (Degree{{2, 48}}));
  EXPECT_EQ(fabric.link(LinkId(0)).bandwidth, Bandwidth::GigabitsPerSecond(200));
  EXPECT_EQ(fabric.link(LinkId(2 * 12'288)).bandwidth, Bandwidth::GigabitsPerSecond(400));
  std::set<NodeId> tors;
  for (int rail = 0; rail < 8; ++rail) {
    tors.insert(fabric.link(fabric.Ports({NodeId(63), rail})[0]).target);
  }
  EXPECT_THAT(tors, SizeIs(8));
}

TEST(MegaScale, OfOneTorSetAndOfThePapersLimit) {
  EXPECT_THAT(SwitchesByTier(Generate("megascale:hosts=64")), ElementsAre(8, 32, 0));
  Fabric fabric = Generate("megascale:hosts=4096");
  EXPECT_EQ(Degrees(fabric, 3), (Degree{{2, 64}}));
  EXPECT_THAT(ErrorOf("megascale:hosts=16385"), HasSubstr("must be from 1 to 16384"));
}

TEST(Generators, NameWhatIsUnknownAndTheNearest) {
  EXPECT_THAT(ErrorOf("leaf-spin:leaves=4"), HasSubstr("nearest: leaf-spine"));
  EXPECT_THAT(ErrorOf("leaf-spine:leavs=4"), HasSubstr("nearest: leaves"));
  EXPECT_THAT(ErrorOf("leaf-spine:leaves=four"), HasSubstr("leaves = four: must be a whole"));
  EXPECT_THAT(ErrorOf("leaf-spine:bandwidth=400"), HasSubstr("is not a bandwidth"));
  EXPECT_THAT(ErrorOf("fat-tree:radix=5"), HasSubstr("radix = 5: must be even"));
  EXPECT_THAT(ErrorOf("megascale:oversubscription=2"), HasSubstr("are fixed"));
}

TEST(Generators, RefuseAbsurdSizesBeforeTheyBuildThem) {
  EXPECT_THAT(ErrorOf("leaf-spine:leaves=200000,hosts_per_leaf=200000"),
              HasSubstr("at most 262144"));
  EXPECT_THAT(ErrorOf("leaf-spine:leaves=100000,hosts_per_leaf=1,spines=100"),
              HasSubstr("cables; at most 1048576"));
  EXPECT_THAT(ErrorOf("leaf-spine:leaves=1000000000"), HasSubstr("from 1 to 262144"));
  EXPECT_THAT(ErrorOf("three-tier:pods=200000,leaves_per_pod=200000,hosts_per_leaf=200000"),
              HasSubstr("at most 262144"));
  EXPECT_THAT(ErrorOf("three-tier:spines_per_pod=4,cores=6"), HasSubstr("must divide"));
}

TEST(Generators, BuildWithTheirDefaults) {
  for (const std::string& name : GeneratorNames()) {
    Fabric fabric = Generate(name);
    Routes routes(fabric);
    Endpoint last{fabric.hosts().back(), 0};
    EXPECT_GT(routes.Paths({NodeId(0), 0}, last), 1) << name;
    EXPECT_THAT(GeneratorHelp(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace weft::topology
