// HPCC: a window from what switches say of themselves. Li et al., "HPCC: High Precision Congestion
// Control", SIGCOMM 2019, algorithm 1; needs HopTelemetry in every acknowledgement and keeps its
// window without.
//
// For each hop, between two acknowledgements (equation 2; B its bandwidth, T the base round trip):
//
//   u = min(queue, queue before) / (B T) + (sent - sent before) / (time between) / B
//   U = (1 - tau / T) U + tau / T max u                tau = min(time between, T)
//
//   U >= eta, or max_stage steps of growth were made    W = Wc / (U / eta) + W_AI
//   else                                                W = Wc + W_AI
//
// Wc becomes W once a round trip; acknowledgements in between start from the same Wc. Rate = W / T.
//
// Departures: a round trip ends by the clock (T since the last) instead of by the sequence number
// that was next then, since sprayed packets have no order. Of several paths the hops are told apart
// by position alone, so that HPCC belongs on one path.
#ifndef WEFT_NET_CC_HPCC_H_
#define WEFT_NET_CC_HPCC_H_

#include <vector>

#include "net/cc/controller.h"

namespace weft::net {

struct HpccParameters {
  double eta = 0.95;
  double max_stage = 5;
  double flows = 100;  // N of W_AI = W_init (1 - eta) / N
};

class Hpcc final : public Controller {
 public:
  Hpcc(const PathFacts& facts, const HpccParameters& parameters);
  absl::string_view name() const override { return "hpcc"; }
  void OnAck(const AckSample& ack) override;
  void OnLoss(absl::Time /*now*/, Bytes /*lost*/, Bytes /*in_flight*/) override {}
  void OnTimeout(absl::Time /*now*/, int /*consecutive*/) override {}
  Bytes window() const override { return WindowBytes(); }
  Bandwidth rate() const override { return WindowBytes() / facts_.base_rtt; }
  void Visit(StateVisitor visit) const override;

 private:
  Bytes WindowBytes() const { return Bytes(static_cast<int64_t>(window_)); }
  void Measure(absl::Span<const HopTelemetry> hops);

  const PathFacts facts_;
  const HpccParameters parameters_;
  const double additive_;      // W_AI, bytes
  double window_, reference_;  // W, Wc, bytes
  double utilisation_ = 1;     // U
  int stage_ = 0;
  std::vector<HopTelemetry> last_;  // [hop]
  absl::Time round_end_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_HPCC_H_
