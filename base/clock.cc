#include "base/clock.h"

#include <ctime>

namespace weft {

int64_t SystemClock::Nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

absl::Time SystemClock::Now() const { return absl::FromUnixNanos(Nanoseconds()); }

}  // namespace weft
