// The trees and rings that the algorithms send along, by node or rank: pure arithmetic.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_PATHS_H_
#define WEFT_COLLECTIVES_ALGORITHMS_PATHS_H_

#include <vector>

#include "collectives/schedule.h"

namespace weft::collectives {

// A node's place in a tree of nodes 0 .. n-1.
struct TreeNode {
  int parent = -1;  // -1: the root
  std::vector<int> children;
};

// ceil(log2(n)); 0 for n <= 1.
int Log2Ceil(int n);

// Binomial tree, root 0. The subtree of a node is the stretch of `BinomialSubtree` nodes that
// begins with it. Children by size of their subtrees, largest first.
TreeNode BinomialNode(int n, int node);
int BinomialSubtree(int n, int node);

// Two binary trees over the same nodes; a node is a leaf in at least one of them, so that two
// halves of a buffer, one in each tree, keep every node's link busy (Sanders, Speck, Traeff,
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009, section 3). Tree 0
// is numbered in order: its leaves are the even nodes. Tree 1 is its mirror image for even n, and
// tree 0 shifted by one node for odd n. `which`: 0 or 1.
TreeNode DoubleTreeNode(int n, int node, int which);
int DoubleTreeRoot(int n, int which);
int DoubleTreeDepth(int n);  // edges from the root to the deepest node of either tree

// The ranks in the order in which ring `channel` visits them. With several hosts each is visited
// once; channels enter and leave a host by different ranks, as far as there are ranks: rails side
// by side. On one host, and beyond the number of ranks, strides that are coprime to the number
// of stations give each channel other neighbours; where a plan directory has flows along a ring of
// the hosts (GroupPlace::planned_ring), all channels take that one.
std::vector<int> RingOrder(const CollectiveSpec& spec, int channel);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_PATHS_H_
