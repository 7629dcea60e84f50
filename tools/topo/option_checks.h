// Checks of options' words (CLI::Option::check): what is wrong with them, which is wrong usage of
// the program; empty: nothing is.
#ifndef WEFT_TOOLS_TOPO_OPTION_CHECKS_H_
#define WEFT_TOOLS_TOPO_OPTION_CHECKS_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "tools/command_line.h"

namespace weft::topo {

inline std::string CheckBandwidth(const std::string& text) {
  return std::string(ParseBandwidth(text).status().message());
}

inline std::string CheckBytes(const std::string& text) {
  return std::string(ParseBytes(text).status().message());
}

// 0 or more.
inline std::string CheckDelay(const std::string& text) {
  absl::Duration delay;
  return ParseFinite(text, &delay) ? ""
                                   : absl::StrCat(text, " is no time; right are 500ns and 1us");
}

// Above 0.
inline std::string CheckLimit(const std::string& text) {
  absl::Duration limit;
  const bool good = ParseFinite(text, &limit) && limit > absl::ZeroDuration();
  return good ? "" : absl::StrCat(text, " is no time above 0; right are 50ms, 30s and 2m");
}

// The duration that a text says which CheckDelay() or CheckLimit() has found right.
inline absl::Duration DurationOf(const std::string& text) {
  absl::Duration duration;
  (void)absl::ParseDuration(text, &duration);
  return duration;
}

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_OPTION_CHECKS_H_
