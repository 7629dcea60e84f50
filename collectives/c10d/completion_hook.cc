#include "collectives/c10d/completion_hook.h"

#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/c10d/work.h"

namespace weft::collectives {
namespace {

// SystemClock and steady_clock both read CLOCK_MONOTONIC.
std::chrono::steady_clock::time_point TimeOf(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

void CompletionHook::Follow(WeftWork& work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++followed_;
  }
  // The state alone: the work would keep its results.
  work.AtEnd([self = shared_from_this(), type = work.retrieveOpType(),
              sequence = work.getSequencenumber(), state = work.state()] {
    const int64_t now_ns = SystemClock::Nanoseconds();
    const int64_t start_ns = state->works.empty() ? now_ns : state->start_ns();
    self->Call(type, sequence, start_ns, state->done() ? start_ns + state->busy_ns() : now_ns);
  });
}

void CompletionHook::Call(c10d::OpType type, uint64_t sequence, int64_t start_ns, int64_t end_ns) {
  const std::chrono::duration<float> active = TimeOf(end_ns) - TimeOf(start_ns);
  try {
    hook_(
        std::make_shared<c10d::WorkInfo>(type, sequence, TimeOf(start_ns), TimeOf(end_ns), active));
  } catch (const std::exception& error) {
    const std::shared_ptr<Communicator> communicator = communicator_.lock();
    if (communicator != nullptr) {
      communicator->Abort(absl::InternalError(absl::StrCat("the completion hook threw after ",
                                                           c10d::opTypeToString(type), " #",
                                                           sequence, ": ", error.what())));
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  --followed_;
  changed_.notify_all();
}

void CompletionHook::Await() {
  const InterpreterUnlocked unlocked;  // which the hook may want
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return followed_ == 0; });
}

}  // namespace weft::collectives
