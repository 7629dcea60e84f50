// The trees and rings that algorithms send along.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/paths.h"
#include "tests/collectives/schedule_cases.h"

namespace weft::collectives {
namespace {

TEST(PathsTest, EveryNodeIsALeafOfOneTreeOfTwo) {
  for (int n = 1; n <= 70; ++n) {
    for (int which : {0, 1}) {
      int edges = 0;
      for (int node = 0; node < n; ++node) {
        const TreeNode tree = DoubleTreeNode(n, node, which);
        EXPECT_EQ(tree.parent < 0, node == DoubleTreeRoot(n, which));
        EXPECT_LE(tree.children.size(), 2u);
        for (int child : tree.children) {
          ++edges;
          EXPECT_EQ(DoubleTreeNode(n, child, which).parent, node);
        }
        int depth = 0;
        for (int at = node; DoubleTreeNode(n, at, which).parent >= 0 && depth <= n; ++depth) {
          at = DoubleTreeNode(n, at, which).parent;
        }
        EXPECT_LE(depth, DoubleTreeDepth(n));
        EXPECT_TRUE(tree.children.empty() || DoubleTreeNode(n, node, 1 - which).children.empty())
            << "node " << node << " of " << n;
      }
      EXPECT_EQ(edges, n - 1);
    }
  }
}

TEST(PathsTest, RingsVisitEveryRankOnceAndLeaveHostsByOtherRanks) {
  for (int n = 1; n <= 20; ++n) {
    for (int hosts : {1, 2, 3}) {
      CollectiveSpec spec{.size = n};
      spec.place = PlaceFor(n, hosts);
      for (int channel = 0; channel < 5; ++channel) {
        std::vector<int> order = RingOrder(spec, channel);
        std::sort(order.begin(), order.end());
        for (int r = 0; r < n; ++r) ASSERT_EQ(order[static_cast<size_t>(r)], r);
      }
    }
  }
  CollectiveSpec spec{.size = 4};
  spec.place = std::make_shared<const GroupPlace>(std::vector<std::string>{"a", "a", "b", "b"});
  EXPECT_EQ(RingOrder(spec, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(RingOrder(spec, 1), (std::vector<int>{1, 0, 3, 2}));
  // A host's NUMA nodes one after the other.
  std::vector<RankPlace> places(6);
  for (int r = 0; r < 6; ++r) {
    places[static_cast<size_t>(r)].host = r < 4 ? "a" : "b";
    places[static_cast<size_t>(r)].numa = r % 2;
  }
  CollectiveSpec numa{.size = 6};
  numa.place = std::make_shared<const GroupPlace>(places);
  EXPECT_EQ(RingOrder(numa, 0), (std::vector<int>{0, 2, 1, 3, 4, 5}));
}

}  // namespace
}  // namespace weft::collectives
