#include "trainer/groups/wait_times.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "trainer/profile/work_time.h"

namespace weft::train {

void WaitTimes::SetTrace(Trace* trace, const Tracks& tracks) {
  trace_ = trace;
  tracks_ = tracks;
}

absl::Status WaitTimes::Block(const std::function<absl::Status()>& wait, const char* name) const {
  const WorkScope scope(Work::kCommunication);
  if (trace_ == nullptr) return wait();
  const RecordName before = trace_->Enter(name, SystemClock::Nanoseconds());
  absl::Status status = wait();
  trace_->Leave(before, SystemClock::Nanoseconds());
  return status;
}

void WaitTimes::AddWait(int64_t start_ns, int64_t end_ns, const char* name) {
  exposed_ns_ += end_ns - start_ns;
  if (trace_ == nullptr) return;
  trace_->Record({name, tracks_.compute, start_ns, end_ns, step_, -1});
  trace_->Record({"exposed", tracks_.exposed, start_ns, end_ns, step_, -1});
}

void WaitTimes::AddCollective(int64_t start_ns, int64_t end_ns, int64_t bytes, const char* name) {
  if (trace_ == nullptr) return;
  const int64_t begin_ns = std::min(std::max(start_ns, last_end_ns_), end_ns);
  trace_->Record({name, tracks_.collectives, begin_ns, end_ns, step_, bytes});
  last_end_ns_ = std::max(last_end_ns_, end_ns);
}

void WaitTimes::AddOnGpu(const NcclCollectives::Span& span) {
  exposed_ns_ += span.exposed_ns;
  if (trace_ == nullptr) return;
  trace_->Record({span.name, tracks_.collectives, span.begin_ns, span.end_ns, step_, -1});
  if (span.exposed_ns == 0) return;
  trace_->Record(
      {"exposed", tracks_.exposed, span.end_ns - span.exposed_ns, span.end_ns, step_, -1});
}

double WaitTimes::TakeSeconds() {
  return static_cast<double>(std::exchange(exposed_ns_, 0)) * 1e-9;
}

}  // namespace weft::train
