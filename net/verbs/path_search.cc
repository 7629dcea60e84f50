#include "net/verbs/path_search.h"

#include <algorithm>

namespace weft::net {

void PathSearch::Begin(Phase phase, absl::Time from, uint64_t bytes) {
  phase_ = phase;
  window_from_ = from;
  window_ends_ = phase == Phase::kOpening ? absl::InfiniteFuture() : from + kWindow;
  bytes_ = bytes;
  begun_ = false;
  idle_ = absl::ZeroDuration();
}

void PathSearch::End(absl::Time now, bool in_vain) {
  if (in_vain) {
    next_try_ = now + pause_;
    pause_ = std::min(2 * pause_, kPauseMost);
  } else {
    pause_ = kPauseFirst;
    next_try_ = now;
  }
  phase_ = Phase::kWatch;
  window_ends_ = absl::InfiniteFuture();
}

void PathSearch::Opened(absl::Time now, uint64_t bytes) {
  if (phase_ == Phase::kOpening) Begin(Phase::kWith, now + kSettle, bytes);
}

void PathSearch::Stopped(absl::Time now) {
  if (trying()) End(now, true);
  window_ends_ = absl::InfiniteFuture();  // watching begins anew
}

PathSearch::Step PathSearch::Turn(absl::Time now, uint64_t bytes, bool waits) {
  const absl::Duration since = now - std::max(turn_at_, window_from_);
  if (begun_ && !waited_) idle_ += since;
  turn_at_ = now;
  waited_ = waits;
  if (phase_ == Phase::kOpening) return Step::kNone;
  if (window_ends_ == absl::InfiniteFuture()) {
    if (waits && now >= next_try_) Begin(Phase::kWatch, now, bytes);
    if (window_ends_ == absl::InfiniteFuture()) return Step::kNone;
  }
  if (!begun_ && now >= window_from_) {
    begun_ = true;
    window_from_ = now, window_ends_ = now + kWindow;
    bytes_ = bytes;
  }
  if (now < window_ends_) return Step::kNone;
  const absl::Duration length = now - window_from_;
  const double rate = static_cast<double>(bytes - bytes_) / absl::ToDoubleSeconds(length);
  const bool was_idle = idle_ > length * kIdleMost;
  const bool is_more = !was_idle && rate >= before_ * (1 + kGainLeast);
  switch (phase_) {
    case Phase::kWatch:
      window_ends_ = absl::InfiniteFuture();
      if (was_idle) return Step::kNone;
      before_ = rate;
      Begin(Phase::kOpening, now, bytes);
      return Step::kOpen;
    case Phase::kWith:
      if (!is_more) break;
      with_ = rate;
      Begin(Phase::kWithout, now + kSettle, bytes);
      return Step::kPause;
    case Phase::kWithout:
      if (was_idle || with_ < rate * (1 + kGainLeast)) break;
      before_ = rate;
      Begin(Phase::kWithAgain, now + kSettle, bytes);
      return Step::kUse;
    case Phase::kWithAgain:
      if (!is_more) break;
      gain_ = before_ > 0 ? rate / before_ : 1;
      Begin(Phase::kTraded, now + kSettle, bytes);
      return Step::kTrade;
    case Phase::kTraded:
      End(now, !is_more);
      return Step::kNone;
    case Phase::kOpening:
      return Step::kNone;
  }
  End(now, true);
  return Step::kClose;
}

}  // namespace weft::net
