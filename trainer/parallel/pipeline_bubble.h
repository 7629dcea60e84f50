// The bubble of a pipeline in a step that was run: how long a stage waits because of the schedule,
// were messages free.
//
// Definition: the schedule's lists are timed once more (RunPipelineSchedule) with the durations
// that the passes of all stages had in the step, and messages that take no time. What a stage idles
// in that timing, from the first pass of any stage to the last of any, is its bubble: unequal
// stages and passes that were slow are part of it, as far as the others wait for them. The rest of
// what the stage really waited for its inputs is communication that nothing hid. A duration is the
// distance of two readings of one host's clock, so that clocks of hosts need not agree.
//
// A wait may begin later, or be shorter, than in the timing. So idle time is a budget: each wait
// takes of it what the timing has idled up to that pass and no wait before has taken.
// Pure functions; thread-safe. On a GPU the host's times are those of launches: no bubble there.
#ifndef WEFT_TRAINER_PARALLEL_PIPELINE_BUBBLE_H_
#define WEFT_TRAINER_PARALLEL_PIPELINE_BUBBLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::train {

// A pass as it ran on its stage, by SystemClock.
struct PassTime {
  int64_t wait_ns = 0;   // when it began to wait for its input
  int64_t start_ns = 0;  // when that was there
  int64_t end_ns = 0;
};

struct PipelineBubble {
  double waits = 0;   // seconds of this stage's waits for inputs that are bubble
  double behind = 0;  // seconds that the stage idles behind its last pass: what waits there is not
                      // the pipeline's
  double share = 0;   // of all stages' time in the timing
  struct Span {
    int64_t start_ns = 0, end_ns = 0;
  };
  std::vector<Span> spans;  // the parts of `waits`, in their order
};

// `by_pass`: seconds of all stages' passes, in the schedule's form; `times`: of this stage.
absl::StatusOr<PipelineBubble> BubbleOf(const topology::PipelineSpec& spec,
                                        const topology::PipelineSchedule& schedule,
                                        const std::vector<std::vector<double>>& by_pass, int stage,
                                        absl::Span<const PassTime> times);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_PIPELINE_BUBBLE_H_
