// A penalty for each path, after the "bitmap" of Ultra Ethernet's simulator (uet-htsim 40ccb05):
// paths are taken in turn; one with a penalty pays a point of it and is passed over. A mark costs
// 1, a trimmed packet 4, one that was dropped 4, a timeout 15, which is also the most.
#ifndef WEFT_NET_PATHS_PENALTY_H_
#define WEFT_NET_PATHS_PENALTY_H_

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "net/paths/policy.h"

namespace weft::net {

class Penalty final : public PathPolicy {
 public:
  Penalty(uint64_t seed, int paths);
  absl::string_view name() const override { return "penalty"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;
  void OnAck(const PathAck& ack) override {
    if (ack.marked) Add(ack.path, 1);
  }
  void OnLoss(PathId path, PathLoss loss, absl::Time /*now*/) override {
    Add(path, loss == PathLoss::kTimeout ? kMost : 4);
  }

 private:
  static constexpr int kMost = 15;
  void Add(PathId path, int points) {
    penalties_[path] = static_cast<uint8_t>(std::min(penalties_[path] + points, kMost));
  }
  std::vector<uint8_t> penalties_;
  std::vector<PathId> order_;  // shuffled, so that senders do not march in step
  size_t next_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_PATHS_PENALTY_H_
