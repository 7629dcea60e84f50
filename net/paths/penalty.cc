#include "net/paths/penalty.h"

#include <numeric>

namespace weft::net {

Penalty::Penalty(uint64_t seed, int paths)
    : penalties_(static_cast<size_t>(paths)), order_(static_cast<size_t>(paths)) {
  std::iota(order_.begin(), order_.end(), PathId{0});
  Random(seed).Shuffle(order_);
}

PathId Penalty::Choose(const PathSet& paths, absl::Time /*now*/) {
  // Each round takes a point off every path, so that kMost rounds find one.
  for (size_t tries = order_.size() * (kMost + 1); tries > 0; --tries) {
    PathId path = order_[next_];
    next_ = next_ + 1 == order_.size() ? 0 : next_ + 1;
    if (!paths.IsUsable(path)) continue;
    if (penalties_[path] == 0) return path;
    --penalties_[path];
  }
  return paths.UsableFrom(order_[next_]);
}

}  // namespace weft::net
