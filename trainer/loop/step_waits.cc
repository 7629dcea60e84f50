#include "trainer/loop/step_waits.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/status.h"

namespace weft::train {

ExposedSeconds StepWaits::TakeExposed() {
  ExposedSeconds exposed;
  exposed.data = groups_->world->TakeExposedSeconds();
  for (Group* group : groups_->DataGroups()) exposed.data += group->TakeExposedSeconds();
  exposed.tensor = groups_->tensor->TakeExposedSeconds();
  exposed.context = groups_->context->TakeExposedSeconds();
  exposed.expert = groups_->expert->TakeExposedSeconds();
  exposed.pipeline = groups_->pipeline->TakeExposedSeconds();
  if (groups_->ends != nullptr) exposed.pipeline += groups_->ends->TakeExposedSeconds();
  return exposed;
}

absl::Status StepWaits::SendPassTimes(absl::Span<const PassTime> times, bool on_gpu) {
  if (plan_.sizes.pipeline == 1 || on_gpu) return absl::OkStatus();
  times_ = times;
  pass_seconds_ = at::zeros({plan_.sizes.pipeline, static_cast<int64_t>(times.size())},
                            at::TensorOptions(at::kDouble).device(at::kCPU));
  double* const mine = pass_seconds_.data_ptr<double>() +
                       static_cast<size_t>(groups_->pipeline->rank()) * times.size();
  for (size_t i = 0; i < times.size(); ++i) {
    mine[i] = static_cast<double>(times[i].end_ns - times[i].start_ns) * 1e-9;
  }
  WEFT_ASSIGN_OR_RETURN(under_way_, groups_->pipeline->AllReduceSum(pass_seconds_));
  return absl::OkStatus();
}

absl::StatusOr<StepResult::Bubble> StepWaits::TakeBubble(int64_t step, ExposedSeconds& exposed) {
  const double* const seconds = pass_seconds_.data_ptr<double>();
  std::vector<std::vector<double>> by_pass;
  for (int64_t stage = 0; stage < pass_seconds_.size(0); ++stage) {
    const double* const row = seconds + stage * pass_seconds_.size(1);
    by_pass.emplace_back(row, row + pass_seconds_.size(1));
  }
  WEFT_ASSIGN_OR_RETURN(const PipelineBubble bubble, BubbleOf(plan_.pipeline, schedule_, by_pass,
                                                              groups_->pipeline->rank(), times_));
  StepResult::Bubble result;
  result.share = bubble.share;
  const auto take = [&result](double most, double& from) {
    const double part = std::min(most, from);
    from -= part;
    result.seconds += part;
    return part;
  };
  take(bubble.waits, exposed.pipeline);
  const double behind = take(bubble.behind, exposed.data);
  if (trace_ == nullptr) return result;
  for (const PipelineBubble::Span& span : bubble.spans) {
    trace_->Record({"bubble", kBubbleTrack, span.start_ns, span.end_ns, step, -1});
  }
  if (const int64_t end = times_.back().end_ns; behind > 0) {
    trace_->Record({"bubble", kBubbleTrack, end, end + std::llround(behind * 1e9), step, -1});
  }
  return result;
}

absl::Status StepWaits::Account(int64_t step, StepResult& result) {
  if (under_way_) WEFT_RETURN_IF_ERROR(groups_->pipeline->Wait(*under_way_));
  result.exposed = TakeExposed();
  if (plan_.sizes.pipeline == 1) {
    result.bubble.emplace();
  } else if (std::exchange(under_way_, std::nullopt).has_value()) {
    WEFT_ASSIGN_OR_RETURN(result.bubble, TakeBubble(step, result.exposed));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
