#include "net/cc/dcqcn.h"

#include <algorithm>
#include <cstdint>

namespace weft::net {
namespace {

constexpr Bytes kUnlimited{int64_t{1} << 60};
// Below it alpha changes neither the next cut (1 - alpha / 2 is 1) nor the alpha after it, which is
// g: g is at least 1e-4, whose last bit is 1.4e-20.
constexpr double kAlphaLeast = 1e-24;

}  // namespace

Dcqcn::Dcqcn(const PathFacts& facts, const DcqcnParameters& parameters)
    : facts_(facts),
      parameters_(parameters),
      line_(facts.bandwidth.bytes_per_second()),
      rate_(line_),
      target_(line_) {}

void Dcqcn::Advance(absl::Time now) {
  if (!has_cut_) return;
  // A timer that changes nothing any more stands still until the next notification: an idle sender
  // sleeps.
  while (alpha_at_ <= now) {
    alpha_ *= 1 - parameters_.g;
    alpha_at_ += absl::Microseconds(parameters_.alpha_us);
    if (alpha_ < kAlphaLeast) alpha_at_ = absl::InfiniteFuture();
  }
  while (increase_at_ <= now) {
    ++timer_count_;
    increase_at_ += absl::Microseconds(parameters_.increase_us);
    const double before = rate_;
    Increase();
    if (target_ == line_ && rate_ == before) increase_at_ = absl::InfiniteFuture();
  }
}

void Dcqcn::OnSent(absl::Time /*now*/, Bytes bytes) {
  if (!has_cut_) return;
  sent_ += static_cast<double>(bytes.count());
  while (sent_ >= parameters_.increase_bytes) {
    sent_ -= parameters_.increase_bytes;
    ++byte_count_;
    Increase();
  }
}

void Dcqcn::OnAck(const AckSample& ack) {
  if (!ack.marked || ack.now - notified_ < absl::Microseconds(parameters_.cnp_us)) return;
  OnNotification(ack.now);
}

void Dcqcn::OnNotification(absl::Time now) {
  notified_ = now;
  has_cut_ = true;
  target_ = rate_;
  rate_ = std::max(rate_ * (1 - alpha_ / 2), parameters_.rate_min * line_);
  alpha_ = (1 - parameters_.g) * alpha_ + parameters_.g;
  timer_count_ = byte_count_ = 0;
  sent_ = 0;
  alpha_at_ = now + absl::Microseconds(parameters_.alpha_us);
  increase_at_ = now + absl::Microseconds(parameters_.increase_us);
}

void Dcqcn::Increase() {
  int most = std::max(timer_count_, byte_count_), least = std::min(timer_count_, byte_count_);
  auto fast_steps = static_cast<int>(parameters_.fast_steps);
  if (least > fast_steps) {
    target_ += (least - fast_steps) * parameters_.hyper * line_;
  } else if (most >= fast_steps) {
    target_ += parameters_.additive * line_;
  }
  target_ = std::min(target_, line_);
  rate_ = (target_ + rate_) / 2;
}

Bytes Dcqcn::window() const {
  if (parameters_.window <= 0) return kUnlimited;
  double held = parameters_.window * rate_ * absl::ToDoubleSeconds(facts_.base_rtt);
  return std::max(facts_.packet, Bytes(static_cast<int64_t>(held)));
}

absl::Time Dcqcn::deadline() const { return std::min(alpha_at_, increase_at_); }

void Dcqcn::Visit(StateVisitor visit) const {
  visit("rate_gbps", rate_ * 8e-9);
  visit("target_gbps", target_ * 8e-9);
  visit("alpha", alpha_);
}

}  // namespace weft::net
