#include "tools/nccl_harness/watch.h"

#include <cstdarg>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace weft::harness {
namespace {

constexpr int kFindingsMax = 200;  // of one rank; the rest would say the same

thread_local Role current_role = Role::kService;
std::atomic<bool> log_verbose{false};
std::mutex warning_mutex;
std::string& WarningText() {
  static std::string text;
  return text;
}

}  // namespace

void SetRole(Role role) { current_role = role; }

void Watch::Broken(Contract contract, absl::string_view detail) {
  std::string text = absl::StrCat(detail);
  if (std::string warning = LastWarning(); !warning.empty()) {
    absl::StrAppend(&text, " (the plugin says: ", warning, ")");
  }
  std::lock_guard lock(mutex_);
  if (++broken_ <= kFindingsMax && sink_) sink_({contract, std::move(text)});
}

CallScope::CallScope(Watch& watch, const char* call, bool timed, Contract blame)
    : watch_(watch), call_(call), timed_(timed) {
  CallPage::Slot& slot = watch.page().slots[static_cast<size_t>(current_role)];
  slot.blame.store(RowOf(blame).name.data(), std::memory_order_relaxed);
  slot.call.store(call, std::memory_order_release);
  if (timed_) began_ = SystemClock::Nanoseconds();
}

CallScope::~CallScope() {
  watch_.page().slots[static_cast<size_t>(current_role)].call.store(nullptr,
                                                                    std::memory_order_release);
  if (!timed_) return;
  absl::Duration took = absl::Nanoseconds(SystemClock::Nanoseconds() - began_);
  if (took <= watch_.block_limit()) return;
  watch_.Broken(Contract::kNeverBlocks,
                absl::StrCat(call_, " took ", absl::FormatDuration(took), "; the limit is ",
                             absl::FormatDuration(watch_.block_limit()), " (--block-limit)"));
}

void HarnessLogger(nccl::abi::LogLevel level, unsigned long /*flags*/, const char* /*file*/,
                   int /*line*/, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (level == nccl::abi::kLogWarn) {
    std::lock_guard lock(warning_mutex);
    WarningText() = text;
  }
  if (!log_verbose) return;
  const char* name = level == nccl::abi::kLogWarn ? "WARN" : "INFO";
  std::fprintf(stderr, "plugin %s %s\n", name, text);
}

void SetLogVerbose(bool verbose) { log_verbose = verbose; }

std::string LastWarning() {
  std::lock_guard lock(warning_mutex);
  return std::exchange(WarningText(), {});
}

const char* ResultName(nccl::abi::Result result) {
  switch (result) {
    case nccl::abi::kSuccess:
      return "ncclSuccess";
    case nccl::abi::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case nccl::abi::kSystemError:
      return "ncclSystemError";
    case nccl::abi::kInternalError:
      return "ncclInternalError";
    case nccl::abi::kInvalidArgument:
      return "ncclInvalidArgument";
    case nccl::abi::kInvalidUsage:
      return "ncclInvalidUsage";
    case nccl::abi::kRemoteError:
      return "ncclRemoteError";
    case nccl::abi::kInProgress:
      return "ncclInProgress";
  }
  return "a value that is no ncclResult_t";
}

}  // namespace weft::harness
