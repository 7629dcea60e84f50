// What transports read of a plan: hosts and spare ways.
#include "topology/paths/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

ConnectionPlanText PlanOfNothing(const Fabric& fabric) {
  const Routes routes(fabric);
  PlanTextOptions options;
  options.hosts.assign(fabric.hosts().begin(), fabric.hosts().end());
  return MakePlanText(routes, *FabricHashes::Create(fabric), PathPlan(), {}, options);
}

// 8 spines with 8 cores each: 64 ways, of which 8 are kept.
TEST(PlanText, SpareWaysGoOverAllLinksOfTheFirstSwitch) {
  ClosSpec spec;
  spec.pods = 2;
  spec.groups = 2;
  spec.hosts_per_group = 2;
  spec.spines = 8;
  spec.cores = 64;
  const ConnectionPlanText text = PlanOfNothing(*BuildClos(spec));
  for (const auto& [leaves, ways] : text.spares) {
    ASSERT_THAT(ways, SizeIs(8)) << leaves.first << " " << leaves.second;
    std::map<std::string, int> over;
    for (const PathWay& way : ways) ++over[way.choices.front().to];
    EXPECT_THAT(over, SizeIs(8)) << leaves.first << " " << leaves.second;
  }
  EXPECT_THAT(text.spares, SizeIs(12));
}

// 16 spines of 32 cores each: more ways than are looked at.
TEST(PlanText, SpareWaysGoOverDifferentLinksAlsoWhereThereAreManyWays) {
  ClosSpec spec;
  spec.pods = 2;
  spec.groups = 1;
  spec.hosts_per_group = 1;
  spec.spines = 16;
  spec.cores = 512;
  const ConnectionPlanText text = PlanOfNothing(*BuildClos(spec));
  ASSERT_THAT(text.spares, SizeIs(2));
  for (const auto& [leaves, ways] : text.spares) {
    std::map<std::string, int> over;
    for (const PathWay& way : ways) ++over[way.choices.front().to];
    EXPECT_THAT(over, SizeIs(8));
  }
}

// Each leaf has the same NIC of the same two hosts.
TEST(PlanText, ThereAreSpareWaysBetweenRails) {
  ClosSpec spec;
  spec.groups = 1;
  spec.hosts_per_group = 2;
  spec.nics = 2;
  spec.rail_leaves = true;
  spec.spines = 4;
  const ConnectionPlanText text = PlanOfNothing(*BuildClos(spec));
  ASSERT_THAT(text.spares, SizeIs(2));
  for (const auto& [leaves, ways] : text.spares) EXPECT_THAT(ways, SizeIs(4));
}

TEST(PlanText, TheFirstSwitchOfANicIsOneThatItsCablesReach) {
  ClosSpec spec;
  spec.groups = 2;
  spec.hosts_per_group = 2;
  spec.ports = 2;
  spec.spines = 2;
  Fabric fabric = *BuildClos(spec);
  const Endpoint first{fabric.hosts()[0], 0};
  fabric.SetUp(fabric.Ports(first)[0], false);
  const std::string left = fabric.node(fabric.link(fabric.Ports(first)[1]).target).name;
  EXPECT_THAT(PlanOfNothing(fabric).hosts[0].leaves, ElementsAre(left));
}

}  // namespace
}  // namespace weft::topology
