// timeline.svg of a run: what every rank did in its last steps, as one picture that needs nothing
// else to be seen. A rank has a lane for its computation, with the waits on top of it, and a
// narrower one for each track of communication that has spans. Times are the trace's: those of
// ranks on other hosts have clocks of their own.
#ifndef WEFT_TRAINER_PLOT_TIMELINE_H_
#define WEFT_TRAINER_PLOT_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::train {

struct TimelineSpan {
  int rank = 0;
  int track = 0;     // 0: computation
  std::string name;  // "forward", "wait_all_gather", "all_gather"
  double start = 0;  // microseconds
  double duration = 0;
  int64_t step = -1;  // -1: none
};

// The spans of ChromeEvents (base/trace.h), one part a rank. InvalidArgument: it is something else.
absl::StatusOr<std::vector<TimelineSpan>> ParseTimeline(const std::vector<std::string>& parts);

// The spans of the last `steps` steps that there are. `tracks`: names by number; spans of other
// tracks are not drawn. At most the first kTimelineRanksMost ranks are.
inline constexpr int kTimelineRanksMost = 64;
std::string DrawTimeline(const std::vector<TimelineSpan>& spans,
                         const std::vector<std::string>& tracks, int64_t steps);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PLOT_TIMELINE_H_
