#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace weft {
namespace {

std::atomic<LogLevel>& Least() {
  static std::atomic<LogLevel> least{EnvironmentLogLevel(LogLevel::kInfo)};
  return least;
}

void ToStderr(LogLevel level, absl::string_view text) {
  const std::string line = absl::StrCat(
      absl::string_view("DIWE").substr(static_cast<size_t>(level), 1), " ", text, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::atomic<LogSink> log_sink{&ToStderr};

}  // namespace

void SetLogLevel(LogLevel least) { Least().store(least, std::memory_order_relaxed); }

bool Logs(LogLevel level) { return level >= Least().load(std::memory_order_relaxed); }

void Log(LogLevel level, absl::string_view text) {
  if (Logs(level)) log_sink.load(std::memory_order_acquire)(level, text);
}

void SetLogSink(LogSink sink) {
  log_sink.store(sink == nullptr ? &ToStderr : sink, std::memory_order_release);
}

LogLevel ParseLogLevel(absl::string_view word) {
  if (word == "trace" || word == "debug") return LogLevel::kDebug;
  if (word == "warn") return LogLevel::kWarn;
  if (word == "error") return LogLevel::kError;
  if (word == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

LogLevel EnvironmentLogLevel(LogLevel otherwise) {
  const char* word = std::getenv("WEFT_LOG_LEVEL");
  return word == nullptr ? otherwise : ParseLogLevel(word);
}

}  // namespace weft
