#include "trainer/checkpoint/save_schedule.h"

#include <cmath>

#include "base/status.h"

namespace weft::train {

absl::Duration BestSaveInterval(absl::Duration cost, absl::Duration between_failures) {
  const double half = absl::FDivDuration(cost, 2 * between_failures);  // c / 2M
  if (!(half < 1)) return between_failures;
  const double root = std::sqrt(half);
  // sqrt(2 c M) is 2 M sqrt(c / 2M).
  return 2 * root * (1 + root / 3 + half / 9) * between_failures - cost;
}

absl::Duration MeanTimeBetweenFailures(absl::Duration expected, absl::Duration elapsed,
                                       int64_t failures) {
  return (expected + elapsed) / (1 + failures);
}

bool SaveSchedule::IsDue(int64_t step) const {
  return every_ > 0 && step > from_ && (step - from_) % every_ == 0;
}

void SaveSchedule::Follow(int64_t step, int64_t interval) {
  WEFT_CHECK(interval >= 1, "a save every " << interval << " steps");
  from_ = step;
  every_ = interval;
}

}  // namespace weft::train
