#include "topology/job/pipeline_replan.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "topology/job/zero_bubble_v.h"

namespace weft::topology {
namespace {

// Lengths of backward passes that lists are made for, over the real ones.
constexpr std::array<double, 7> kBackward = {1, 1.15, 1.3, 1.45, 1.6, 1.8, 2};
// Makespan of new lists over that of the old ones, at most.
constexpr double kWorthwhile = 0.99;
// Passes of all stages up to which the seven lists are made in some seconds.
constexpr int64_t kPassesMost = 1 << 20;

bool HoldsNoMore(const PipelineTiming& timing, const PipelineTiming& before) {
  for (size_t stage = 0; stage < timing.activations_held.size(); ++stage) {
    if (timing.activations_held[stage] > before.activations_held[stage]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<PipelineReplan> ReplanPipeline(const PipelineSpec& spec,
                                              const PipelineSchedule& current,
                                              absl::Span<const PassDurations> by_depth,
                                              absl::Span<const PipelinePass> kept) {
  WEFT_RETURN_IF_ERROR(CheckDurations(spec, by_depth));
  WEFT_ASSIGN_OR_RETURN(const PipelineTiming before, RunPipelineSchedule(spec, current, by_depth));
  PipelineReplan replan{
      .schedule = current, .bubble_before = before.bubble, .bubble = before.bubble};
  const int64_t passes = int64_t{spec.depth()} * spec.micro_batches * 3;
  if (!DependsOnDurations(spec.kind) || passes > kPassesMost) return replan;
  double shortest = kWorthwhile * before.makespan;
  for (const double longer : kBackward) {
    std::vector<PassDurations> durations(by_depth.begin(), by_depth.end());
    for (PassDurations& one : durations) one.backward *= longer;
    absl::StatusOr<PipelineSchedule> made = PlanZeroBubbleV(spec, durations, kept);
    if (!made.ok()) continue;  // list scheduling found no way to keep the order
    const absl::StatusOr<PipelineTiming> timing = RunPipelineSchedule(spec, *made, by_depth);
    if (!timing.ok()) {
      if (replan.refused.empty()) replan.refused = std::string(timing.status().message());
      continue;
    }
    if (timing->makespan >= shortest || !HoldsNoMore(*timing, before)) continue;
    shortest = timing->makespan;
    replan.schedule = *std::move(made);
    replan.bubble = timing->bubble;
    replan.is_new = true;
  }
  return replan;
}

}  // namespace weft::topology
