// Spreads packets over time at a rate: the one pacer of all controllers.
//
// A token bucket turned round: next() is when the next packet may leave. Sending `bytes` at `rate`
// moves it on by bytes / rate, from the present at the earliest less `burst`, so that a sender that
// was held up (a busy thread, a full socket) catches up by at most that much and never beyond.
#ifndef WEFT_NET_CC_PACER_H_
#define WEFT_NET_CC_PACER_H_

#include <algorithm>

#include "absl/time/time.h"
#include "base/units.h"

namespace weft::net {

class Pacer {
 public:
  explicit Pacer(absl::Duration burst = absl::ZeroDuration()) : burst_(burst) {}

  bool MaySend(absl::Time now) const { return next_ <= now; }
  absl::Time next() const { return next_; }
  // `rate` zero: unpaced.
  void OnSent(absl::Time now, Bytes bytes, Bandwidth rate) {
    if (rate <= Bandwidth()) return;
    next_ = std::max(next_, now - burst_) + bytes / rate;
  }
  // The rate went up: what was sent at the old one binds no longer than a packet at the new one.
  void OnRate(absl::Time now, Bytes packet, Bandwidth rate) {
    next_ = std::min(next_, rate > Bandwidth() ? now + packet / rate : now);
  }

 private:
  absl::Duration burst_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_PACER_H_
