#include "net/paths/path_set.h"

#include <algorithm>

#include "base/status.h"

namespace weft::net {

PathSet::PathSet(const PathSetOptions& options)
    : options_(options), paths_(static_cast<size_t>(options.paths)), live_(options.paths) {
  WEFT_CHECK(options.paths >= 1 && options.paths <= 65535, "paths=" << options.paths);
  WEFT_CHECK(options.weights.empty() || options.weights.size() == paths_.size(),
             "weights=" << options.weights.size() << " paths=" << options.paths);
  for (size_t i = 0; i < options.weights.size(); ++i) paths_[i].weight = options.weights[i];
}

PathId PathSet::UsableFrom(PathId from) const {
  size_t path = from % paths_.size();
  while (!IsUsable(static_cast<PathId>(path))) path = path + 1 == paths_.size() ? 0 : path + 1;
  return static_cast<PathId>(path);
}

void PathSet::FindFastest() {
  if (options_.slow_factor <= 0) return;
  fastest_ = absl::ZeroDuration();
  for (const Path& path : paths_) {
    bool is_measured = path.is_live && path.rtt > absl::ZeroDuration();
    if (is_measured && (fastest_ == absl::ZeroDuration() || path.rtt < fastest_)) {
      fastest_ = path.rtt;
    }
  }
  slow_above_ = fastest_ == absl::ZeroDuration()
                    ? absl::InfiniteDuration()
                    : fastest_ * options_.slow_factor + options_.slow_slack;
}

int64_t PathSet::slow_bytes() const {
  int64_t bytes = 0;
  if (slow_above_ == absl::InfiniteDuration()) return bytes;
  for (const Path& path : paths_) {
    if (path.rtt > slow_above_) bytes += path.bytes;
  }
  return bytes;
}

bool PathSet::OnAck(PathId id, absl::Duration rtt) {
  Path& path = paths_[id];
  bool was_fastest = path.rtt == fastest_;
  if (rtt > absl::ZeroDuration()) {
    path.newest_rtt = rtt;
    path.rtt = path.rtt == absl::ZeroDuration() ? rtt : path.rtt + (rtt - path.rtt) / 8;
  }
  bool comes_back = !path.is_live;
  if (comes_back) {
    path.is_live = true;
    path.probe_at = absl::InfiniteFuture();
    ++live_;
  }
  if (comes_back || was_fastest || path.rtt < fastest_) FindFastest();
  return comes_back;
}

bool PathSet::Leave(PathId id, absl::Time now) {
  Path& path = paths_[id];
  if (!path.is_live || !options_.leaves) return false;
  path.is_live = false;
  --live_;
  path.interval = options_.probe_interval;
  path.probe_at = now + path.interval;
  FindFastest();
  return true;
}

std::optional<PathId> PathSet::NextProbe(absl::Time now) {
  if (live_ == count()) return std::nullopt;
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = paths_[i];
    if (path.is_live || path.probe_at > now) continue;
    path.interval = std::min(path.interval * 2, options_.probe_interval_max);
    path.probe_at = now + path.interval;
    return static_cast<PathId>(i);
  }
  return std::nullopt;
}

absl::Time PathSet::deadline() const {
  absl::Time earliest = absl::InfiniteFuture();
  if (live_ == count()) return earliest;
  for (const Path& path : paths_) earliest = std::min(earliest, path.probe_at);
  return earliest;
}

}  // namespace weft::net
