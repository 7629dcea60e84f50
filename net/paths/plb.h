// PLB: one path, left when it stays congested. Qureshi et al., "PLB: Congestion Signals are Simple
// and Effective for Network Load Balancing", SIGCOMM 2022, section 3.
//
// A round is a round trip; it is congested when at least K of its bytes were marked. After M
// congested rounds in a row the flow moves to another path at random; so it does on a timeout, and
// then waits out a random pause of 1 to 2 pauses before congestion may move it again, so that flows
// that met the same failure do not all move back. K = 0.5, M = 3 (Linux: tcp_plb_cong_thresh 0.5,
// tcp_plb_rehash_rounds 12; the paper 3).
//
// Departure: a round trip above twice the base counts as a mark, for fabrics without ECN.
#ifndef WEFT_NET_PATHS_PLB_H_
#define WEFT_NET_PATHS_PLB_H_

#include "base/random.h"
#include "net/paths/policy.h"

namespace weft::net {

class Plb final : public PathPolicy {
 public:
  Plb(uint64_t seed, int paths, absl::Duration base_rtt);
  absl::string_view name() const override { return "plb"; }
  PathId Choose(const PathSet& paths, absl::Time now) override;
  void OnAck(const PathAck& ack) override;
  void OnLoss(PathId path, PathLoss loss, absl::Time now) override;

 private:
  static constexpr double kCongested = 0.5;  // K
  static constexpr int kRounds = 3;          // M
  static constexpr absl::Duration kPause = absl::Milliseconds(1);
  void EndRound(absl::Time now);

  const absl::Duration base_rtt_;
  Random random_;
  PathId path_;
  bool moves_ = false;  // another path next time
  Bytes acked_, marked_;
  int congested_rounds_ = 0;
  absl::Duration rtt_;
  absl::Time round_end_ = absl::InfinitePast(), paused_until_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_PATHS_PLB_H_
