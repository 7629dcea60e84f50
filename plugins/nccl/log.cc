#include "plugins/nccl/log.h"

#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

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

abi::LogLevel LevelOf(int level) {
  return level >= spdlog::level::warn   ? abi::kLogWarn
         : level == spdlog::level::info ? abi::kLogInfo
                                        : abi::kLogTrace;
}

// What net/ says.
class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    Write(LevelOf(message.level), std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
};

// What a transport's own library says.
void FromModule(int level, const char* text) { Write(LevelOf(level), text); }

struct ModuleLogGuard {
  ModuleLogGuard() { net::SetModuleLog(&FromModule); }
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
  static std::once_flag once;
  std::call_once(once, [] {
    auto logger = std::make_shared<spdlog::logger>("weft", std::make_shared<Sink>());
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(logger));
  });
  static const ModuleLogGuard guard;
}

void LogInfo(absl::string_view text) { Write(abi::kLogInfo, std::string(text)); }
void LogWarning(absl::string_view text) { Write(abi::kLogWarn, std::string(text)); }

abi::Result Fail(absl::string_view call, const absl::Status& status) {
  LogWarning(absl::StrCat(call, ": ", status.message()));
  return ResultOf(status);
}

}  // namespace weft::nccl
