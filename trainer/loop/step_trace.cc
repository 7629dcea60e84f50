#include "trainer/loop/step_trace.h"

#include <algorithm>
#include <utility>

namespace weft::train {
namespace {

constexpr size_t kSpanBytes = 64;  // of the ring (base/trace.h)

}  // namespace

StepTrace::StepTrace(std::vector<std::string> tracks, int64_t steps, size_t first, Bytes most)
    : steps_(steps),
      most_(static_cast<size_t>(most.count()) / kSpanBytes),
      trace_(std::move(tracks), steps == 0 ? 1 : std::min(2 * first, most_)) {}

void StepTrace::BeginStep(int64_t step) {
  const uint64_t recorded = trace_.recorded();
  if (!begun_.empty()) largest_ = std::max(largest_, recorded - begun_.back().recorded);
  begun_.push_back({step, recorded});
  while (std::cmp_greater(begun_.size(), steps_ + 1)) begun_.pop_front();
  if (steps_ == 0) return;
  // One step more than asked for: the one that is written beside the last ones.
  const uint64_t wanted = largest_ * static_cast<uint64_t>(steps_ + 1);
  trace_.Reserve(std::min<uint64_t>(wanted, most_));
}

int64_t StepTrace::wanted_step() const {
  if (begun_.empty()) return 0;
  const size_t kept = std::min(begun_.size(), static_cast<size_t>(std::max<int64_t>(1, steps_)));
  return begun_[begun_.size() - kept].step;
}

int64_t StepTrace::whole_step() const {
  const uint64_t end = trace_.recorded();
  const uint64_t kept = end > trace_.capacity() ? end - trace_.capacity() : 0;
  for (const Begun& begun : begun_) {
    if (begun.step >= wanted_step() && begun.recorded >= kept) return begun.step;
  }
  return begun_.empty() ? 0 : begun_.back().step + 1;
}

uint64_t StepTrace::SpansBefore(int64_t first_step) const {
  const int64_t wanted = wanted_step();
  uint64_t begin = trace_.recorded(), end = begin;
  for (const Begun& begun : begun_) {
    if (begun.step < wanted) continue;
    begin = std::min(begin, begun.recorded);
    if (begun.step >= first_step) end = std::min(end, begun.recorded);
  }
  return end - begin;
}

Bytes StepTrace::bytes() const {
  return Bytes(static_cast<int64_t>(trace_.capacity() * kSpanBytes));
}

}  // namespace weft::train
