// The time that a thread is blocked in a group's collectives: counted, and recorded in a trace.
#ifndef WEFT_TRAINER_GROUPS_WAIT_TIMES_H_
#define WEFT_TRAINER_GROUPS_WAIT_TIMES_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "base/trace.h"
#include "trainer/groups/nccl_collectives.h"

namespace weft::train {

// Used by one thread. Times are of SystemClock, in nanoseconds; names are literals.
class WaitTimes {
 public:
  // Tracks of the trace: `compute` gets the waits by name, between the passes; `exposed` the same
  // waits by themselves; `collectives` what is waited for, from its call to its end.
  struct Tracks {
    int compute = 0, collectives = 0, exposed = 0;
  };
  // `trace` may be null: then times are only counted. Else it outlives this object.
  void SetTrace(Trace* trace, const Tracks& tracks);
  void set_step(int64_t step) { step_ = step; }  // what spans are labelled with

  // Runs `wait` as communication (profile/work_time.h). Readers of the records see meanwhile that
  // the computing thread waits, in `name`. Counts nothing.
  absl::Status Block(const std::function<absl::Status()>& wait, const char* name) const;
  // A wait of the computing thread.
  void AddWait(int64_t start_ns, int64_t end_ns, const char* name);
  // What was waited for. Several are under way at a time: on their track each begins where the one
  // before it ended, if that was later than its call. `bytes`: of the whole buffer.
  void AddCollective(int64_t start_ns, int64_t end_ns, int64_t bytes, const char* name);
  // What a GPU did: its computation waited for the last `exposed_ns` of the span.
  void AddOnGpu(const NcclCollectives::Span& span);

  // Time of all waits since the last call.
  double TakeSeconds();

 private:
  Trace* trace_ = nullptr;
  Tracks tracks_;
  int64_t step_ = 0;
  int64_t exposed_ns_ = 0;
  int64_t last_end_ns_ = 0;  // of the newest span of AddCollective
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_WAIT_TIMES_H_
