// When the passes of a pipeline end: what planning a schedule and timing one have in common. Used
// by one thread.
#ifndef WEFT_TOPOLOGY_JOB_PASS_ENDS_H_
#define WEFT_TOPOLOGY_JOB_PASS_ENDS_H_

#include <cstddef>
#include <vector>

#include "topology/job/pipeline_schedule.h"

namespace weft::topology {

inline double DurationOf(const PassDurations& durations, PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return durations.forward;
    case PassKind::kBackward:
      return durations.backward;
    case PassKind::kWeight:
      return durations.weight;
  }
  return 0;
}

// When each forward and backward pass has ended, by depth and micro-batch; -1: not yet.
class EndTimes {
 public:
  explicit EndTimes(const PipelineSpec& spec)
      : spec_(spec),
        ends_(static_cast<size_t>(spec.depth()) * static_cast<size_t>(spec.micro_batches) * 2, -1) {
  }

  double& Of(int depth, const PipelinePass& pass) {
    const size_t index = static_cast<size_t>(depth) * static_cast<size_t>(spec_.micro_batches) +
                         static_cast<size_t>(pass.micro_batch);
    return ends_[index * 2 + (pass.kind == PassKind::kForward ? 0 : 1)];
  }
  // When what `pass` needs is there; -1: what it needs has not run. `transfer` is added between two
  // stages.
  double Ready(int stage, const PipelinePass& pass, double transfer) {
    const int depth = DepthOf(spec_, stage, pass.chunk);
    if (pass.kind == PassKind::kWeight) {
      return Of(depth, {PassKind::kBackward, pass.chunk, pass.micro_batch});
    }
    const bool forward = pass.kind == PassKind::kForward;
    if (!forward && Of(depth, {PassKind::kForward, pass.chunk, pass.micro_batch}) < 0) return -1;
    if (forward && depth == 0) return 0;
    if (!forward && depth == spec_.depth() - 1) {
      return Of(depth, {PassKind::kForward, pass.chunk, pass.micro_batch});
    }
    const int source = forward ? depth - 1 : depth + 1;
    const double end = Of(source, pass);
    return end < 0 || PlaceOfDepth(spec_, source).stage == stage ? end : end + transfer;
  }

 private:
  const PipelineSpec& spec_;
  std::vector<double> ends_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_PASS_ENDS_H_
