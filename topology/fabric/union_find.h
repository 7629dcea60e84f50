// Which of the things numbered [0, n) have been joined, directly or through others.
#ifndef WEFT_TOPOLOGY_FABRIC_UNION_FIND_H_
#define WEFT_TOPOLOGY_FABRIC_UNION_FIND_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace weft::topology {

class UnionFind {
 public:
  explicit UnionFind(size_t n) : parent_(n) {
    std::iota(parent_.begin(), parent_.end(), int32_t{0});
  }
  // The smallest number of the group that `i` belongs to.
  int32_t Find(int32_t i) {
    while (parent_[static_cast<size_t>(i)] != i) {
      int32_t& parent = parent_[static_cast<size_t>(i)];
      parent = parent_[static_cast<size_t>(parent)];
      i = parent;
    }
    return i;
  }
  void Join(int32_t a, int32_t b) {
    a = Find(a);
    b = Find(b);
    if (a != b) parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int32_t> parent_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_UNION_FIND_H_
