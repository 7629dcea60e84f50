#include "topology/fabric/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "topology/fabric/faults.h"
#include "topology/fabric/file.h"
#include "topology/fabric/generator.h"
#include "topology/fabric/summary.h"

namespace weft::topology {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Fabric Generate(const std::string& text) {
  absl::StatusOr<Fabric> fabric = GenerateFabric(text);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

void Fail(Fabric& fabric, const std::string& name) {
  absl::StatusOr<std::vector<LinkId>> cables = CablesNamed(name, fabric);
  ASSERT_TRUE(cables.ok()) << cables.status();
  for (LinkId cable : *cables) fabric.SetUp(cable, false);
}

auto Finding(FindingLevel level, const std::string& kind, const std::string& text) {
  return AllOf(Field(&FabricFinding::level, level), Field(&FabricFinding::kind, kind),
               Field(&FabricFinding::text, HasSubstr(text)));
}

std::vector<FabricFinding> Serious(const Fabric& fabric) {
  std::vector<FabricFinding> findings = CheckFabric(fabric);
  std::erase_if(findings, [](const FabricFinding& f) { return f.level == FindingLevel::kNote; });
  return findings;
}

TEST(CheckFabric, FindsNothingWrongWithWhatGeneratorsBuild) {
  for (const std::string& name : GeneratorNames()) {
    EXPECT_THAT(Serious(Generate(name)), IsEmpty()) << name;
  }
}

TEST(CheckFabric, NamesHostsThatCannotReachEachOther) {
  Fabric fabric = Generate("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2");
  Fail(fabric, "leaf2>spine[0-1]");
  EXPECT_THAT(CheckFabric(fabric),
              Contains(Finding(FindingLevel::kError, "unreachable",
                               "h[0-3] (4 hosts) cannot reach h[4-5] (2 hosts)")));
  Fail(fabric, "h5");
  EXPECT_THAT(CheckFabric(fabric),
              Contains(Finding(FindingLevel::kError, "unreachable", "h5: no cable that is up")));
}

TEST(CheckFabric, PlanesAreNoPartition) {
  Fabric fabric = Generate("rail-only:groups=2,hosts_per_group=2,rails=2,spines=2");
  EXPECT_THAT(CheckFabric(fabric),
              ElementsAre(Finding(FindingLevel::kNote, "planes", "2 separate networks")));
}

TEST(CheckFabric, NamesASwitchOnWhichTheNetworkHangs) {
  Fabric fabric = Generate("leaf-spine:leaves=3,hosts_per_leaf=2,spines=1,spine_cables=2");
  EXPECT_THAT(Serious(fabric),
              ElementsAre(Finding(FindingLevel::kWarning, "single-point",
                                  "spine0 is a single point of failure: without it the network of "
                                  "6 host ports falls into 3 parts")));
  Fail(fabric, "leaf1>spine0#0");
  EXPECT_THAT(CheckFabric(fabric),
              Contains(Finding(FindingLevel::kWarning, "single-point",
                               "cable spine0>leaf1#1 is a single point of failure: without it 2 "
                               "host ports are cut off from 4")));
  // A chain: both switches in the middle.
  absl::StatusOr<Fabric> chain = ReadFabric(
      "nodes = [ { hosts = 'h[0-1]' }, { switches = 's[0-3]' } ]\n"
      "cables = [ { pairs = [['h0', 's0'], ['s0', 's1'], ['s1', 's2'], ['s2', 's3'], ['h1', 's3']] "
      "} ]",
      "chain");
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_THAT(CheckFabric(*chain),
              AllOf(Contains(Finding(FindingLevel::kWarning, "single-point", "s1 is")),
                    Contains(Finding(FindingLevel::kWarning, "single-point", "s2 is"))));
  fabric = Generate("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2");
  EXPECT_THAT(CheckFabric(fabric), Not(Contains(Field(&FabricFinding::kind, "single-point"))));
  EXPECT_THAT(CheckFabric(fabric), Contains(Finding(FindingLevel::kNote, "single-homed",
                                                    "6 hosts of 6 hang on one switch")));
}

TEST(CheckFabric, NamesFaultsAndWhoDiffersBecauseOfThem) {
  Fabric fabric = Generate("leaf-spine:leaves=4,hosts_per_leaf=2,spines=3");
  Fail(fabric, "leaf1>spine2");
  fabric.SetBandwidth(CablesNamed("leaf0>spine0", fabric)->at(0),
                      Bandwidth::GigabitsPerSecond(100));
  EXPECT_THAT(
      Serious(fabric),
      ElementsAre(Finding(FindingLevel::kWarning, "down", "leaf1>spine2 is down"),
                  Finding(FindingLevel::kWarning, "degraded", "leaf0>spine0 has 100 Gbps of 400"),
                  Finding(FindingLevel::kWarning, "asymmetry",
                          "leaf1: cables 2 to hosts, 2 to tier 2, where 3 others have"),
                  Finding(FindingLevel::kWarning, "asymmetry", "spine2: cables 3 to tier 1")));
}

TEST(CheckFabric, NamesSpeedsThatDoNotMatch) {
  absl::StatusOr<Fabric> fabric = ReadFabric(R"(
nodes = [ { hosts = 'h[0-3]' }, { switches = 'a,b' }, { switches = 'c,d', tier = 2 } ]
[[cables]]
pairs = [['h[0-1]', 'a'], ['h2', 'b'], ['a', 'c,d'], ['b', 'c']]
[[cables]]
bandwidth = "100Gbps"
pairs = [['h3', 'b'], ['b', 'd']]
)",
                                             "speeds");
  ASSERT_TRUE(fabric.ok()) << fabric.status();
  EXPECT_THAT(
      Serious(*fabric),
      ElementsAre(Finding(FindingLevel::kWarning, "speed",
                          "b has cables up of different speeds: 1 x 100 Gbps, 1 x 400 Gbps"),
                  Finding(FindingLevel::kWarning, "speed", "h3: ports of 100 Gbps")));
}

TEST(CheckFabric, ListsAtMostTenOfAKind) {
  Fabric fabric = Generate("leaf-spine");
  Fail(fabric, "leaf[0-7]>spine[0-7]");
  int down = 0;
  for (const FabricFinding& finding : CheckFabric(fabric)) down += finding.kind == "down" ? 1 : 0;
  EXPECT_EQ(down, 11);
  EXPECT_THAT(CheckFabric(fabric),
              Contains(Finding(FindingLevel::kWarning, "down", "and 54 more like these")));
}

double BisectionOf(const Fabric& fabric) {
  return BisectionBandwidth(fabric).gigabits_per_second();
}

// Half the hosts' bandwidth, or half the leaves' uplinks where that is less.
TEST(Bisection, OfALeafSpineIsItsFormula) {
  for (int leaves : {2, 4, 6}) {
    for (int hosts : {1, 3, 8}) {
      for (int spines : {1, 2, 8}) {
        Fabric fabric = Generate("leaf-spine:bandwidth=100Gbps,leaves=" + std::to_string(leaves) +
                                 ",hosts_per_leaf=" + std::to_string(hosts) +
                                 ",spines=" + std::to_string(spines));
        EXPECT_DOUBLE_EQ(BisectionOf(fabric), 100.0 * leaves / 2 * std::min(hosts, spines));
      }
    }
  }
}

TEST(Bisection, OfAFatTreeIsFullAndOversubscriptionDividesIt) {
  EXPECT_DOUBLE_EQ(BisectionOf(Generate("fat-tree:radix=8")), 400.0 * 8 * 8 * 8 / 4 / 2);
  const std::string tree = "three-tier:pods=4,leaves_per_pod=8,hosts_per_leaf=16,";
  double full = BisectionOf(Generate(tree + "oversubscription=1,core_oversubscription=1"));
  EXPECT_DOUBLE_EQ(full, 400.0 * 4 * 8 * 16 / 2);
  EXPECT_DOUBLE_EQ(BisectionOf(Generate(tree + "oversubscription=2,core_oversubscription=1")),
                   full / 2);
  EXPECT_DOUBLE_EQ(BisectionOf(Generate(tree + "oversubscription=2,core_oversubscription=2")),
                   full / 4);
}

TEST(Bisection, CountsEveryRailAndPort) {
  EXPECT_DOUBLE_EQ(
      BisectionOf(Generate("rail-optimised:groups=2,hosts_per_group=4,rails=4,spines=4")),
      400.0 * 4 * 4);
  EXPECT_DOUBLE_EQ(BisectionOf(Generate("dual-plane:groups=2,hosts_per_group=4,rails=4,spines=4")),
                   400.0 * 4 * 4 * 2);
  EXPECT_DOUBLE_EQ(BisectionOf(Generate("megascale:hosts=512")), 200.0 * 8 * 256);
}

TEST(Bisection, ShrinksWithFaults) {
  Fabric fabric = Generate("leaf-spine:leaves=2,hosts_per_leaf=4,spines=4");
  EXPECT_DOUBLE_EQ(BisectionOf(fabric), 1600);
  Fail(fabric, "spine0");
  EXPECT_DOUBLE_EQ(BisectionOf(fabric), 1200);
  fabric.SetBandwidth(CablesNamed("leaf0>spine1", fabric)->at(0), Bandwidth::GigabitsPerSecond(50));
  EXPECT_DOUBLE_EQ(BisectionOf(fabric), 850);
  Fail(fabric, "leaf0>spine[1-3]");
  EXPECT_DOUBLE_EQ(BisectionOf(fabric), 0);
}

TEST(Summary, CountsTiersCablesAndOversubscription) {
  Fabric fabric = Generate(
      "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=8,spines_per_pod=4,cores=4,nics=2");
  Fail(fabric, "spine0>core0");
  FabricSummary summary = Summarise(fabric);
  EXPECT_EQ(summary.hosts, 32);
  EXPECT_EQ(summary.nics, 64);
  EXPECT_EQ(summary.pods, 2);
  ASSERT_THAT(summary.tiers, SizeIs(3));
  EXPECT_EQ(summary.tiers[0].switches, 4);
  EXPECT_DOUBLE_EQ(summary.tiers[0].oversubscription, 4);
  EXPECT_EQ(summary.tiers[1].cables_up, 7);
  EXPECT_DOUBLE_EQ(summary.tiers[1].oversubscription, 16.0 / 7);
  EXPECT_DOUBLE_EQ(summary.tiers[2].oversubscription, 0);
  ASSERT_THAT(summary.cables, SizeIs(3));
  EXPECT_EQ(summary.cables[2].count, 8);
  EXPECT_EQ(summary.cables[2].down, 1);
  EXPECT_DOUBLE_EQ(summary.injection.gigabits_per_second(), 64 * 400);
  EXPECT_THAT(ToText(summary), HasSubstr("tier 1  4 switches"));
}

}  // namespace
}  // namespace weft::topology
