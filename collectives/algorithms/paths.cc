#include "collectives/algorithms/paths.h"

#include <algorithm>
#include <numeric>

#include "collectives/algorithms/parts.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

// The `index`-th number that is coprime to n: 1, -1, 2, -2, ... as far as they are, then again.
int CoprimeStride(int n, int index) {
  std::vector<int> strides;
  for (int stride = 1; 2 * stride <= std::max(n, 2); ++stride) {
    if (std::gcd(stride, n) != 1) continue;
    strides.push_back(stride);
    if (n - stride > stride) strides.push_back(n - stride);
  }
  return strides[static_cast<size_t>(index) % strides.size()];
}

// ---- The in-order binary tree, its nodes numbered from 1: a node's height is that of its lowest
// bit. Nodes above n are left out, and their left subtrees take their places.

int LowBit(int x) { return x & -x; }

int InOrderParent(int n, int x) {
  if (x == DoubleTreeRoot(n, 0) + 1) return 0;
  int parent = x;
  do {
    const int bit = LowBit(parent);
    parent = (parent ^ bit) | (bit << 1);
  } while (parent > n);
  return parent;
}

std::vector<int> InOrderChildren(int n, int x) {
  std::vector<int> children;
  const int half = LowBit(x) / 2;
  if (half == 0) return children;
  children.push_back(x - half);
  int right = x + half;
  for (int step = half; right > n && step > 1; step /= 2) right -= step / 2;
  if (right <= n) children.push_back(right);
  return children;
}

// Which node of tree 0 `node` stands for in tree 1, and back. Numbered from 0.
int ToTree(int n, int node, int which) {
  if (which == 0) return node;
  return n % 2 == 0 ? n - 1 - node : Around(node, -1, n);
}
int FromTree(int n, int node, int which) {
  if (which == 0) return node;
  return n % 2 == 0 ? n - 1 - node : Around(node, 1, n);
}

}  // namespace

int Log2Ceil(int n) {
  int log = 0;
  while ((int64_t{1} << log) < n) ++log;
  return log;
}

int BinomialSubtree(int n, int node) { return node == 0 ? n : std::min(LowBit(node), n - node); }

TreeNode BinomialNode(int n, int node) {
  TreeNode tree{.parent = node == 0 ? -1 : node - LowBit(node)};
  for (int bit = (node == 0 ? 1 << Log2Ceil(n) : LowBit(node)) / 2; bit >= 1; bit /= 2) {
    if (node + bit < n) tree.children.push_back(node + bit);
  }
  return tree;
}

TreeNode DoubleTreeNode(int n, int node, int which) {
  const int x = ToTree(n, node, which) + 1;
  TreeNode tree;
  const int parent = InOrderParent(n, x);
  if (parent != 0) tree.parent = FromTree(n, parent - 1, which);
  for (int child : InOrderChildren(n, x)) {
    tree.children.push_back(FromTree(n, child - 1, which));
  }
  return tree;
}

int DoubleTreeRoot(int n, int which) {
  int top = 1;
  while (2 * top <= n) top *= 2;
  return FromTree(n, top - 1, which);
}

int DoubleTreeDepth(int n) { return Log2Ceil(n + 1) - 1; }

std::vector<int> RingOrder(const CollectiveSpec& spec, int channel) {
  std::vector<std::vector<int>> stations;
  int rails = 1;
  if (spec.place != nullptr && spec.place->hosts.size() > 1) {
    stations = spec.place->hosts;
    rails = spec.place->ranks_min;
    if (!spec.place->planned_ring.empty()) {
      for (size_t i = 0; i < stations.size(); ++i) {
        stations[i] = spec.place->hosts[static_cast<size_t>(spec.place->planned_ring[i])];
      }
      // Every channel keeps to the pairs of hosts with planned flows.
      rails = spec.channels;
    }
  } else {
    for (int rank = 0; rank < spec.size; ++rank) stations.push_back({rank});
  }
  const int count = static_cast<int>(stations.size());
  const int stride = CoprimeStride(count, channel / rails);
  std::vector<int> order;
  for (int i = 0; i < count; ++i) {
    const int64_t at = int64_t{i} * stride % count;
    std::vector<int> ranks = stations[static_cast<size_t>(at)];
    if (spec.place != nullptr) {  // a host's NUMA nodes one after the other
      std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
        const std::vector<int>& numa = spec.place->numa;
        return numa[static_cast<size_t>(a)] < numa[static_cast<size_t>(b)];
      });
    }
    for (size_t k = 0; k < ranks.size(); ++k) {
      order.push_back(ranks[(k + static_cast<size_t>(channel)) % ranks.size()]);
    }
  }
  return order;
}

}  // namespace weft::collectives
