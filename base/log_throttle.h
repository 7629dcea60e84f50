// Bounds how often one kind of line is logged, for lines that an unauthenticated peer can cause.
//
//   if (throttle.Admit(now)) WEFT_LOG_WARN(peer, " was turned away", throttle.LeftOut());
//
// An owner with a timer logs the number of suppressed lines when a period ends, though no further
// line comes:
//
//   if (now >= throttle.due()) WEFT_LOG_WARN(throttle.TakeLeftOut(), " more were turned away");
//
// Not thread-safe.
#ifndef WEFT_BASE_LOG_THROTTLE_H_
#define WEFT_BASE_LOG_THROTTLE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace weft {

class LogThrottle {
 public:
  static constexpr int kLines = 8;  // in each period
  static constexpr absl::Duration kPeriod = absl::Seconds(10);

  // True: write the line. Otherwise it is counted as left out.
  bool Admit(absl::Time now) {
    if (now >= period_end_) period_end_ = now + kPeriod, lines_ = 0;
    if (++lines_ <= kLines) return true;
    ++left_out_;
    return false;
  }
  // " (and 12 more such lines before it)", of those left out since the last call; empty: none.
  std::string LeftOut() {
    const uint64_t count = TakeLeftOut();
    return count == 0 ? "" : absl::StrCat(" (and ", count, " more such lines before it)");
  }
  // How many were left out since the last call.
  uint64_t TakeLeftOut() { return std::exchange(left_out_, 0); }
  // The end of the period in which lines were left out; InfiniteFuture: none were.
  absl::Time due() const { return left_out_ > 0 ? period_end_ : absl::InfiniteFuture(); }

 private:
  absl::Time period_end_ = absl::InfinitePast();
  int lines_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_LOG_THROTTLE_H_
