// No congestion control: a window that never changes, a number of times what the path holds. What
// remains when the fabric is lossless, or paths are planned and never shared; and the baseline.
#ifndef WEFT_NET_CC_FIXED_WINDOW_H_
#define WEFT_NET_CC_FIXED_WINDOW_H_

#include <algorithm>

#include "net/cc/controller.h"

namespace weft::net {

struct FixedWindowParameters {
  double window = 1.5;  // products of bandwidth and base round trip
};

class FixedWindow final : public Controller {
 public:
  FixedWindow(const PathFacts& facts, const FixedWindowParameters& parameters)
      : window_(std::max(facts.packet,
                         Bytes(static_cast<int64_t>(
                             parameters.window * static_cast<double>(facts.product().count()))))) {}
  absl::string_view name() const override { return "fixed"; }
  void OnAck(const AckSample& /*ack*/) override {}
  void OnLoss(absl::Time /*now*/, Bytes /*lost*/, Bytes /*in_flight*/) override {}
  void OnTimeout(absl::Time /*now*/, int /*consecutive*/) override {}
  Bytes window() const override { return window_; }
  void Visit(StateVisitor visit) const override {
    visit("window_bytes", static_cast<double>(window_.count()));
  }

 private:
  Bytes window_;
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_FIXED_WINDOW_H_
