// What transports read of a plan: hosts and spare ways.
#include "topology/paths/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
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

// Each pair of leaves has 8 spare ways, over 8 next hops of the first switch.
void ExpectEightSpareWaysOverEightLinks(const ConnectionPlanText& text) {
  for (const auto& [leaves, ways] : text.spares) {
    EXPECT_THAT(ways, SizeIs(8)) << leaves.first << " " << leaves.second;
    std::set<std::string> over;
    for (const PathWay& way : ways) over.insert(way.choices.front().to);
    EXPECT_THAT(over, SizeIs(8)) << leaves.first << " " << leaves.second;
  }
}

// 8 spines with 8 cores each: 64 ways, of which 8 are kept.
TEST(PlanText, SpareWaysGoOverAllLinksOfTheFirstSwitch) {
  const ConnectionPlanText text = PlanOfNothing(
      *BuildClos({.hosts_per_group = 2, .groups = 2, .pods = 2, .spines = 8, .cores = 64}));
  EXPECT_THAT(text.spares, SizeIs(12));
  ExpectEightSpareWaysOverEightLinks(text);
}

// 16 spines of 32 cores each: more ways than are looked at.
TEST(PlanText, SpareWaysGoOverDifferentLinksAlsoWhereThereAreManyWays) {
  const ConnectionPlanText text = PlanOfNothing(
      *BuildClos({.hosts_per_group = 1, .groups = 1, .pods = 2, .spines = 16, .cores = 512}));
  EXPECT_THAT(text.spares, SizeIs(2));
  ExpectEightSpareWaysOverEightLinks(text);
}

// Each leaf has the same NIC of the same two hosts.
TEST(PlanText, ThereAreSpareWaysBetweenRails) {
  const ConnectionPlanText text = PlanOfNothing(
      *BuildClos({.hosts_per_group = 2, .groups = 1, .nics = 2, .rail_leaves = true, .spines = 4}));
  ASSERT_THAT(text.spares, SizeIs(2));
  for (const auto& [leaves, ways] : text.spares) EXPECT_THAT(ways, SizeIs(4));
}

TEST(PlanText, TheFirstSwitchOfANicIsOneThatItsCablesReach) {
  Fabric fabric = *BuildClos({.hosts_per_group = 2, .groups = 2, .ports = 2, .spines = 2});
  const Endpoint first{fabric.hosts()[0], 0};
  fabric.SetUp(fabric.Ports(first)[0], false);
  const std::string left = fabric.node(fabric.link(fabric.Ports(first)[1]).target).name;
  EXPECT_THAT(PlanOfNothing(fabric).hosts[0].leaves, ElementsAre(left));
}

}  // namespace
}  // namespace weft::topology
