#include "net/cc/swift.h"

#include <algorithm>
#include <cmath>

namespace weft::net {
namespace {

constexpr size_t kSamplesMax = 63;
constexpr int kTimeoutsUntilCollapse = 5;  // RETX_RESET_THRESHOLD

double InPackets(Bytes bytes, const PathFacts& facts) { return bytes / facts.packet; }

}  // namespace

RecentMedian::RecentMedian(size_t capacity)
    : capacity_(std::clamp<size_t>(capacity, 1, kSamplesMax)) {
  ring_.reserve(capacity_);
  sorted_.reserve(capacity_);
}

absl::Duration RecentMedian::Add(absl::Duration delay) {
  if (ring_.size() == capacity_) {
    sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), ring_[oldest_]));
    ring_[oldest_] = delay;
    oldest_ = (oldest_ + 1) % capacity_;
  } else {
    ring_.push_back(delay);
  }
  sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), delay), delay);
  return sorted_[(sorted_.size() - 1) / 2];
}

void SwiftWindow::Set(double packets) {
  window_ = std::clamp(packets, parameters_.window_min, max_);
}

void SwiftWindow::Grow(double packets) {
  double step = parameters_.ai * packets;
  Set(window_ + (window_ >= 1 ? step / window_ : step));
}

void SwiftWindow::Shrink(absl::Time now, absl::Duration rtt, double cut) {
  if (now - shrunk_ < rtt) return;
  shrunk_ = now;
  Set(window_ * (1 - std::min(cut, parameters_.max_mdf)));
}

void SwiftWindow::OnDelay(absl::Time now, absl::Duration rtt, absl::Duration delay,
                          absl::Duration target, double packets) {
  if (delay < target) {
    Grow(packets);
  } else {
    Shrink(now, rtt, parameters_.beta * absl::FDivDuration(delay - target, delay));
  }
}

double SwiftWindowMax(const PathFacts& facts, const SwiftParameters& parameters) {
  return std::max(1.0, parameters.window_max * InPackets(facts.product(), facts));
}

absl::Duration SwiftTarget(const PathFacts& facts, const SwiftParameters& parameters,
                           double packets) {
  double floor = 1 / std::sqrt(parameters.fs_max);
  double alpha = parameters.fs_range / (1 / std::sqrt(parameters.fs_min) - floor);
  double scaling = alpha / std::sqrt(packets) - alpha * floor;
  scaling = std::clamp(scaling, 0.0, parameters.fs_range);
  return facts.base_rtt * (1 + parameters.hop * facts.hops + scaling);
}

Bytes WindowOf(double packets, const PathFacts& facts) {
  double bytes = std::max(packets, 1.0) * static_cast<double>(facts.packet.count());
  return Bytes(static_cast<int64_t>(bytes));
}

Bandwidth RateOf(double packets, const PathFacts& facts, absl::Duration rtt) {
  if (packets >= 1) return {};
  double bytes = packets * static_cast<double>(facts.packet.count());
  return Bandwidth::BytesPerSecond(bytes / absl::ToDoubleSeconds(std::max(rtt, facts.base_rtt)));
}

Swift::Swift(const PathFacts& facts, const SwiftParameters& parameters)
    : facts_(facts),
      parameters_(parameters),
      median_(parameters.samples > 1),
      recent_(static_cast<size_t>(parameters.samples)),
      fabric_(parameters_, SwiftWindowMax(facts, parameters)),
      endpoint_(fabric_),
      rtt_(facts.base_rtt),
      delay_(facts.base_rtt) {
  // A first window of what the path holds: the paper leaves it to the transport.
  fabric_.Set(parameters.window_start * InPackets(facts.product(), facts));
}

void Swift::SetBaseRtt(absl::Duration base) {
  facts_.base_rtt = base;
  fabric_.set_max(SwiftWindowMax(facts_, parameters_));
  endpoint_.set_max(SwiftWindowMax(facts_, parameters_));
}

void Swift::OnAck(const AckSample& ack) {
  double packets = InPackets(ack.acked, facts_);
  if (ack.rtt <= absl::ZeroDuration()) return;
  rtt_ = ack.rtt;
  delay_ = median_ ? recent_.Add(ack.rtt) : ack.rtt;
  fabric_.OnDelay(ack.now, rtt_, delay_, target(), packets);
  absl::Duration held_target =
      std::max(absl::Microseconds(parameters_.endpoint_us), facts_.base_rtt);
  endpoint_.OnDelay(ack.now, rtt_, ack.endpoint, held_target, packets);
}

void Swift::OnLoss(absl::Time now, Bytes /*lost*/, Bytes /*in_flight*/) {
  fabric_.Shrink(now, rtt_, parameters_.max_mdf);
}

void Swift::OnTimeout(absl::Time now, int consecutive) {
  if (consecutive >= kTimeoutsUntilCollapse) {
    fabric_.Collapse();
  } else {
    fabric_.Shrink(now, rtt_, parameters_.max_mdf);
  }
}

double Swift::packets() const { return std::min(fabric_.window(), endpoint_.window()); }
Bytes Swift::window() const { return WindowOf(packets(), facts_); }
Bandwidth Swift::rate() const { return RateOf(packets(), facts_, rtt_); }

void Swift::Visit(StateVisitor visit) const {
  visit("window_packets", fabric_.window());
  visit("endpoint_packets", endpoint_.window());
  visit("target_us", absl::ToDoubleMicroseconds(target()));
  visit("delay_us", absl::ToDoubleMicroseconds(delay_));
}

}  // namespace weft::net
