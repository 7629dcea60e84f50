#include "topology/job/binary_trees.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace weft::topology {
namespace {

TEST(BinaryTrees, TheyGiveEveryPositionOneParentAndTwoChildrenAtMost) {
  for (int size = 1; size <= 130; ++size) {
    BinaryTrees trees = MakeBinaryTrees(size);
    std::vector<int> leaf_in(static_cast<size_t>(size), 0);
    for (const std::vector<int>* tree : {&trees.first, &trees.second}) {
      std::vector<int> children(static_cast<size_t>(size), 0);
      int roots = 0;
      for (int i = 0; i < size; ++i) {
        int parent = (*tree)[static_cast<size_t>(i)];
        roots += parent < 0 ? 1 : 0;
        if (parent >= 0) ++children[static_cast<size_t>(parent)];
        int depth = 0;
        for (int at = i; at >= 0 && depth <= size; at = (*tree)[static_cast<size_t>(at)]) ++depth;
        // Edges: depth - 1, at most ceil(log2(size)).
        EXPECT_LT(std::ldexp(1, depth - 2), size) << "depth " << depth << " of " << size;
      }
      EXPECT_EQ(roots, 1);
      for (int i = 0; i < size; ++i) {
        EXPECT_LE(children[static_cast<size_t>(i)], 2);
        leaf_in[static_cast<size_t>(i)] += children[static_cast<size_t>(i)] == 0 ? 1 : 0;
      }
    }
    for (int i = size % 2; i < size && size > 3; ++i)
      EXPECT_GE(leaf_in[static_cast<size_t>(i)], 1) << i;
  }
}

}  // namespace
}  // namespace weft::topology
