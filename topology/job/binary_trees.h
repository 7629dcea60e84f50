// The double binary tree over hosts, numbered as NCCL numbers it (src/graph/trees.cc): the edges of
// the path planner, which collectives follow where a plan has them (collectives/group_place.h).
#ifndef WEFT_TOPOLOGY_JOB_BINARY_TREES_H_
#define WEFT_TOPOLOGY_JOB_BINARY_TREES_H_

#include <vector>

namespace weft::topology {

// Parents of the two trees over 0..size-1, -1 at the roots: every position is a leaf in at least
// one of them, but for position 0 of an odd number. A root has one child; no leaf is further from
// it than ceil(log2(size)) edges.
struct BinaryTrees {
  std::vector<int> first, second;
};
BinaryTrees MakeBinaryTrees(int size);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_BINARY_TREES_H_
