// What is observed of one rank while it calls the plugin: contracts it saw broken, the plugin's own
// warnings, and which call each of its two threads is in, on a page that the parent process reads
// after a crash or a hang.
#ifndef WEFT_TOOLS_NCCL_HARNESS_WATCH_H_
#define WEFT_TOOLS_NCCL_HARNESS_WATCH_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "plugins/nccl/abi/common.h"
#include "tools/nccl_harness/contract.h"

namespace weft::harness {

struct Finding {
  Contract contract;
  std::string detail;
};

// NCCL's two threads of a communicator.
enum class Role : uint8_t { kService = 0, kProgress = 1 };
void SetRole(Role role);  // of this thread; at first kService

// Shared with the parent; strings are literals, at the same place in both after fork.
struct CallPage {
  struct Slot {
    std::atomic<const char*> call{nullptr};   // "connect"; null: in none
    std::atomic<const char*> blame{nullptr};  // the contract to name when it never returns
  };
  std::array<Slot, 2> slots;  // by Role
  std::atomic<const char*> step{nullptr};
  std::atomic<uint64_t> moves{0};  // steps begun and requests completed: it grows while all is well
};

// Thread-safe.
class Watch {
 public:
  Watch(CallPage& page, absl::Duration block_limit,
        std::function<void(const Finding&)> sink = nullptr)
      : page_(page), block_limit_(block_limit), sink_(std::move(sink)) {}

  // Tells the sink at once: the process may not live long.
  void Broken(Contract contract, absl::string_view detail);
  void SetStep(const char* step) {
    page_.step = step;
    Moved();
  }
  // A request has completed.
  void Moved() { page_.moves.fetch_add(1, std::memory_order_relaxed); }
  const char* step() const { return page_.step.load(); }
  CallPage& page() { return page_; }
  absl::Duration block_limit() const { return block_limit_; }

 private:
  CallPage& page_;
  const absl::Duration block_limit_;
  const std::function<void(const Finding&)> sink_;
  std::mutex mutex_;
  int broken_ = 0;
};

// Around one call of the plugin's.
class CallScope {
 public:
  // With `timed`, a call that takes longer than the limit breaks kNeverBlocks.
  CallScope(Watch& watch, const char* call, bool timed, Contract blame = Contract::kNoCrash);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  Watch& watch_;
  const char* call_;
  const bool timed_;
  int64_t began_ = 0;
};

// What the plugin is given as its logger. Warnings are kept: findings quote the last one.
void HarnessLogger(nccl::abi::LogLevel level, unsigned long flags, const char* file, int line,
                   const char* format, ...) __attribute__((format(printf, 5, 6)));
void SetLogVerbose(bool verbose);  // also to stderr, all of it
std::string LastWarning();         // "" when there was none since the last call

const char* ResultName(nccl::abi::Result result);  // "ncclRemoteError"

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_WATCH_H_
