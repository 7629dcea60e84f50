#include "net/cc/nscc.h"

#include <algorithm>

namespace weft::net {
namespace {

// The network for which the constants were chosen: 100 Gb/s and 12 us.
constexpr double kReferenceSeconds = 12e-6;
constexpr double kReferenceProduct = 12e-6 * 12.5e9;
constexpr double kNoDelay = 1e-6;  // s
constexpr double kShrinkMost = 0.5;
constexpr double kFastShare = 0.25;
constexpr double kAdaptDelay = 4;  // targets
constexpr int kApplyPackets = 8;

}  // namespace

Nscc::Nscc(const PathFacts& facts, const NsccParameters& parameters)
    : parameters_(parameters),
      packet_(static_cast<double>(facts.packet.count())),
      round_trip_(absl::ToDoubleSeconds(facts.base_rtt)),
      product_(round_trip_ * facts.bandwidth.bytes_per_second()),
      target_(round_trip_ * (parameters.target > 0 ? parameters.target
                             : facts.trimming      ? 0.75
                                                   : 1)),
      window_max_(std::max(packet_, parameters.window_max * product_)) {
  scale_ = product_ / kReferenceProduct;
  alpha_ = parameters_.proportional * packet_ * scale_ * (target_ / kReferenceSeconds) / target_;
  fair_ = parameters_.fair * packet_ * scale_;
  eta_ = parameters_.additive * packet_ * scale_;
  window_ = window_max_;
}

void Nscc::Bound() { window_ = std::clamp(window_, packet_, window_max_); }

bool Nscc::QuickAdapt(absl::Time now, bool is_loss, double delay) {
  adapt_asked_ |= is_loss || delay > kAdaptDelay * target_;
  if (now < adapt_end_) return false;
  bool adapts = adapt_end_ != absl::InfinitePast() && adapt_asked_ &&
                delivered_ < parameters_.adapt_gate * window_max_;
  if (adapts) {
    window_ = std::max(delivered_, packet_);
    ignore_ = window_;
    increase_ = gathered_ = 0;
  }
  adapt_end_ = now + absl::Seconds(round_trip_ + target_);
  adapt_asked_ = false;
  delivered_ = 0;
  return adapts;
}

void Nscc::Apply(absl::Time now, double bytes) {
  gathered_ += bytes;
  bool is_due = now - grown_ >= absl::Seconds(round_trip_);
  if (gathered_ < kApplyPackets * packet_ && !is_due) return;
  window_ += increase_ / window_;
  if (is_due) {
    window_ += eta_;
    grown_ = now;
  }
  increase_ = gathered_ = 0;
}

void Nscc::OnAck(const AckSample& ack) {
  auto bytes = static_cast<double>(ack.acked.count());
  if (ack.rtt > absl::ZeroDuration()) {
    delay_ = std::max(0.0, absl::ToDoubleSeconds(ack.rtt) - round_trip_);
    average_delay_ += parameters_.average * (delay_ - average_delay_);
  }
  delivered_ += bytes;
  if (QuickAdapt(ack.now, false, delay_)) return;
  if (ignore_ > 0) {
    ignore_ -= bytes;
    return;
  }
  if (ack.marked || delay_ >= kNoDelay) {
    fast_count_ = 0;
    is_fast_ = false;
  } else {
    fast_count_ += bytes;
    if (fast_count_ > window_) is_fast_ = true;
  }
  if (!ack.marked && delay_ >= target_) {
    increase_ += fair_ * bytes;
  } else if (!ack.marked && is_fast_) {
    window_ += kFastShare * scale_ * bytes;
  } else if (!ack.marked) {
    increase_ += alpha_ * bytes * (target_ - delay_);
  } else if (delay_ >= target_ && average_delay_ > target_ &&
             ack.now - shrunk_ > absl::Seconds(round_trip_)) {
    double cut = 1 - parameters_.gamma * (average_delay_ - target_) / average_delay_;
    window_ *= std::max(kShrinkMost, cut);
    shrunk_ = ack.now;
  }
  Apply(ack.now, bytes);
  Bound();
}

void Nscc::OnLoss(absl::Time now, Bytes lost, Bytes /*in_flight*/) {
  window_ -= static_cast<double>(lost.count());
  QuickAdapt(now, true, 0);
  Bound();
}

void Nscc::OnTimeout(absl::Time now, int /*consecutive*/) {
  QuickAdapt(now, true, 0);
  Bound();
}

void Nscc::Visit(StateVisitor visit) const {
  visit("window_bytes", window_);
  visit("delay_us", delay_ * 1e6);
  visit("average_delay_us", average_delay_ * 1e6);
  visit("target_us", target_ * 1e6);
}

}  // namespace weft::net
