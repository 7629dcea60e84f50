#include "plugins/nccl/log.h"

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "net/transport_module.h"

namespace weft::nccl {
namespace {

std::atomic<abi::LogFunction> log_function{nullptr};

void Write(abi::LogLevel level, const std::string& text) {
  abi::LogFunction log = log_function.load(std::memory_order_acquire);
  if (log == nullptr) return;
  log(level, abi::kLogInit | abi::kLogNet, "weft", 0, "NET/Weft : %s", text.c_str());
}

// What net/ says, also in a transport's own library.
void FromNet(LogLevel level, absl::string_view text) {
  Write(level >= LogLevel::kWarn   ? abi::kLogWarn
        : level == LogLevel::kInfo ? abi::kLogInfo
                                   : abi::kLogTrace,
        std::string(text));
}

struct ModuleLogGuard {
  ModuleLogGuard() { net::SetModuleLog(&FromNet); }  // whose list then outlives the guard
  ~ModuleLogGuard() { net::SetModuleLog(nullptr); }  // such libraries outlive this one
};

abi::Result ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return abi::kSuccess;
    case absl::StatusCode::kInvalidArgument:
      return abi::kInvalidArgument;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return abi::kInvalidUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kPermissionDenied:
      return abi::kRemoteError;
    case absl::StatusCode::kInternal:
      return abi::kInternalError;
    default:
      return abi::kSystemError;
  }
}

}  // namespace

void SetLogFunction(abi::LogFunction log) {
  if (log == nullptr) return;
  log_function.store(log, std::memory_order_release);
  SetLogSink(&FromNet);
  SetLogLevel(LogLevel::kDebug);  // NCCL knows which it wants
  static const ModuleLogGuard guard;
}

void LogInfo(absl::string_view text) { Write(abi::kLogInfo, std::string(text)); }
void LogWarning(absl::string_view text) { Write(abi::kLogWarn, std::string(text)); }

abi::Result Fail(absl::string_view call, const absl::Status& status) {
  LogWarning(absl::StrCat(call, ": ", status.message()));
  return ResultOf(status);
}

abi::Result Decline(absl::string_view call, const absl::Status& status) {
  LogInfo(absl::StrCat(call, ": ", status.message()));
  return ResultOf(status);
}

}  // namespace weft::nccl
