// base/log.h for files that include LibTorch, whose copy of fmt is not the one that spdlog wants.
#ifndef WEFT_TRAINER_LOOP_RUN_LOG_H_
#define WEFT_TRAINER_LOOP_RUN_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// As InitLog; lines go to the file `path`, too.
absl::Status InitRunLog(absl::string_view name, absl::string_view level, const std::string& path);

void LogInfo(const std::string& line);
void LogWarning(const std::string& line);
void LogError(const std::string& line);

}  // namespace weft

#endif  // WEFT_TRAINER_LOOP_RUN_LOG_H_
