// The trace of a training run: a ring (base/trace.h) that holds the last steps whole, however many
// spans a step records.
//
// What a step records follows from micro-batches, chunks of exchanges, layers and buckets, and the
// first step shows it: from then on the ring has place for `steps` steps of the largest one, up to
// a bound in bytes. Where that holds fewer steps, the oldest are lost, whole, and counted. Used by
// the thread that trains.
#ifndef WEFT_TRAINER_LOOP_STEP_TRACE_H_
#define WEFT_TRAINER_LOOP_STEP_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/trace.h"
#include "base/units.h"

namespace weft::train {

// 2^20 spans. A rank of a model with 50 layers, 32 micro-batches and 8 chunks of each exchange
// records some 60,000 a step.
inline constexpr Bytes kTraceBytesMost = MiB(64);

class StepTrace {
 public:
  // `first`: estimated spans of the first step; the ring has room for twice as many. With 0 steps
  // the ring is as small as possible: spans are then recorded only for their other readers.
  StepTrace(std::vector<std::string> tracks, int64_t steps, size_t first,
            Bytes most = kTraceBytesMost);

  Trace& trace() { return trace_; }
  // Called before the first span of `step`: all spans recorded from now on belong to that step.
  void BeginStep(int64_t step);

  // The first of the last `steps` steps, or the first step if there are fewer.
  int64_t wanted_step() const;
  // The first step from wanted_step() on of which, and after which, no span is lost; the number
  // after the last step if even that step has lost spans.
  int64_t whole_step() const;
  // The spans that were recorded from wanted_step() on, before `first_step`.
  uint64_t SpansBefore(int64_t first_step) const;
  // The most spans that one of the last steps has recorded.
  uint64_t spans_of_a_step() const { return largest_; }
  Bytes bytes() const;

 private:
  struct Begun {
    int64_t step = 0;
    uint64_t recorded = 0;  // spans that the trace had recorded before this step
  };
  const int64_t steps_;
  const size_t most_;  // spans
  Trace trace_;
  std::deque<Begun> begun_;  // the last steps_, and the one under way
  uint64_t largest_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_STEP_TRACE_H_
