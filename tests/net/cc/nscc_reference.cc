#include "tests/net/cc/nscc_reference.h"

#include <algorithm>

namespace weft::net {
namespace {

using Picoseconds = NsccReference::Picoseconds;

// The network for which the constants below were chosen.
constexpr double kReferenceRoundTrip = 12e6;                // ps
constexpr double kReferenceProduct = 12e6 * 12.5e9 / 1e12;  // bytes: 100 Gb/s times 12 us
constexpr double kGamma = 0.8;
constexpr double kAverageWeight = 1.0 / 80;
constexpr double kDrainingShare = 0.25;
constexpr double kNoDelay = 1e6;  // ps
constexpr double kShrinkMost = 0.5;
constexpr int kApplyPackets = 8;

}  // namespace

NsccReference::NsccReference(const Facts& facts)
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

void NsccReference::Bound() { window_ = std::clamp(window_, packet_, window_max_); }

// Whether signals are to be passed over: as the window was cut just now, or what was in flight then
// is still coming in.
bool NsccReference::QuickAdapt(Picoseconds now, bool is_bad, bool is_loss, double delay,
                               int64_t in_flight) {
  bool passes = false;
  if (ignored_ < ignore_ && is_bad) {
    passes = true;
  } else if (now > adapt_end_) {
    bool is_asked = adapt_asked_ || is_loss || delay > 4 * target_;
    if (adapt_end_ != 0 && is_asked && static_cast<double>(delivered_) < adapt_gate_) {
      window_ = std::max(static_cast<double>(delivered_), packet_);
      ignore_ = in_flight;
      ignored_ = 0;
      adapt_asked_ = false;
      passes = true;
    }
    delivered_ = 0;
    adapt_end_ = now + static_cast<Picoseconds>(round_trip_ + target_);
  }
  if (passes) {
    increase_ = 0;
    gathered_ = 0;
  }
  return passes;
}

void NsccReference::Fulfill(Picoseconds now) {
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

// A long delay without a mark is of a queue that drains: it hardly counts.
void NsccReference::Average(double delay, bool marked) {
  double sample = !marked && delay > target_ ? kDrainingShare * round_trip_ : delay;
  average_delay_ += kAverageWeight * (sample - average_delay_);
}

void NsccReference::OnAck(const Ack& ack) {
  double delay = std::max(0.0, static_cast<double>(ack.round_trip) - round_trip_);
  delivered_ += ack.bytes;
  gathered_ += ack.bytes;
  ignored_ += ack.bytes;
  Average(delay, ack.marked);
  if (QuickAdapt(ack.now, ack.marked, false, delay, ack.in_flight)) return;
  auto bytes = static_cast<double>(ack.bytes);
  if (!ack.marked && delay >= target_) {
    increase_ += fair_ * bytes;
  } else if (!ack.marked) {
    Grow(bytes, delay);
  } else if (delay >= target_) {
    Shrink(ack.now);
  }
  Bound();
  Fulfill(ack.now);
  Bound();
}

void NsccReference::Grow(double bytes, double delay) {
  fast_count_ = delay < kNoDelay ? fast_count_ + bytes : 0;
  is_fast_ = delay < kNoDelay && (is_fast_ || fast_count_ > window_);
  if (is_fast_) {
    window_ += 0.25 * scale_ * bytes;
  } else {
    increase_ += alpha_ * bytes * (target_ - delay);
  }
}

void NsccReference::Shrink(Picoseconds now) {
  is_fast_ = false;
  fast_count_ = 0;
  if (average_delay_ <= target_ || now - shrunk_at_ <= static_cast<Picoseconds>(round_trip_))
    return;
  double cut = 1 - kGamma * (average_delay_ - target_) / average_delay_;
  window_ *= std::max(kShrinkMost, cut);
  shrunk_at_ = now;
}

// A packet that was trimmed stood before a full queue, which holds a round trip.
void NsccReference::OnLoss(Picoseconds now, int64_t bytes, int64_t in_flight) {
  ignored_ += bytes;
  Average(round_trip_, true);
  adapt_asked_ = true;
  if (!QuickAdapt(now, true, true, 0, in_flight + bytes)) window_ -= static_cast<double>(bytes);
  Bound();
}

void NsccReference::OnTimeout(Picoseconds now) { OnLoss(now, static_cast<int64_t>(packet_), 0); }

}  // namespace weft::net
