// After which steps a run saves its state: every so many, or as often as costs least.
//
// A save costs time, and so do the steps that are lost when the run fails. With the time c that a
// save takes and the mean time between failures M, the interval of computing with the least sum is
//
//   sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c   for c < 2 M, else M
//
// (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
// Generation Computer Systems 22, 2006, eq. 37; its first factor is Young's, Communications of the
// ACM 17, 1974). Both numbers are measured: M begins as what the user says, which counts as one
// failure in that time, and takes in those that the run has had.
//
// Used by one thread.
#ifndef WEFT_TRAINER_CHECKPOINT_SAVE_SCHEDULE_H_
#define WEFT_TRAINER_CHECKPOINT_SAVE_SCHEDULE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace weft::train {

// Time of computing between two saves that take `cost`.
absl::Duration BestSaveInterval(absl::Duration cost, absl::Duration between_failures);

// M as above: `expected` by the user, `failures` in the `elapsed` time of the run.
absl::Duration MeanTimeBetweenFailures(absl::Duration expected, absl::Duration elapsed,
                                       int64_t failures);

class SaveSchedule {
 public:
  // Every `every` steps, 0 for never, until Follow() says otherwise.
  explicit SaveSchedule(int64_t every) : every_(every) {}

  bool IsDue(int64_t step) const;
  // From the save after `step` on, every `interval` steps, at least 1.
  void Follow(int64_t step, int64_t interval);

 private:
  int64_t every_;
  int64_t from_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_SAVE_SCHEDULE_H_
