// Time of the packet level: integer picoseconds since the start of the simulation. A byte at
// 400 Gb/s takes 20 of them, so that times of serialisation are exact where absl::Duration, which
// counts quarters of a nanosecond, would round each packet.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_TIME_H_
#define WEFT_TOPOLOGY_SIM_PACKET_TIME_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "base/units.h"

namespace weft::topology::packet {

using Picoseconds = int64_t;
constexpr Picoseconds kNever = std::numeric_limits<int64_t>::max();
constexpr Picoseconds kNanosecond = 1000;
constexpr Picoseconds kMicrosecond = 1'000'000;
constexpr Picoseconds kMillisecond = 1'000'000'000;
// Beyond this nothing is scheduled: sums of two such times still fit. 26 days.
constexpr Picoseconds kLastTime = kNever / 4;

// Saturates at kLastTime.
inline Picoseconds FromDuration(absl::Duration time) {
  const absl::Duration quarter = absl::Nanoseconds(1) / 4;  // the resolution of absl::Duration
  if (time >= absl::Nanoseconds(kLastTime / kNanosecond)) return kLastTime;
  absl::Duration rest;
  return absl::IDivDuration(time, quarter, &rest) * 250;
}

inline absl::Duration ToDuration(Picoseconds time) {
  if (time == kNever) return absl::InfiniteDuration();
  return absl::Nanoseconds(time / kNanosecond) +
         absl::Nanoseconds(static_cast<double>(time % kNanosecond) / kNanosecond);
}

// Picoseconds a byte of a link's bandwidth, in 2^-20: exact for all rates in use, from 1 Mb/s up.
class WireRate {
 public:
  WireRate() = default;
  explicit WireRate(Bandwidth bandwidth)
      : picoseconds_per_byte_(
            std::llround(1e12 / bandwidth.bytes_per_second() * (int64_t{1} << kShift))) {}
  Picoseconds TimeFor(int64_t bytes) const {
    return (bytes * picoseconds_per_byte_ + kHalf) >> kShift;
  }
  // For more than 64 KiB, where the product above would overflow on slow links.
  double TimeForMany(int64_t bytes) const {
    return static_cast<double>(bytes) * static_cast<double>(picoseconds_per_byte_) /
           static_cast<double>(int64_t{1} << kShift);
  }
  double bytes_per_picosecond() const {
    return static_cast<double>(int64_t{1} << kShift) / static_cast<double>(picoseconds_per_byte_);
  }

 private:
  static constexpr int kShift = 20;
  static constexpr int64_t kHalf = int64_t{1} << (kShift - 1);
  int64_t picoseconds_per_byte_ = 0;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_TIME_H_
