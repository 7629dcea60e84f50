// Where "now" comes from. Algorithms take `absl::Time now` as an argument and never read a clock;
// the owner of a progress loop reads it once a turn. Monotonic: the epoch is arbitrary.
#ifndef WEFT_BASE_CLOCK_H_
#define WEFT_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;  // thread-safe
};

// CLOCK_MONOTONIC: the same for all processes of a host since its boot.
class SystemClock final : public Clock {
 public:
  absl::Time Now() const override;
  static int64_t Nanoseconds();  // the same reading, for traces and spin loops
};

// Moves when told. Thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::UnixEpoch()) : now_(absl::ToUnixNanos(start)) {}
  absl::Time Now() const override { return absl::FromUnixNanos(now_.load()); }
  void Advance(absl::Duration step) { now_ += absl::ToInt64Nanoseconds(step); }

 private:
  std::atomic<int64_t> now_;
};

}  // namespace weft

#endif  // WEFT_BASE_CLOCK_H_
