// Blocks of ranks, walks over the grid of slots, and hosts packed for their tiles.
#include "topology/order/slot_grid.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "topology/fabric/clos.h"
#include "topology/job/mesh_text.h"
#include "topology/order/rank_order.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;

TEST(SlotGrid, ConsecutiveRanksAreABoxWhereTheNestingAllows) {
  Mesh mesh = *ParseMesh("tp8,dp192,pp8");
  EXPECT_THAT(*ContiguousShape(mesh, 8), ElementsAre(8, 1, 1, 1, 1));
  EXPECT_EQ(GridOf(mesh, *ContiguousShape(mesh, 8)).slots(), 1536);
  mesh = *ParseMesh("tp4,dp6,pp2");
  EXPECT_THAT(*ContiguousShape(mesh, 8), ElementsAre(4, 1, 1, 2, 1));
  mesh = *ParseMesh("tp4,dp3,pp2");
  EXPECT_FALSE(ContiguousShape(mesh, 8).has_value());
}

TEST(SlotGrid, BlocksOfTheContiguousShapeAreConsecutiveRanks) {
  Mesh mesh = *ParseMesh("tp4,dp6,pp2");
  RankBlocks box = BlocksOf(mesh, *ContiguousShape(mesh, 8));
  RankBlocks plain = RankBlocks::Contiguous(48, 8);
  EXPECT_EQ(box.slot_of, plain.slot_of);
  EXPECT_EQ(box.gpu_of, plain.gpu_of);
  EXPECT_EQ(box.rank_at, plain.rank_at);
}

TEST(SlotGrid, EveryShapeIsAPartitionOfTheRanks) {
  Mesh mesh = *ParseMesh("tp2,ep4,dp6,pp2");
  std::vector<BlockShape> shapes = AllShapes(mesh, 8);
  EXPECT_GT(shapes.size(), 5U);
  for (const BlockShape& shape : shapes) {
    RankBlocks blocks = BlocksOf(mesh, shape);
    EXPECT_EQ(blocks.slots * 8, mesh.ranks());
    std::set<int32_t> ranks(blocks.rank_at.begin(), blocks.rank_at.end());
    EXPECT_EQ(static_cast<int>(ranks.size()), mesh.ranks());
    EXPECT_EQ(GridOf(mesh, shape).slots(), blocks.slots);
  }
}

TEST(Walk, VisitsEverySlotOnceTileByTile) {
  SlotGrid grid{{{Axis::kData, 6}, {Axis::kPipeline, 4}}};
  Walk walk{{3, 2}, {1, 0}, {0, 1}};
  std::vector<int32_t> order = Visit(grid, walk);
  // Slot = data + 6 * pipeline. The first tile: data 0-2, pipeline 0-1, pipeline fastest.
  EXPECT_THAT(std::vector<int32_t>(order.begin(), order.begin() + 7),
              ElementsAre(0, 6, 1, 7, 2, 8, 3));
  std::sort(order.begin(), order.end());
  for (int i = 0; i < 24; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_EQ(Describe(grid, walk),
            "tiles of pipeline 2 x data 3, in the order of data 2, pipeline 2");
  for (const Walk& next : Neighbours(grid, walk)) {
    std::vector<int32_t> other = Visit(grid, next);
    std::sort(other.begin(), other.end());
    EXPECT_TRUE(std::adjacent_find(other.begin(), other.end()) == other.end());
  }
}

TEST(PackHosts, TilesStayUnderOneLeafWhereTheyCan) {
  ClosSpec spec;
  spec.hosts_per_group = 8;
  spec.groups = 2;
  spec.pods = 2;
  spec.spines = 2;
  spec.cores = 2;
  Fabric fabric = *BuildClos(spec);
  CutTree tree(fabric);
  // 5 of leaf0, 7 of leaf1, 3 of leaf2, 5 of leaf3.
  std::vector<NodeId> hosts;
  for (int i : {0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 24, 25, 26, 27, 28}) {
    hosts.emplace_back(i);
  }
  std::vector<std::vector<int32_t>> classes = HostClasses(tree, hosts);
  std::vector<int32_t> packed = PackHosts(classes, BlockPlacement(tree, hosts), 4);
  ASSERT_EQ(packed.size(), 20U);
  int under_one_leaf = 0, under_one_pod = 0;
  for (size_t tile = 0; tile < 5; ++tile) {
    std::set<int> leaves, pods;
    for (size_t i = 4 * tile; i < 4 * tile + 4; ++i) {
      int host = hosts[static_cast<size_t>(packed[i])].value();
      leaves.insert(host / 8);
      pods.insert(host / 16);
    }
    under_one_leaf += leaves.size() == 1 ? 1 : 0;
    under_one_pod += pods.size() == 1 ? 1 : 0;
  }
  EXPECT_EQ(under_one_leaf, 3);
  EXPECT_EQ(under_one_pod, 5);
  // Without tiles: the order of the tree, whatever the allocation's.
  std::reverse(hosts.begin(), hosts.end());
  std::vector<int32_t> block = BlockPlacement(tree, hosts);
  EXPECT_EQ(PackHosts(HostClasses(tree, hosts), block, 1), block);
  EXPECT_EQ(hosts[static_cast<size_t>(block[0])], NodeId(0));
}

}  // namespace
}  // namespace weft::topology
