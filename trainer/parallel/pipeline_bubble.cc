#include "trainer/parallel/pipeline_bubble.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {

absl::StatusOr<PipelineBubble> BubbleOf(const topology::PipelineSpec& spec,
                                        const topology::PipelineSchedule& schedule,
                                        const std::vector<std::vector<double>>& by_pass, int stage,
                                        absl::Span<const PassTime> times) {
  WEFT_ASSIGN_OR_RETURN(const topology::PipelineTiming timing,
                        RunPipelineSchedule(spec, schedule, by_pass));
  const auto& ideal = timing.stages[static_cast<size_t>(stage)];
  if (ideal.size() != times.size()) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, " has ", ideal.size(),
                                                   " passes, and times of ", times.size()));
  }
  PipelineBubble bubble;
  bubble.share = timing.bubble;
  double budget = 0, ended = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    budget += ideal[i].start - ended;
    ended = ideal[i].end;
    const double waited = static_cast<double>(times[i].start_ns - times[i].wait_ns) * 1e-9;
    const double part = std::min(budget, waited);
    if (part <= 0) continue;
    budget -= part;
    bubble.waits += part;
    bubble.spans.push_back({times[i].wait_ns, times[i].wait_ns + std::llround(part * 1e9)});
  }
  bubble.behind = timing.makespan - ended;
  return bubble;
}

}  // namespace weft::train
