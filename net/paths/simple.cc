#include "net/paths/simple.h"

#include <algorithm>

namespace weft::net {

PathId DrawUsable(const PathSet& paths, Random& random) {
  auto count = static_cast<uint64_t>(paths.count());
  // While few are left a draw hits a usable one almost at once; when few are usable, it is drawn by
  // its rank among them.
  if (paths.live() == 0 || 2 * paths.live() >= paths.count()) {
    while (true) {
      auto path = static_cast<PathId>(random.Below(count));
      if (paths.IsUsable(path)) return path;
    }
  }
  uint64_t rank = random.Below(static_cast<uint64_t>(paths.live()));
  PathId path = paths.UsableFrom(0);
  for (; rank > 0; --rank) path = paths.UsableFrom(static_cast<PathId>(path + 1));
  return path;
}

PathId SinglePath::Choose(const PathSet& paths, absl::Time /*now*/) {
  path_ = paths.UsableFrom(path_);
  return path_;
}

PathId RoundRobin::Choose(const PathSet& paths, absl::Time /*now*/) {
  double sum = 0;
  int best = -1;
  auto count = paths.count();
  for (int i = 0; i < count; ++i) {
    auto path = static_cast<PathId>((next_ + i) % count);
    if (!paths.IsUsable(path)) continue;
    credit_[path] += paths.weight(path);
    sum += paths.weight(path);
    if (best < 0 || credit_[path] > credit_[static_cast<size_t>(best)]) best = path;
  }
  credit_[static_cast<size_t>(best)] -= sum;
  return static_cast<PathId>(best);
}

PathId RandomPath::Choose(const PathSet& paths, absl::Time /*now*/) {
  return DrawUsable(paths, random_);
}

PathId TwoChoices::Choose(const PathSet& paths, absl::Time /*now*/) {
  PathId a = DrawUsable(paths, random_), b = DrawUsable(paths, random_);
  return paths.ExpectedRtt(b) < paths.ExpectedRtt(a) ? b : a;
}

PathId Planned::Choose(const PathSet& paths, absl::Time /*now*/) {
  if (!plan_.empty()) {
    for (size_t i = 0; i < plan_.size(); ++i) {
      PathId path = plan_[next_];
      next_ = next_ + 1 == plan_.size() ? 0 : next_ + 1;
      if (paths.IsUsable(path)) return path;
    }
  }
  for (PathId path : spare_) {
    if (paths.IsUsable(path)) return path;
  }
  // Nothing of the plan is left: anything that works.
  return paths.UsableFrom(static_cast<PathId>(other_++ % static_cast<size_t>(paths.count())));
}

}  // namespace weft::net
