// MegaScale's hybrid: delay sets the target, ECN gives the fast answer.
//
// Jiang et al., "MegaScale", NSDI 2024 (arXiv 2402.15627), section 3.6, says this much: "an
// algorithm that combines the principles of Swift and DCQCN, which integrates the precise
// measurement of Round-Trip Time (RTT) with the rapid congestion response capabilities of Explicit
// Congestion Notification (ECN)"; to raise throughput and keep PFC from firing. No formula is
// public. This is our reading:
//
//   Swift's window and target (swift.h), and the share of marks as DCTCP's: once a round trip, with
//   F the share of acknowledged bytes that were marked in it,
//       alpha = (1 - g) alpha + g F          alpha = 1 at the start, as in DCQCN
//   no mark, d < target                      grows, as Swift
//   a mark, d < target                       stays
//   d >= target                              at most once a round trip
//       cwnd *= 1 - min(max_mdf, max(beta (d - target) / d, alpha / 2))
//
// So the first mark ends growth long before the queue has grown to the target, and how much of a
// round trip was marked says how deep the cut must be, which one delay does not. g = 1: the last
// round trip alone; the transfers of a collective are over before an average of sixteen (DCTCP's)
// has forgotten its beginning. Marks alone do not cut: with many paths some packets are marked in
// every round trip, and leaving such a path is up to the path policy. A reading in which the first
// mark of a round trip cut at once, by DCTCP's alpha, was tried: with sprayed all-to-alls it had 8
// % less throughput and pauses that were half as long again. Losses and timeouts are answered as
// Swift answers them.
#ifndef WEFT_NET_CC_HYBRID_H_
#define WEFT_NET_CC_HYBRID_H_

#include "net/cc/swift.h"

namespace weft::net {

struct HybridParameters : SwiftParameters {
  double g = 1;
};

class Hybrid final : public Controller {
 public:
  Hybrid(const PathFacts& facts, const HybridParameters& parameters);
  absl::string_view name() const override { return "hybrid"; }
  void SetBaseRtt(absl::Duration base) override;
  void OnAck(const AckSample& ack) override;
  void OnLoss(absl::Time now, Bytes lost, Bytes in_flight) override;
  void OnTimeout(absl::Time now, int consecutive) override;
  Bytes window() const override { return WindowOf(window_.window(), facts_); }
  Bandwidth rate() const override { return RateOf(window_.window(), facts_, rtt_); }
  void Visit(StateVisitor visit) const override;

 private:
  void Estimate(const AckSample& ack);

  PathFacts facts_;
  const HybridParameters parameters_;
  RecentMedian recent_;
  SwiftWindow window_;
  double alpha_ = 1;
  Bytes acked_, marked_;  // in this round
  absl::Time round_end_ = absl::InfinitePast();
  absl::Duration rtt_, delay_;
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_HYBRID_H_
