#include "net/cc/hybrid.h"

#include <algorithm>

namespace weft::net {
namespace {
constexpr int kTimeoutsUntilCollapse = 5;  // as Swift's
}  // namespace

Hybrid::Hybrid(const PathFacts& facts, const HybridParameters& parameters)
    : facts_(facts),
      parameters_(parameters),
      recent_(static_cast<size_t>(parameters.samples)),
      window_(parameters_, SwiftWindowMax(facts, parameters)),
      rtt_(facts.base_rtt),
      delay_(facts.base_rtt) {
  window_.Set(parameters.window_start * (facts.product() / facts.packet));
}

void Hybrid::SetBaseRtt(absl::Duration base) {
  facts_.base_rtt = base;
  window_.set_max(SwiftWindowMax(facts_, parameters_));
}

void Hybrid::Estimate(const AckSample& ack) {
  acked_ += ack.acked;
  if (ack.marked) marked_ += ack.acked;
  if (ack.now < round_end_) return;
  if (acked_ > Bytes(0) && round_end_ != absl::InfinitePast()) {
    alpha_ = (1 - parameters_.g) * alpha_ + parameters_.g * (marked_ / acked_);
  }
  acked_ = marked_ = Bytes(0);
  round_end_ = ack.now + rtt_;
}

void Hybrid::OnAck(const AckSample& ack) {
  if (ack.rtt > absl::ZeroDuration()) {
    rtt_ = ack.rtt;
    delay_ = parameters_.samples > 1 ? recent_.Add(ack.rtt) : ack.rtt;
  }
  Estimate(ack);
  absl::Duration target = SwiftTarget(facts_, parameters_, window_.window());
  if (ack.rtt > absl::ZeroDuration() && delay_ >= target) {
    double by_delay = parameters_.beta * absl::FDivDuration(delay_ - target, delay_);
    window_.Shrink(ack.now, rtt_, std::max(by_delay, alpha_ / 2));
  } else if (!ack.marked) {
    window_.Grow(ack.acked / facts_.packet);
  }
}

void Hybrid::OnLoss(absl::Time now, Bytes /*lost*/, Bytes /*in_flight*/) {
  window_.Shrink(now, rtt_, parameters_.max_mdf);
}

void Hybrid::OnTimeout(absl::Time now, int consecutive) {
  if (consecutive >= kTimeoutsUntilCollapse) {
    window_.Collapse();
  } else {
    window_.Shrink(now, rtt_, parameters_.max_mdf);
  }
}

void Hybrid::Visit(StateVisitor visit) const {
  visit("window_packets", window_.window());
  visit("alpha", alpha_);
  visit("target_us",
        absl::ToDoubleMicroseconds(SwiftTarget(facts_, parameters_, window_.window())));
  visit("delay_us", absl::ToDoubleMicroseconds(delay_));
}

}  // namespace weft::net
