// REPS: recycled entropies. Bonato et al., "REPS: Recycled Entropy Packet Spraying for Adaptive
// Load Balancing and Failure Mitigation", arXiv 2407.21625, algorithms 1 and 2.
//
// A circular buffer of eight entropies (here: paths), each with a bit that says whether it may be
// used again:
//
//   acknowledged, unmarked   it goes into the buffer, valid
//   to send                  while exploring, or if nothing is valid: one at random;
//                            else the oldest valid one, which is then spent
//   timeout                  unless exploring: freeze; nothing new is explored, the buffer is
//                            cycled, valid or not, until the freeze ends
//
// Exploring lasts for the first product of bandwidth and round trip.
//
// Departures: a freeze lasts 100 base round trips unless told otherwise (10 ms in the simulator of
// its authors); when it ends, as many packets as the buffer holds are explored anew (uet-htsim's
// 16). Paths that the connection has left are passed over, which the paper, without such, cannot.
#ifndef WEFT_NET_PATHS_REPS_H_
#define WEFT_NET_PATHS_REPS_H_

#include <array>

#include "base/random.h"
#include "net/paths/policy.h"

namespace weft::net {

class Reps final : public PathPolicy {
 public:
  // `explore`: packets at first.
  Reps(uint64_t seed, int explore, absl::Duration freeze)
      : random_(seed), freeze_(freeze), explore_(explore) {}
  absl::string_view name() const override { return "reps"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;
  void OnAck(const PathAck& ack) override;
  void OnLoss(PathId path, PathLoss loss, absl::Time now) override;

 private:
  static constexpr size_t kBuffer = 8;
  static constexpr int kExploreAfterFreeze = 16;
  struct Entry {
    PathId path = 0;
    bool is_valid = false;
  };
  void Thaw(absl::Time now);

  Random random_;
  const absl::Duration freeze_;
  int explore_;
  std::array<Entry, kBuffer> buffer_;
  size_t head_ = 0;    // the next to be written
  size_t filled_ = 0;  // entries that were ever written
  size_t valid_ = 0;
  size_t cycle_ = 0;  // the next while frozen
  bool is_frozen_ = false;
  absl::Time thaw_at_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_PATHS_REPS_H_
