#include "plugins/nccl/profiler_ring.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/nccl/log.h"

namespace weft::nccl {

void ProfilerRing::Open(std::unique_ptr<Records> records) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dropped_before_ = dropped();
    dropped_written_ = 0;
  }
  records_ = records.release();
}

void ProfilerRing::Close() {
  const std::unique_ptr<Records> records(records_.exchange(nullptr));
  while (writers_.load() != 0) sched_yield();  // no thread holds it for longer than a record takes
}

void ProfilerRing::Pulse(int64_t now_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  Use([this, now_ns](Records& records) {
    records.SetAlive(now_ns);
    const uint64_t dropped = this->dropped() - dropped_before_;
    if (dropped < std::max<uint64_t>(1, 2 * dropped_written_)) return;
    records.Say(absl::StrCat("dropped ", dropped));
    dropped_written_ = dropped;
  });
}

void ProfilerRing::Drop() {
  if (dropped_.fetch_add(1, std::memory_order_relaxed) == 0) {
    LogInfo("profiler: more is under way than it has room for; what does not fit is left out");
  }
}

}  // namespace weft::nccl
