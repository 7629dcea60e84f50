// DCQCN: a rate from ECN marks alone. Zhu et al., "Congestion Control for Large-Scale RDMA
// Deployments", SIGCOMM 2015, section 3 and figures 6 and 7.
//
// The receiver (NP) turns marked packets into at most one notification (CNP) each N = 50 us. On
// each, the sender (RP) does (equation 1)
//
//   Rt = Rc,  Rc = Rc (1 - alpha / 2),  alpha = (1 - g) alpha + g
//
// and starts its timer and byte counter anew; without one for K = 55 us (equation 2)
//
//   alpha = (1 - g) alpha.
//
// Each T = 55 us (count iT) and each B = 10 MB sent (count iB) are an increase (equations 3 and 4):
//
//   max(iT, iB) < F                 Rc = (Rt + Rc) / 2                        fast recovery
//   min(iT, iB) > F                 Rt += i R_HAI, then the same average      hyper, i = min - F
//   else                            Rt += R_AI,    then the same average      additive
//
// A flow starts at line rate; Rt never exceeds it.
//
// Departures: acknowledgements carry each packet's mark and this side makes CNPs of them, by the
// NP's rule. R_AI is C / 1000 (the paper's 40 Mb/s at its 40 Gb/s), so that it scales; R_HAI, which
// the paper leaves open, is ten times that. The NIC's own retransmission is the transport's: losses
// and timeouts change nothing here, as in the paper, which relies on PFC. `window` above 0 also
// bounds what is in flight to that many times Rc times the base round trip (HPCC's "+win").
#ifndef WEFT_NET_CC_DCQCN_H_
#define WEFT_NET_CC_DCQCN_H_

#include "net/cc/controller.h"

namespace weft::net {

struct DcqcnParameters {
  double g = 1.0 / 256;
  double cnp_us = 50;           // N
  double alpha_us = 55;         // K
  double increase_us = 55;      // T
  double increase_bytes = 1e7;  // B
  double fast_steps = 5;        // F
  double additive = 1e-3;       // R_AI, shares of the line rate
  double hyper = 1e-2;          // R_HAI
  double rate_min = 1e-3;       // likewise
  double window = 0;            // products of Rc and the base round trip; 0: none
};

class Dcqcn final : public Controller {
 public:
  Dcqcn(const PathFacts& facts, const DcqcnParameters& parameters);
  absl::string_view name() const override { return "dcqcn"; }
  void SetBaseRtt(absl::Duration base) override { facts_.base_rtt = base; }
  void Advance(absl::Time now) override;
  void OnSent(absl::Time now, Bytes bytes) override;
  void OnAck(const AckSample& ack) override;
  void OnLoss(absl::Time /*now*/, Bytes /*lost*/, Bytes /*in_flight*/) override {}
  void OnTimeout(absl::Time /*now*/, int /*consecutive*/) override {}
  Bytes window() const override;
  Bandwidth rate() const override { return Bandwidth::BytesPerSecond(rate_); }
  absl::Time deadline() const override;
  void Visit(StateVisitor visit) const override;

 private:
  void OnNotification(absl::Time now);
  void Increase();

  PathFacts facts_;
  const DcqcnParameters parameters_;
  const double line_;     // bytes a second, as all rates here
  double rate_, target_;  // Rc, Rt
  double alpha_ = 1;
  double sent_ = 0;  // bytes since the byte counter's last count
  int timer_count_ = 0, byte_count_ = 0;
  bool has_cut_ = false;  // before the first notification there is nothing to recover
  absl::Time notified_ = absl::InfinitePast();
  absl::Time alpha_at_ = absl::InfiniteFuture();
  absl::Time increase_at_ = absl::InfiniteFuture();
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_DCQCN_H_
