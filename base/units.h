// Quantities as types, so that no bare integer with a unit crosses a function.
//
//   Bytes          a count of bytes, exact, 64 bit, may be negative as a difference
//   Bandwidth      bytes per second (double)
//   Bandwidth * absl::Duration = Bytes;  Bytes / Bandwidth = absl::Duration;
//   Bytes / Duration = Bandwidth
//
// Time is absl::Duration and absl::Time. Text forms: "64KiB", "1.5MB", "400Gbps" (see Parse...).
#ifndef WEFT_BASE_UNITS_H_
#define WEFT_BASE_UNITS_H_

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace weft {

class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(int64_t count) : count_(count) {}
  constexpr int64_t count() const { return count_; }
  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes operator+(Bytes other) const { return Bytes(count_ + other.count_); }
  constexpr Bytes operator-(Bytes other) const { return Bytes(count_ - other.count_); }
  constexpr Bytes operator*(int64_t factor) const { return Bytes(count_ * factor); }
  constexpr Bytes operator/(int64_t divisor) const { return Bytes(count_ / divisor); }
  constexpr double operator/(Bytes other) const {
    return static_cast<double>(count_) / static_cast<double>(other.count_);
  }
  constexpr Bytes& operator+=(Bytes other) { return *this = *this + other; }
  constexpr Bytes& operator-=(Bytes other) { return *this = *this - other; }

 private:
  int64_t count_ = 0;
};

constexpr Bytes KiB(int64_t n) { return Bytes(n << 10); }
constexpr Bytes MiB(int64_t n) { return Bytes(n << 20); }
constexpr Bytes GiB(int64_t n) { return Bytes(n << 30); }

class Bandwidth {
 public:
  constexpr Bandwidth() = default;
  static constexpr Bandwidth BytesPerSecond(double value) { return Bandwidth(value); }
  static constexpr Bandwidth GigabitsPerSecond(double value) { return Bandwidth(value * 1e9 / 8); }
  constexpr double bytes_per_second() const { return bytes_per_second_; }
  constexpr double gigabits_per_second() const { return bytes_per_second_ * 8 / 1e9; }
  constexpr auto operator<=>(const Bandwidth&) const = default;
  constexpr Bandwidth operator*(double factor) const {
    return Bandwidth(bytes_per_second_ * factor);
  }
  constexpr double operator/(Bandwidth other) const {
    return bytes_per_second_ / other.bytes_per_second_;
  }

 private:
  constexpr explicit Bandwidth(double value) : bytes_per_second_(value) {}
  double bytes_per_second_ = 0;
};

// Saturates: an infinite time gives the largest number of bytes.
Bytes operator*(Bandwidth bandwidth, absl::Duration time);

inline absl::Duration operator/(Bytes bytes, Bandwidth bandwidth) {
  return absl::Seconds(static_cast<double>(bytes.count()) / bandwidth.bytes_per_second());
}
inline Bandwidth operator/(Bytes bytes, absl::Duration time) {
  return Bandwidth::BytesPerSecond(static_cast<double>(bytes.count()) /
                                   absl::ToDoubleSeconds(time));
}

// "0", "512", "64KiB", "64K" (= KiB), "1MB" (= 10^6). Case-insensitive; fractions of a unit
// allowed.
absl::StatusOr<Bytes> ParseBytes(absl::string_view text);
// "100Gbps", "25gbit", "12.5GB/s". Only in "b/s" does the case of a letter count: Gb/s are bits,
// GB/s are bytes.
absl::StatusOr<Bandwidth> ParseBandwidth(absl::string_view text);

// The largest binary unit with at most two decimals: "64 KiB", "1.50 MiB", "17 B".
std::string ToString(Bytes bytes);
// "100 Gbps", "1.25 Gbps".
std::string ToString(Bandwidth bandwidth);

}  // namespace weft

#endif  // WEFT_BASE_UNITS_H_
