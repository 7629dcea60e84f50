// Fabrics as trees of switch groups.
#include "topology/cost/cut_tree.h"

#include <gmock/gmock.h>

#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

Fabric Build(const ClosSpec& spec) {
  absl::StatusOr<Fabric> fabric = BuildClos(spec);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

ClosSpec LeafSpine() {
  ClosSpec spec;
  spec.hosts_per_group = 4;
  spec.groups = 3;
  spec.spines = 2;
  return spec;
}

Endpoint At(int host, int nic = 0) { return {NodeId(host), nic}; }

TEST(CutTree, OfALeafSpine) {
  Fabric fabric = Build(LeafSpine());
  CutTree tree(fabric);
  EXPECT_EQ(tree.levels(), 3);
  EXPECT_EQ(tree.MeetingLevel(At(0), At(0)), 0);
  EXPECT_EQ(tree.MeetingLevel(At(0), At(3)), 1);
  EXPECT_EQ(tree.MeetingLevel(At(0), At(4)), 2);
  const CutTree::Cut& leaf = tree.cut(tree.Path(At(5))[1]);
  EXPECT_EQ(leaf.links, 2);
  EXPECT_DOUBLE_EQ(leaf.capacity, 2 * 50e9);
  EXPECT_EQ(tree.Name(tree.Path(At(5))[1]), "leaf1");
  EXPECT_EQ(tree.cut(tree.Path(At(5))[2]).links, 0);
  EXPECT_GT(tree.Latency(2), tree.Latency(1));
  EXPECT_EQ(tree.UpLinks(tree.Path(At(5))[1]).size(), 2U);
}

TEST(CutTree, MegaScaleMeetsUnderTorsPodsAndCores) {
  Fabric fabric = Build(*MegaScaleClos(600));
  CutTree tree(fabric);
  EXPECT_EQ(tree.levels(), 4);
  EXPECT_EQ(tree.MeetingLevel(At(0, 3), At(63, 3)), 1);
  EXPECT_EQ(tree.MeetingLevel(At(0, 3), At(63, 4)), 2);
  EXPECT_EQ(tree.MeetingLevel(At(0, 3), At(64, 3)), 2);
  EXPECT_EQ(tree.MeetingLevel(At(0, 3), At(599, 3)), 3);
  const CutTree::Cut& tor = tree.cut(tree.Path(At(0, 3))[1]);
  EXPECT_EQ(tor.links, 32);
  EXPECT_DOUBLE_EQ(tor.capacity, 32 * 50e9);
  EXPECT_EQ(tree.Name(tree.Path(At(599, 3))[2]), "pod 2");
}

TEST(CutTree, DualTorLeavesAreOneGroup) {
  ClosSpec spec = LeafSpine();
  spec.ports = 2;
  Fabric fabric = Build(spec);
  CutTree tree(fabric);
  EXPECT_EQ(tree.cut(tree.Path(At(0))[0]).links, 2);
  EXPECT_EQ(tree.cut(tree.Path(At(0))[1]).links, 4);
  EXPECT_EQ(tree.MeetingLevel(At(0), At(1)), 1);
  EXPECT_EQ(tree.MeetingLevel(At(0), At(4)), 2);
}

TEST(CutTree, RailsOfSeparatePlanesNeverMeet) {
  ClosSpec spec = LeafSpine();
  spec.nics = 2;
  spec.rail_leaves = true;
  spec.planes = Planes::kByRail;
  Fabric fabric = Build(spec);
  CutTree tree(fabric);
  EXPECT_EQ(tree.MeetingLevel(At(0, 0), At(4, 0)), 2);
  EXPECT_EQ(tree.MeetingLevel(At(0, 0), At(4, 1)), -1);
}

TEST(CutTree, LostAndSlowCablesShowInTheCut) {
  Fabric fabric = Build(LeafSpine());
  LinkId link = *fabric.FindLink(*fabric.Find("leaf1"), *fabric.Find("spine0"));
  fabric.SetBandwidth(link, Bandwidth::GigabitsPerSecond(100));
  {
    CutTree tree(fabric);
    const CutTree::Cut& cut = tree.cut(tree.Path(At(4))[1]);
    EXPECT_DOUBLE_EQ(cut.slowest, 12.5e9);
    EXPECT_DOUBLE_EQ(cut.fastest, 50e9);
  }
  fabric.SetUp(link, false);
  CutTree tree(fabric);
  EXPECT_EQ(tree.cut(tree.Path(At(4))[1]).links, 1);
  EXPECT_EQ(tree.cut(tree.Path(At(0))[1]).links, 2);
}

TEST(CutTree, TreeOrderKeepsHostsOfALeafTogether) {
  Fabric fabric = Build(LeafSpine());
  CutTree tree(fabric);
  std::vector<NodeId> mixed;
  for (int i : {11, 0, 5, 3, 8, 4, 1}) mixed.emplace_back(i);
  std::vector<NodeId> sorted = tree.InTreeOrder(mixed);
  std::vector<int> numbers;
  for (NodeId host : sorted) numbers.push_back(host.value());
  EXPECT_THAT(numbers, ::testing::ElementsAre(0, 1, 3, 4, 5, 8, 11));
}

}  // namespace
}  // namespace weft::topology
