// NSCC, the sender's congestion control of Ultra Ethernet. UEC specification 1.0, section 3.6.13;
// after SMaRTT (arXiv 2404.01630).
//
// With T the base round trip, D = T C, MSS the packet, Q the target queueing delay (T, or 0.75 T
// with trimming), a = D / (100 Gb/s 12 us), b = Q / 12 us; per acknowledgement with queueing delay
// d = rtt - T:
//
//   no mark, d < Q     increase += 4 MSS a b / Q  acked (Q - d);
//                      after a whole window with d < 1 us instead at once cwnd += 0.25 a acked
//   no mark, d >= Q    increase += 5 MSS a acked                 (the queue is draining: fairness)
//   mark,    d >= Q    once a round trip, if the average delay (weight 1/80) is above Q:
//                      cwnd *= max(1/2, 1 - 0.8 (average - Q) / average)
//   mark,    d < Q     keeps: another path will do
//
// Each 8 packets or T: cwnd += increase / cwnd; each T besides: cwnd += 0.15 MSS a. The average
// counts a long delay without a mark as T / 4 (a queue that drains), and a loss as T (a full
// queue). A loss takes its bytes off. Quick adapt, once each T + Q: if there was a loss or d > 4 Q,
// and less than 1/8 of the largest window was delivered in the period, cwnd = what was delivered,
// and marks and losses of as much as was in flight are passed over: they tell of the congestion
// that was answered just now. cwnd is at most 1.5 D, and starts there.
//
// Constants are the specification's, as its own simulator has them (uet-htsim 40ccb05). Departures:
// none known; its "trimmed" NACK is OnLoss() here, and so is each timeout, of a packet.
#ifndef WEFT_NET_CC_NSCC_H_
#define WEFT_NET_CC_NSCC_H_

#include <cstdint>

#include "net/cc/controller.h"

namespace weft::net {

struct NsccParameters {
  double target = 0;        // Q, base round trips; 0: 1, with trimming 0.75
  double window_max = 1.5;  // products
  double proportional = 4;  // of alpha
  double fair = 5;
  double additive = 0.15;  // eta
  double gamma = 0.8;
  double average = 1.0 / 80;  // weight of the newest delay
  double adapt_gate = 0.125;  // of the largest window
};

class Nscc final : public Controller {
 public:
  Nscc(const PathFacts& facts, const NsccParameters& parameters);
  absl::string_view name() const override { return "nscc"; }
  void OnAck(const AckSample& ack) override;
  void OnLoss(absl::Time now, Bytes lost, Bytes in_flight) override;
  void OnTimeout(absl::Time now, int consecutive) override;
  Bytes window() const override { return Bytes(static_cast<int64_t>(window_)); }
  void Visit(StateVisitor visit) const override;

 private:
  bool QuickAdapt(absl::Time now, bool is_bad, bool is_loss, double delay, double in_flight);
  void Average(double delay, bool marked);
  void Grow(double bytes);
  void Shrink(absl::Time now);
  void Apply(absl::Time now);
  void Bound();

  const NsccParameters parameters_;
  // Bytes and seconds.
  const double packet_, round_trip_, product_, target_, window_max_;
  double scale_, alpha_, fair_, eta_;
  double window_;
  double increase_ = 0, gathered_ = 0;
  double delay_ = 0, average_delay_ = 0;
  absl::Time shrunk_ = absl::InfinitePast(), grown_ = absl::InfinitePast();
  absl::Time adapt_end_ = absl::InfinitePast();
  double delivered_ = 0;  // in the period of quick adapt
  bool adapt_asked_ = false;
  double ignore_ = 0, ignored_ = 0;  // bytes: that were in flight at the cut; heard of since
  double fast_count_ = 0;            // bytes acknowledged without delay
  bool is_fast_ = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_NSCC_H_
