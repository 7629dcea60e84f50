// The lines of a program, by spdlog; apart from log.cc so that libraries need none.
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <memory>

#include "base/log.h"

namespace weft {
namespace {

void ToLogger(LogLevel level, absl::string_view text) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  spdlog::default_logger_raw()->log(kLevels[static_cast<size_t>(level)],
                                    spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace

void InitLog(absl::string_view name, LogLevel least) {
  auto logger = std::make_shared<spdlog::logger>(std::string(name),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(name.empty() ? "%H:%M:%S.%e %L %v" : "%H:%M:%S.%e %L [%n] %v");
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  SetLogLevel(least);
  SetLogSink(&ToLogger);
}

absl::Status AlsoLogTo(const std::string& path) {
  try {
    spdlog::default_logger()->sinks().push_back(
        std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace weft
