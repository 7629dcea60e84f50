// Logging: one line a call, to stderr or to where SetLogSink() says. Thread-safe.
//
// The first code to decide that something is an error logs it, with the exact cause, once; those
// above return the status.
#ifndef WEFT_BASE_LOG_H_
#define WEFT_BASE_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weft {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// Arguments as absl::StrCat's; they are evaluated only where the line is written.
#define WEFT_LOG_DEBUG(...) WEFT_LOG_AT(::weft::LogLevel::kDebug, __VA_ARGS__)
#define WEFT_LOG_INFO(...) WEFT_LOG_AT(::weft::LogLevel::kInfo, __VA_ARGS__)
#define WEFT_LOG_WARN(...) WEFT_LOG_AT(::weft::LogLevel::kWarn, __VA_ARGS__)
#define WEFT_LOG_ERROR(...) WEFT_LOG_AT(::weft::LogLevel::kError, __VA_ARGS__)
#define WEFT_LOG_AT(level, ...)                                             \
  do {                                                                      \
    if (::weft::Logs(level)) ::weft::Log(level, absl::StrCat(__VA_ARGS__)); \
  } while (false)

// Lines below this are not written. At first: what WEFT_LOG_LEVEL says, else kInfo.
void SetLogLevel(LogLevel least);
bool Logs(LogLevel level);
// Writes a line that Logs(level) lets pass. `level` is not kOff.
void Log(LogLevel level, absl::string_view text);

// Where lines go from now on; null: to stderr, as "W text". It may be called by threads at once,
// and until no call is under way any more.
using LogSink = void (*)(LogLevel level, absl::string_view text);
void SetLogSink(LogSink sink);

// "trace" and "debug", "info", "warn", "error", "off"; kInfo for every other word.
LogLevel ParseLogLevel(absl::string_view word);
// What WEFT_LOG_LEVEL says, where it is set.
LogLevel EnvironmentLogLevel(LogLevel otherwise);

// For a program, called once by main: lines become "HH:MM:SS.mmm W [rank 3] text" from `least` on.
// `name` stands in each, as "rank 3" or "weft-run"; empty: none. (program_log.cc)
void InitLog(absl::string_view name, LogLevel least);
// After InitLog: lines go to the end of file `path`, too. kUnavailable where it cannot be written.
absl::Status AlsoLogTo(const std::string& path);

}  // namespace weft

#endif  // WEFT_BASE_LOG_H_
