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
constexpr double kDrainingShare = 0.25;
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

// Whether signals are to be passed over: as the window was cut just now, or what was in flight then
// is still coming in.
bool Nscc::QuickAdapt(absl::Time now, bool is_bad, bool is_loss, double delay, double in_flight) {
  bool passes = ignored_ < ignore_ && is_bad;
  if (!passes && now > adapt_end_) {
    bool is_asked = adapt_asked_ || is_loss || delay > kAdaptDelay * target_;
    if (adapt_end_ != absl::InfinitePast() && is_asked &&
        delivered_ < parameters_.adapt_gate * window_max_) {
      window_ = std::max(delivered_, packet_);
      ignore_ = in_flight;
      ignored_ = 0;
      adapt_asked_ = false;
      passes = true;
    }
    delivered_ = 0;
    adapt_end_ = now + absl::Seconds(round_trip_ + target_);
  }
  if (passes) increase_ = gathered_ = 0;
  return passes;
}

void Nscc::Apply(absl::Time now) {
  bool is_due = now - grown_ >= absl::Seconds(round_trip_);
  if (gathered_ < kApplyPackets * packet_ && !is_due) return;
  window_ += increase_ / window_;
  if (is_due) {
    window_ += eta_;
    grown_ = now;
  }
  increase_ = gathered_ = 0;
}

void Nscc::Average(double delay, bool marked) {
  double sample = !marked && delay > target_ ? kDrainingShare * round_trip_ : delay;
  average_delay_ += parameters_.average * (sample - average_delay_);
}

void Nscc::Grow(double bytes) {
  fast_count_ = delay_ < kNoDelay ? fast_count_ + bytes : 0;
  is_fast_ = delay_ < kNoDelay && (is_fast_ || fast_count_ > window_);
  if (is_fast_) {
    window_ += kFastShare * scale_ * bytes;
  } else {
    increase_ += alpha_ * bytes * (target_ - delay_);
  }
}

void Nscc::Shrink(absl::Time now) {
  is_fast_ = false;
  fast_count_ = 0;
  if (average_delay_ <= target_ || now - shrunk_ <= absl::Seconds(round_trip_)) return;
  double cut = 1 - parameters_.gamma * (average_delay_ - target_) / average_delay_;
  window_ *= std::max(kShrinkMost, cut);
  shrunk_ = now;
}

void Nscc::OnAck(const AckSample& ack) {
  auto bytes = static_cast<double>(ack.acked.count());
  if (ack.rtt > absl::ZeroDuration()) {
    delay_ = std::max(0.0, absl::ToDoubleSeconds(ack.rtt) - round_trip_);
    Average(delay_, ack.marked);
  }
  delivered_ += bytes;
  gathered_ += bytes;
  ignored_ += bytes;
  auto in_flight = static_cast<double>(ack.in_flight.count());
  if (QuickAdapt(ack.now, ack.marked, false, delay_, in_flight)) return;
  if (!ack.marked && delay_ >= target_) {
    increase_ += fair_ * bytes;
  } else if (!ack.marked) {
    Grow(bytes);
  } else if (delay_ >= target_) {
    Shrink(ack.now);
  }
  Bound();
  Apply(ack.now);
  Bound();
}

void Nscc::OnLoss(absl::Time now, Bytes lost, Bytes in_flight) {
  auto bytes = static_cast<double>(lost.count());
  ignored_ += bytes;
  Average(round_trip_, true);
  adapt_asked_ = true;
  if (!QuickAdapt(now, true, true, 0, static_cast<double>(in_flight.count()) + bytes)) {
    window_ -= bytes;
  }
  Bound();
}

void Nscc::OnTimeout(absl::Time now, int /*consecutive*/) {
  OnLoss(now, Bytes(static_cast<int64_t>(packet_)), Bytes(0));
}

void Nscc::Visit(StateVisitor visit) const {
  visit("window_bytes", window_);
  visit("delay_us", delay_ * 1e6);
  visit("average_delay_us", average_delay_ * 1e6);
  visit("target_us", target_ * 1e6);
}

}  // namespace weft::net
