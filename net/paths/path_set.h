// The paths of a connection and what is known of each: alive or left, smoothed round trip, weight.
//
// A path is a number below count(): a source port, a queue pair, an entropy value. The cables that
// it crosses are not known here; paths may share some. A path that shows the first evidence of
// being dead (a packet on it timed out, and none sent on it since was heard of) is left at once and
// probed for its return, with intervals that double. If all are left, all are used.
//
// A path may also be slow: its smoothed round trip is far above that of the fastest. Spread evenly,
// or by comparing two at random, a connection is no faster than the share of its data that goes
// there allows. So a slow path gets one packet at a time, and only beside others: it carries what
// it can, its round trip stays known, a sender with a window does not wait for it, and what is sent
// packet by packet does not crawl on it while a faster path is idle.
//
// Not thread-safe; time is passed in.
#ifndef WEFT_NET_PATHS_PATH_SET_H_
#define WEFT_NET_PATHS_PATH_SET_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace weft::net {

using PathId = uint16_t;

struct PathSetOptions {
  int paths = 1;  // 1 to 65535
  // [path] share of what should go there (a rail's speed); empty: all alike.
  std::vector<double> weights;
  bool leaves = true;                                       // false: dead or not, all are used
  absl::Duration probe_interval = absl::Microseconds(200);  // the first; then twice as long each
  absl::Duration probe_interval_max = absl::Milliseconds(100);
  // Slow is a round trip above `slow_factor` times the fastest path's and `slow_slack`; 0: none is.
  double slow_factor = 0;
  absl::Duration slow_slack;
};

class PathSet {
 public:
  explicit PathSet(const PathSetOptions& options);

  int count() const { return static_cast<int>(paths_.size()); }
  int live() const { return live_; }
  bool IsLive(PathId path) const { return paths_[path].is_live; }
  bool IsSlow(PathId path) const { return paths_[path].rtt > slow_above_; }
  // Live, or nothing is; and not slow, or idle while others are not. There is always one: the
  // fastest.
  bool IsUsable(PathId path) const {
    if (live_ == 0) return true;
    if (!paths_[path].is_live) return false;
    return !IsSlow(path) || (paths_[path].packets == 0 && packets_ > 0);
  }
  // The first usable one from `from` on, round and round.
  PathId UsableFrom(PathId from) const;
  // Weights 1/8, as UCCL's (arXiv 2504.17307). Zero: none was taken yet.
  absl::Duration rtt(PathId path) const { return paths_[path].rtt; }
  // What the next packet may expect there: the newest round trip, once more for each packet on its
  // way, of which that knows nothing. By Little's law it also grows where a path is slow.
  absl::Duration ExpectedRtt(PathId path) const {
    return paths_[path].newest_rtt * (1 + paths_[path].packets);
  }
  double weight(PathId path) const { return paths_[path].weight; }

  // What is on its way there, of packets that are neither acknowledged nor lost.
  void OnSent(PathId path, int64_t bytes) {
    ++packets_;
    ++paths_[path].packets;
    paths_[path].bytes += bytes;
  }
  void OnResolved(PathId path, int64_t bytes) {
    --packets_;
    --paths_[path].packets;
    paths_[path].bytes -= bytes;
  }
  int64_t slow_bytes() const;  // of it, on slow paths

  // Something sent on it was heard of. Zero rtt: not measured. True if the path has come back.
  bool OnAck(PathId path, absl::Duration rtt);
  // Evidence that it is dead. True if it was live.
  bool Leave(PathId path, absl::Time now);
  // A path that was left and whose probe is due now; the next is due later.
  std::optional<PathId> NextProbe(absl::Time now);
  absl::Time deadline() const;  // of the next probe; InfiniteFuture: none

 private:
  struct Path {
    bool is_live = true;
    double weight = 1;
    absl::Duration rtt, newest_rtt;
    absl::Duration interval;
    absl::Time probe_at = absl::InfiniteFuture();
    int32_t packets = 0;
    int64_t bytes = 0;
  };
  void FindFastest();

  PathSetOptions options_;
  std::vector<Path> paths_;
  int live_;
  int32_t packets_ = 0;     // on their way, on all paths
  absl::Duration fastest_;  // of live paths; zero: none was measured
  absl::Duration slow_above_ = absl::InfiniteDuration();
};

}  // namespace weft::net

#endif  // WEFT_NET_PATHS_PATH_SET_H_
