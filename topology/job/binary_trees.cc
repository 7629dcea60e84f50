#include "topology/job/binary_trees.h"

#include <cstddef>

namespace weft::topology {
namespace {

std::vector<int> MakeBinaryTree(int size) {
  std::vector<int> parent(static_cast<size_t>(size), -1);
  for (int i = 1; i < size; ++i) {
    int bit = i & -i;
    int up = (i & (bit << 1)) != 0 ? i - bit : i + bit;
    parent[static_cast<size_t>(i)] = up < size ? up : i - bit;
  }
  return parent;
}

}  // namespace

BinaryTrees MakeBinaryTrees(int size) {
  BinaryTrees trees;
  trees.first = MakeBinaryTree(size);
  trees.second.assign(trees.first.size(), -1);
  // Mirrored where the size is even, shifted by one where it is odd: leaves become inner.
  auto moved = [&](int i) { return size % 2 == 0 ? size - 1 - i : (i + 1) % size; };
  for (int i = 0; i < size; ++i) {
    int parent = trees.first[static_cast<size_t>(i)];
    trees.second[static_cast<size_t>(moved(i))] = parent < 0 ? -1 : moved(parent);
  }
  return trees;
}

}  // namespace weft::topology
