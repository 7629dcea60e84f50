// A pipeline's lists, planned anew once for the durations that the first steps' passes had.
//
//   steps 1 and 2 of a start  not measured: libraries choose kernels and take memory
//   steps 3 to 6              each rank keeps the durations of its passes
//   before step 7             all ranks exchange their medians; each makes the lists of all stages
//                             from the same whole numbers (topology/job/pipeline_replan.h)
//
// A resumed or recovered run does so again, on all ranks together, since each start has new
// objects. With ReplanKind::kBitwise new lists add up every gradient in the order in which the
// first lists do. The passes of a kind on a chunk are by micro-batch in all lists; only a tied
// embedding has gradients of two chunks on one stage.
// Used by one thread.
#ifndef WEFT_TRAINER_PARALLEL_SCHEDULE_REPLAN_H_
#define WEFT_TRAINER_PARALLEL_SCHEDULE_REPLAN_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/parallel/pipeline_bubble.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// Durations of one stage's passes over some steps.
class MeasuredPasses {
 public:
  MeasuredPasses(const topology::PipelineSpec& spec, int stage);
  // A step's passes and their times, in the same order.
  void Add(absl::Span<const topology::PipelinePass> passes, absl::Span<const PassTime> times);
  // The stage, and for each of its chunks the medians of forward, backward and weight passes, in
  // nanoseconds; 0 where there was none: "1 900 1100 800 950 1200 790".
  std::string ToText() const;

 private:
  const int stage_;
  std::vector<std::array<std::vector<int64_t>, 3>> nanoseconds_;  // by chunk and kind
};

// For each chunk of the model the medians of what the ranks of its stage measured, in nanoseconds;
// messages take no time, as for the bubble. `texts`: MeasuredPasses::ToText of all ranks. DataLoss
// names the rank whose text is none, or the stage that no rank has measured.
absl::StatusOr<std::vector<topology::PassDurations>> MedianDurations(
    const topology::PipelineSpec& spec, absl::Span<const std::string> texts);

// The passes of stage 0 whose order the sum of a tied embedding's gradient depends on, as
// `schedule` has them; empty where no parameter's gradient comes from two chunks of one stage.
std::vector<topology::PipelinePass> OrderOfTiedGradients(
    const TrainConfig& config, const topology::PipelineSpec& spec,
    const topology::PipelineSchedule& schedule);

class ScheduleReplan {
 public:
  static constexpr int kFirstMeasured = 3, kLastMeasured = 6;  // steps since the start

  // Whether a run makes its lists anew: zb-v on several stages of CPUs (a GPU's passes take other
  // times than their launches), unless parallel.replan = off.
  static bool IsWanted(const TrainConfig& config, const topology::PipelineSpec& spec);

  // `world` has all ranks of the job; it and `config` outlive this object.
  ScheduleReplan(const TrainConfig& config, const topology::PipelineSpec& spec, int stage,
                 Group* world);

  // Before the passes of each step, on all ranks. In the step after the last measured one the
  // result says what came of planning anew, and `better` has the new lists where they are better
  // than `current`; in every other step both are empty. An error of the exchange ends the step.
  absl::StatusOr<std::string> BeforeStep(const topology::PipelineSchedule& current,
                                         topology::PipelineSchedule& better);
  // After the passes of each step.
  void AddStep(absl::Span<const topology::PipelinePass> passes, absl::Span<const PassTime> times);

 private:
  const TrainConfig& config_;
  const topology::PipelineSpec spec_;
  Group* const world_;
  const bool is_wanted_;
  int steps_ = 0;  // begun
  MeasuredPasses measured_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_SCHEDULE_REPLAN_H_
