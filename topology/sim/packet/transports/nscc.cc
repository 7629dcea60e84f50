#include "topology/sim/packet/transports/nscc.h"

#include <algorithm>

namespace weft::topology::packet {
namespace {

// The network for which the constants below were chosen.
constexpr double kReferenceRoundTrip = 12e6;                // ps
constexpr double kReferenceProduct = 12e6 * 12.5e9 / 1e12;  // bytes: 100 Gb/s times 12 us
constexpr double kGamma = 0.8;
constexpr double kAverageWeight = 1.0 / 80;
constexpr double kNoDelay = 1e6;  // ps
constexpr double kShrinkMost = 0.5;
constexpr int kApplyPackets = 8;

}  // namespace

Nscc::Nscc(const FlowFacts& facts)
    : packet_(static_cast<double>(facts.packet_bytes)),
      round_trip_(static_cast<double>(facts.round_trip)),
      product_(round_trip_ * facts.bytes_per_picosecond),
      target_(facts.trimming ? 0.75 * round_trip_ : round_trip_),
      window_max_(1.5 * product_) {
  scale_ = product_ / kReferenceProduct;
  double target_scale = target_ / kReferenceRoundTrip;
  alpha_ = 4 * packet_ * scale_ * target_scale / target_;
  fair_ = 5 * packet_ * scale_;
  eta_ = 0.15 * packet_ * scale_;
  adapt_gate_ = window_max_ / 8;
  window_ = window_max_;
}

void Nscc::Bound() { window_ = std::clamp(window_, packet_, window_max_); }

bool Nscc::QuickAdapt(Picoseconds now, bool is_loss, double delay) {
  bool is_asked = is_loss || delay > 4 * target_;
  adapt_asked_ |= is_asked;
  if (now < adapt_end_) return false;
  bool adapts = adapt_end_ != 0 && adapt_asked_ && static_cast<double>(delivered_) < adapt_gate_;
  if (adapts) {
    window_ = std::max(static_cast<double>(delivered_), packet_);
    ignore_ = static_cast<int64_t>(window_);
    increase_ = 0;
    gathered_ = 0;
  }
  adapt_end_ = now + static_cast<Picoseconds>(round_trip_ + target_);
  adapt_asked_ = false;
  delivered_ = 0;
  return adapts;
}

void Nscc::Fulfill(Picoseconds now, int64_t bytes) {
  gathered_ += bytes;
  bool is_due = now - grown_at_ >= static_cast<Picoseconds>(round_trip_);
  if (gathered_ < static_cast<int64_t>(kApplyPackets * packet_) && !is_due) return;
  window_ += increase_ / window_;
  if (is_due) {
    window_ += eta_;
    grown_at_ = now;
  }
  increase_ = 0;
  gathered_ = 0;
}

void Nscc::OnAck(const Ack& ack) {
  double delay = std::max(0.0, static_cast<double>(ack.round_trip) - round_trip_);
  delivered_ += ack.bytes;
  average_delay_ += kAverageWeight * (delay - average_delay_);
  if (QuickAdapt(ack.now, false, delay)) return;
  if (ignore_ > 0) {
    ignore_ -= ack.bytes;
    return;
  }
  if (ack.marked || delay >= kNoDelay) {
    fast_count_ = 0;
    is_fast_ = false;
  } else {
    fast_count_ += ack.bytes;
    if (static_cast<double>(fast_count_) > window_) is_fast_ = true;
  }
  auto bytes = static_cast<double>(ack.bytes);
  if (!ack.marked && delay >= target_) {
    increase_ += fair_ * bytes;
  } else if (!ack.marked) {
    if (is_fast_) {
      window_ += 0.25 * scale_ * bytes;
    } else {
      increase_ += alpha_ * bytes * (target_ - delay);
    }
  } else if (delay >= target_ && average_delay_ > target_ &&
             ack.now - shrunk_at_ > static_cast<Picoseconds>(round_trip_)) {
    double cut = 1 - kGamma * (average_delay_ - target_) / average_delay_;
    window_ *= std::max(kShrinkMost, cut);
    shrunk_at_ = ack.now;
  }
  Fulfill(ack.now, ack.bytes);
  Bound();
}

void Nscc::OnLoss(Picoseconds now, int64_t bytes, int64_t /*in_flight*/) {
  window_ -= static_cast<double>(bytes);
  QuickAdapt(now, true, 0);
  Bound();
}

void Nscc::OnTimeout(Picoseconds now) {
  QuickAdapt(now, true, 0);
  Bound();
}

}  // namespace weft::topology::packet
