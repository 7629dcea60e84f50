// MegaScale's hybrid: delay sets the target, ECN gives the fast answer.
//
// Jiang et al., "MegaScale", NSDI 2024 (arXiv 2402.15627), section 3.6, says this much: "an
// algorithm that combines the principles of Swift and DCQCN, which integrates the precise
// measurement of Round-Trip Time (RTT) with the rapid congestion response capabilities of Explicit
// Congestion Notification (ECN)"; to raise throughput and keep PFC from firing. No formula is
// public. This is our reading:
//
//   Swift's window and target (swift.h), and a congestion estimate of marks as DCQCN's and DCTCP's:
//   once a round trip, with F the share of acknowledged bytes that were marked in it,
//       alpha = (1 - g) alpha + g F          alpha = 1 at the start, as in DCQCN
//   neither mark nor d >= target             grows, as Swift
//   a mark, or d >= target                   at most once a round trip
//       cwnd *= 1 - min(max_mdf, max(beta (d - target) / d if d >= target, alpha / 2 if marked))
//
// The first mark of a round trip cuts at once, before the queue has grown to the target, which is
// what keeps PFC quiet; the delay keeps the queue where marks are rare or missing (thresholds too
// high, a switch without ECN), and marks below the target stop growth. Losses and timeouts are
// answered as Swift answers them.
#ifndef WEFT_NET_CC_HYBRID_H_
#define WEFT_NET_CC_HYBRID_H_

#include "net/cc/swift.h"

namespace weft::net {

struct HybridParameters : SwiftParameters {
  double g = 1.0 / 16;  // DCTCP's
};

class Hybrid final : public Controller {
 public:
  Hybrid(const PathFacts& facts, const HybridParameters& parameters);
  absl::string_view name() const override { return "hybrid"; }
  void OnAck(const AckSample& ack) override;
  void OnLoss(absl::Time now, Bytes lost, Bytes in_flight) override;
  void OnTimeout(absl::Time now, int consecutive) override;
  Bytes window() const override { return WindowOf(window_.window(), facts_); }
  Bandwidth rate() const override { return RateOf(window_.window(), facts_, rtt_); }
  void Visit(StateVisitor visit) const override;

 private:
  void Estimate(const AckSample& ack);

  const PathFacts facts_;
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
