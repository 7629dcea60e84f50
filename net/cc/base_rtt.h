// The round trip of a path without any queue, from the round trips of what crosses it.
//
// The least that was ever seen, and never less than what was said to be known: queues only add to
// it. So a queue that stands because of a target that grew with it cannot make it grow, as a
// minimum over the last so many seconds would (BBR, draft-ietf-ccwg-bbr, 5.3.2, empties its queue
// every ten seconds for that reason). A path may become longer, though. Then a window that is held
// against the old one shrinks to a packet, and a packet that is alone waits in no queue of its own:
// where no packet at all has been as quick for ten seconds, the least of those that went alone is
// the new one.
#ifndef WEFT_NET_CC_BASE_RTT_H_
#define WEFT_NET_CC_BASE_RTT_H_

#include <algorithm>

#include "absl/time/time.h"

namespace weft::net {

class BaseRtt {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);  // BBR's MinRTTFilterLen
  static constexpr int kAloneMin = 8;  // so many say more than that all of them were held up

  explicit BaseRtt(absl::Duration floor) : floor_(floor) {}

  absl::Duration value() const {
    return least_ == absl::InfiniteDuration() ? floor_ : std::max(floor_, least_);
  }
  // `is_alone`: nothing else of the sender's was on its way when it left.
  // True: value() is another one.
  bool Add(absl::Time now, absl::Duration rtt, bool is_alone) {
    const absl::Duration before = value();
    if (rtt <= least_) {
      least_ = rtt;
      Begin(now);
    } else if (is_alone) {
      least_alone_ = std::min(least_alone_, rtt);
      ++alone_;
    }
    if (now - begun_ >= kWindow) {
      if (alone_ >= kAloneMin) least_ = least_alone_;
      Begin(now);
    }
    return value() != before;
  }

 private:
  void Begin(absl::Time now) {
    begun_ = now;
    least_alone_ = absl::InfiniteDuration();
    alone_ = 0;
  }

  absl::Duration floor_;
  absl::Duration least_ = absl::InfiniteDuration();
  // Since least_ was last seen.
  absl::Time begun_ = absl::InfinitePast();
  absl::Duration least_alone_ = absl::InfiniteDuration();
  int alone_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_BASE_RTT_H_
