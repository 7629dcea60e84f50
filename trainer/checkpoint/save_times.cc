#include "trainer/checkpoint/save_times.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace weft::train {
namespace {

constexpr std::array<const char*, kSavePhases> kNames = {"copy", "write",  "sync",
                                                         "meet", "commit", "remove"};

int64_t Nanoseconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

}  // namespace

SaveTimes::Scope::Scope(SaveTimes* times, SavePhase phase)
    : times_(times),
      phase_(phase),
      passed_(Nanoseconds(CLOCK_MONOTONIC)),
      processor_(Nanoseconds(CLOCK_THREAD_CPUTIME_ID)) {}

SaveTimes::Scope::~Scope() {
  if (times_ == nullptr) return;
  Time& time = times_->times_[static_cast<size_t>(phase_)];
  time.passed += Nanoseconds(CLOCK_MONOTONIC) - passed_;
  time.processor += Nanoseconds(CLOCK_THREAD_CPUTIME_ID) - processor_;
}

std::string SaveTimes::ToText() const {
  std::string text;
  const double scale = 1e-6 / static_cast<double>(std::max<int64_t>(saves_, 1));
  for (size_t phase = 0; phase < kSavePhases; ++phase) {
    const Time& time = times_[phase];
    absl::StrAppendFormat(&text, "%s%s %.2f (%.2f)", phase == 0 ? "" : ", ", kNames[phase],
                          static_cast<double>(time.passed.load()) * scale,
                          static_cast<double>(time.processor.load()) * scale);
  }
  return text;
}

}  // namespace weft::train
