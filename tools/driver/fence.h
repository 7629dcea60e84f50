// When an executor that does not reach its driver ends its ranks: before others run in their place,
// but not because a driver is away for a while
// (docs/decisions/0018-ranks-outlive-an-absent-driver.md).
//
// Only a driver has ranks started in the place of others, and a job's step needs all of its ranks:
// once a rank was replaced, the others leave what they had with the one before
// (collectives/recovery.h), which gets no further message of theirs and does no further step. So
// ranks that hear from ranks of other nodes and do steps have not been replaced, whether the driver
// is dead or only this host cannot reach it. Where they stop doing so, or never did, the lease
// holds.
//
// No clock, no I/O; not thread-safe.
#ifndef WEFT_TOOLS_DRIVER_FENCE_H_
#define WEFT_TOOLS_DRIVER_FENCE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace weft::driver {

class Fence {
 public:
  // What the ranks of this host have recorded by `now`: bytes that have come from ranks of other
  // nodes; the step that all of them have done, -1: none; and how long that took.
  void Observe(absl::Time now, uint64_t bytes, int64_t step, absl::Duration step_time) {
    if (bytes > bytes_) heard_ = now;
    if (step > step_) {
      stepped_ = now;
      step_time_ = step_time;
    }
    bytes_ = bytes;
    step_ = step;
  }

  // `contact`: when the driver was last reached.
  bool MustEnd(absl::Time now, absl::Time contact, absl::Duration lease) const {
    return now - contact > lease && !IsHealthy(now, lease);
  }
  // Whether the ranks show that none of them was replaced.
  bool IsHealthy(absl::Time now, absl::Duration lease) const {
    return now - heard_ <= std::max(lease, kLooks) &&
           now - stepped_ <= std::max({lease, kLooks, kSteps * step_time_});
  }

 private:
  // Observe() is called once a second.
  static constexpr absl::Duration kLooks = absl::Seconds(2);
  // A step may take so many times as long as the one before it: a checkpoint is part of some.
  static constexpr int kSteps = 3;

  uint64_t bytes_ = 0;
  int64_t step_ = -1;
  absl::Duration step_time_;
  absl::Time heard_ = absl::InfinitePast(), stepped_ = absl::InfinitePast();
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_FENCE_H_
