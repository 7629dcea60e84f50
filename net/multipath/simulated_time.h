// The simulator's picoseconds as absl::Time, and back.
#ifndef WEFT_NET_MULTIPATH_SIMULATED_TIME_H_
#define WEFT_NET_MULTIPATH_SIMULATED_TIME_H_

#include <cstdint>

#include "absl/time/time.h"
#include "topology/sim/packet/time.h"

namespace weft::net::multipath {

// A duration counts quarters of a nanosecond.
inline absl::Time ToTime(topology::packet::Picoseconds time) {
  return absl::UnixEpoch() + absl::Nanoseconds(time / 1000) +
         absl::Nanoseconds(1) / 4 * (time % 1000 / 250);
}
// Rounded up, so that what is due is due.
inline topology::packet::Picoseconds FromTime(absl::Time time) {
  if (time >= absl::UnixEpoch() + absl::Hours(24)) return topology::packet::kNever;
  absl::Duration rest;
  int64_t quarters = absl::IDivDuration(time - absl::UnixEpoch(), absl::Nanoseconds(1) / 4, &rest);
  return quarters * 250 + (rest > absl::ZeroDuration() ? 250 : 0);
}

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_SIMULATED_TIME_H_
