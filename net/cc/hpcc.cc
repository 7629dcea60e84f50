#include "net/cc/hpcc.h"

#include <algorithm>

namespace weft::net {

Hpcc::Hpcc(const PathFacts& facts, const HpccParameters& parameters)
    : facts_(facts),
      parameters_(parameters),
      additive_(static_cast<double>(facts.product().count()) * (1 - parameters.eta) /
                parameters.flows),
      window_(std::max(static_cast<double>(facts.product().count()),
                       static_cast<double>(facts.packet.count()))),
      reference_(window_) {}

void Hpcc::Measure(absl::Span<const HopTelemetry> hops) {
  double most = 0;
  absl::Duration between = absl::ZeroDuration();
  for (size_t i = 0; i < hops.size(); ++i) {
    const HopTelemetry &now = hops[i], &before = last_[i];
    absl::Duration time = now.at - before.at;
    if (time <= absl::ZeroDuration()) continue;
    double queue = std::min(now.queue, before.queue) / (now.bandwidth * facts_.base_rtt);
    double use = queue + ((now.sent - before.sent) / time) / now.bandwidth;
    if (use <= most) continue;
    most = use;
    between = time;
  }
  double weight = std::min(1.0, absl::FDivDuration(between, facts_.base_rtt));
  utilisation_ = (1 - weight) * utilisation_ + weight * most;
}

void Hpcc::OnAck(const AckSample& ack) {
  if (ack.telemetry.empty()) return;
  bool is_known = last_.size() == ack.telemetry.size();
  if (is_known) Measure(ack.telemetry);
  last_.assign(ack.telemetry.begin(), ack.telemetry.end());
  if (!is_known) return;
  bool is_round = ack.now >= round_end_;
  if (utilisation_ >= parameters_.eta || stage_ >= static_cast<int>(parameters_.max_stage)) {
    window_ = reference_ / (utilisation_ / parameters_.eta) + additive_;
    if (is_round) stage_ = 0;
  } else {
    window_ = reference_ + additive_;
    if (is_round) ++stage_;
  }
  auto packet = static_cast<double>(facts_.packet.count());
  window_ =
      std::clamp(window_, packet, std::max(packet, static_cast<double>(facts_.product().count())));
  if (!is_round) return;
  reference_ = window_;
  round_end_ = ack.now + facts_.base_rtt;
}

void Hpcc::Visit(StateVisitor visit) const {
  visit("window_bytes", window_);
  visit("utilisation", utilisation_);
}

}  // namespace weft::net
