// Whether a link's queue pairs share a bottleneck that another path would avoid: found by trying.
// Source ports are drawn, so all of a link's queue pairs may have come to lie on one of a fabric's
// spines. Nothing they see tells that from a fabric that is full. So, while a link has had more to
// send than they took, it opens one more, on another source port, and compares what all together
// get acknowledged: with it, without it while it is paused, and with it again. If it is clearly
// more each time with it, which chance seldom is, the new one takes the place of the slowest, and
// if it is still more without that, the trade was good. Else the new one is closed, and the next
// try waits twice as long.
//
// Rules only, no queue pairs and no clock: the wire tells what it sees, and does what Turn() says.
#ifndef WEFT_NET_VERBS_PATH_SEARCH_H_
#define WEFT_NET_VERBS_PATH_SEARCH_H_

#include <cstdint>

#include "absl/time/time.h"

namespace weft::net {

class PathSearch {
 public:
  enum class Step : uint8_t {
    kNone,
    kOpen,   // another queue pair; then Opened() or Stopped()
    kPause,  // the new one gets nothing for a while
    kUse,    // it does again
    kTrade,  // the new one stays; close the slowest of the others
    kClose,  // the new one
  };

  // What is compared is measured for so long, and after a change begins so much later.
  static constexpr absl::Duration kWindow = absl::Milliseconds(100);
  static constexpr absl::Duration kSettle = absl::Milliseconds(50);
  // From the end of a try that was in vain to the next; then twice as long, and so on.
  static constexpr absl::Duration kPauseFirst = absl::Milliseconds(200);
  static constexpr absl::Duration kPauseMost = absl::Minutes(1);
  // A link that had nothing waiting for more than this part of a window is not held up by paths.
  static constexpr double kIdleMost = 0.1;

  // A fourth path adds a third to what three carry; less than this may be chance.
  static constexpr double kGainLeast = 0.25;

  // At each turn of the link. `bytes`: acknowledged of all its queue pairs until now; `waits`:
  // something is to be sent that no queue pair has room for.
  Step Turn(absl::Time now, uint64_t bytes, bool waits);
  void Opened(absl::Time now, uint64_t bytes);  // the new one carries data from now on
  // It did not come to that, or one was lost on the way: nothing can be compared.
  void Stopped(absl::Time now);

  // What the last try that was worth it carried, over what was carried before it.
  double gain() const { return gain_; }
  bool trying() const { return phase_ != Phase::kWatch; }

 private:
  enum class Phase : uint8_t { kWatch, kOpening, kWith, kWithout, kWithAgain, kTraded };
  void Begin(Phase phase, absl::Time from, uint64_t bytes);
  void End(absl::Time now, bool in_vain);

  Phase phase_ = Phase::kWatch;
  absl::Time window_from_ = absl::InfiniteFuture(), window_ends_ = absl::InfiniteFuture();
  uint64_t bytes_ = 0;  // when the window began
  bool begun_ = false;  // it has
  absl::Duration idle_;
  absl::Time turn_at_ = absl::InfinitePast();  // the last one
  bool waited_ = false;                        // then
  double before_ = 0, with_ = 0;               // bytes per second
  double gain_ = 1;
  absl::Duration pause_ = kPauseFirst;
  absl::Time next_try_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_PATH_SEARCH_H_
