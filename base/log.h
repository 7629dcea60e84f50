// Logging for every program: spdlog behind one page. WEFT_LOG_LEVEL (trace, debug, info, warn,
// error, off) sets the level; lines go to stderr as "HH:MM:SS.mmm W [rank 3] text". Thread-safe.
//
// The first code to decide that something is an error logs it, with the exact cause, once; those
// above return the status.
#ifndef WEFT_BASE_LOG_H_
#define WEFT_BASE_LOG_H_

#include <spdlog/spdlog.h>

#include "absl/strings/string_view.h"

namespace weft {

// Called once by main. `name` stands in each line, as "rank 3" or "weft-run"; empty: none.
void InitLog(absl::string_view name, absl::string_view level = "info");

}  // namespace weft

#define WEFT_LOG_DEBUG(...) \
  SPDLOG_LOGGER_CALL(spdlog::default_logger_raw(), spdlog::level::debug, __VA_ARGS__)
#define WEFT_LOG_INFO(...) \
  SPDLOG_LOGGER_CALL(spdlog::default_logger_raw(), spdlog::level::info, __VA_ARGS__)
#define WEFT_LOG_WARN(...) \
  SPDLOG_LOGGER_CALL(spdlog::default_logger_raw(), spdlog::level::warn, __VA_ARGS__)
#define WEFT_LOG_ERROR(...) \
  SPDLOG_LOGGER_CALL(spdlog::default_logger_raw(), spdlog::level::err, __VA_ARGS__)

#endif  // WEFT_BASE_LOG_H_
