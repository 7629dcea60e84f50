#include "base/units.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

namespace weft {
namespace {

struct Unit {
  absl::string_view name;
  double factor;
};

constexpr auto kByteUnits = std::to_array<Unit>({{"", 1},
                                                 {"b", 1},
                                                 {"k", 1024.0},
                                                 {"kib", 1024.0},
                                                 {"kb", 1e3},
                                                 {"m", 1024.0 * 1024},
                                                 {"mib", 1024.0 * 1024},
                                                 {"mb", 1e6},
                                                 {"g", 1024.0 * 1024 * 1024},
                                                 {"gib", 1024.0 * 1024 * 1024},
                                                 {"gb", 1e9},
                                                 {"t", 1024.0 * 1024 * 1024 * 1024},
                                                 {"tib", 1024.0 * 1024 * 1024 * 1024},
                                                 {"tb", 1e12},
                                                 {"byte", 1},
                                                 {"bytes", 1}});

constexpr auto kBandwidthUnits = std::to_array<Unit>({{"bps", 1.0 / 8},
                                                      {"kbps", 1e3 / 8},
                                                      {"mbps", 1e6 / 8},
                                                      {"gbps", 1e9 / 8},
                                                      {"gbit", 1e9 / 8},
                                                      {"tbps", 1e12 / 8},
                                                      {"b/s", 1.0 / 8},
                                                      {"kb/s", 1e3 / 8},
                                                      {"mb/s", 1e6 / 8},
                                                      {"gb/s", 1e9 / 8},
                                                      {"B/s", 1},
                                                      {"kB/s", 1e3},
                                                      {"mB/s", 1e6},
                                                      {"gB/s", 1e9}});

// Splits "1.5 KiB" into 1.5 and the factor of the unit; -1 where either is not understood.
double ParseWithUnit(absl::string_view text, absl::Span<const Unit> units) {
  text = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) return -1;
  absl::string_view written = absl::StripAsciiWhitespace(text.substr(digits));
  std::string unit = absl::AsciiStrToLower(written);
  if (absl::EndsWith(written, "B/s")) unit[unit.size() - 3] = 'B';
  for (const Unit& candidate : units) {
    if (candidate.name == unit) return number * candidate.factor;
  }
  return -1;
}

}  // namespace

Bytes operator*(Bandwidth bandwidth, absl::Duration time) {
  double count = bandwidth.bytes_per_second() * absl::ToDoubleSeconds(time);
  if (std::isnan(count)) return Bytes(0);  // nothing, for ever
  constexpr double kLimit = 0x1p63;
  if (count >= kLimit) return Bytes(std::numeric_limits<int64_t>::max());
  if (count < -kLimit) return Bytes(std::numeric_limits<int64_t>::min());
  return Bytes(static_cast<int64_t>(count));
}

absl::StatusOr<Bytes> ParseBytes(absl::string_view text) {
  int64_t exact = 0;
  if (absl::SimpleAtoi(text, &exact) && exact >= 0) return Bytes(exact);
  double value = ParseWithUnit(text, kByteUnits);
  if (value < 0 || value > 9.2e18) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is not a size; write a number with B, KiB, MiB, GiB, KB, MB or "
                     "GB, as in 64KiB"));
  }
  return Bytes(static_cast<int64_t>(value));
}

absl::StatusOr<Bandwidth> ParseBandwidth(absl::string_view text) {
  double value = ParseWithUnit(text, kBandwidthUnits);
  if (value < 0 || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text,
        "\" is not a bandwidth; write a number with Mbps, Gbps or GB/s, as in 200Gbps"));
  }
  return Bandwidth::BytesPerSecond(value);
}

std::string ToString(Bytes bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes.count());
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  bool whole = value == std::floor(value);
  return whole ? absl::StrFormat("%.0f %s", value, kNames[unit])
               : absl::StrFormat("%.2f %s", value, kNames[unit]);
}

std::string ToString(Bandwidth bandwidth) {
  return absl::StrFormat("%.4g Gbps", bandwidth.gigabits_per_second());
}

}  // namespace weft
