#include "trainer/loop/run_log.h"

#include <spdlog/sinks/basic_file_sink.h>

#include <exception>
#include <memory>

#include "base/log.h"

namespace weft {

absl::Status InitRunLog(absl::string_view name, absl::string_view level, const std::string& path) {
  InitLog(name, level);
  try {
    auto logger = spdlog::default_logger();
    logger->sinks().push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    logger->flush_on(spdlog::level::info);
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
  return absl::OkStatus();
}

void LogInfo(const std::string& line) { WEFT_LOG_INFO("{}", line); }
void LogWarning(const std::string& line) { WEFT_LOG_WARN("{}", line); }
void LogError(const std::string& line) { WEFT_LOG_ERROR("{}", line); }

}  // namespace weft
