// The time line of a run's last steps, of all ranks: trace.json for viewers of traces, timeline.svg
// for people.
#ifndef WEFT_TRAINER_LOOP_RUN_TIMELINE_H_
#define WEFT_TRAINER_LOOP_RUN_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/groups/group.h"
#include "trainer/loop/step_trace.h"

namespace weft::train {

// The spans of the steps that are whole on every rank.
struct RunTimeline {
  std::vector<std::string> parts;  // of each rank, by ChromeEvents; on rank 0 alone
  std::string other;               // a JSON object: what is missing; empty: nothing is
};

// All ranks of `group` call it together, after the last step. `steps`: how many were asked for;
// rank 0 warns where there are fewer.
absl::StatusOr<RunTimeline> GatherTimeline(StepTrace& trace, int64_t steps, Group& group);

// Writes both files into `folder`; on rank 0.
absl::Status WriteTimeline(const RunTimeline& timeline, const std::string& folder);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RUN_TIMELINE_H_
