#include "trainer/parallel/pipeline.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace weft::train {

PipelineRunner::PipelineRunner(const topology::PipelineSpec& spec, Group* group, int64_t rows,
                               int64_t width, const at::TensorOptions& options, int receives_ahead)
    : spec_(spec),
      group_(group),
      stage_(group->rank()),
      rows_(rows),
      width_(width),
      options_(options),
      receives_ahead_(static_cast<size_t>(receives_ahead)) {
  WEFT_CHECK(spec.stages == group->size(), spec.stages << " stages, " << group->size() << " ranks");
}

uint32_t PipelineRunner::TagOf(const topology::PipelinePass& pass, int target_depth) const {
  return topology::ChannelNumber(pass.kind, target_depth) *
             static_cast<uint32_t>(spec_.micro_batches) +
         static_cast<uint32_t>(pass.micro_batch);
}

PipelineRunner::Edge PipelineRunner::Towards(const topology::PipelinePass& pass,
                                             bool output) const {
  if (pass.kind == topology::PassKind::kWeight) return {};
  const int depth = DepthOf(spec_, stage_, pass.chunk);
  const int step = (pass.kind == topology::PassKind::kForward) == output ? 1 : -1;
  const int other = depth + step;
  if (other < 0 || other >= spec_.depth()) return {};
  const topology::ChunkPlace place = PlaceOfDepth(spec_, other);
  const int target = output ? other : depth;
  return {place.stage == stage_ ? Edge::kHere : Edge::kMessage, place.stage, place.chunk,
          TagOf(pass, target), topology::ChannelNumber(pass.kind, target)};
}

absl::Status PipelineRunner::PostReceives(absl::Span<const topology::PipelinePass> passes,
                                          size_t end) {
  for (; posted_ < std::min(end, passes.size()); ++posted_) {
    const Edge edge = Towards(passes[posted_], /*output=*/false);
    if (edge.kind != Edge::kMessage) continue;
    at::Tensor tensor = at::empty({rows_, width_}, options_);
    WEFT_ASSIGN_OR_RETURN(Pending pending,
                          group_->Receive(tensor, edge.stage, edge.tag, edge.channel));
    awaited_.push_back({posted_, std::move(tensor), std::move(pending)});
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> PipelineRunner::TakeInput(const topology::PipelinePass& pass) {
  const Edge edge = Towards(pass, /*output=*/false);
  if (edge.kind == Edge::kNone) return at::Tensor();
  if (edge.kind == Edge::kHere) {
    auto found = std::find_if(kept_.begin(), kept_.end(),
                              [&](const Kept& kept) { return kept.tag == edge.tag; });
    WEFT_CHECK(found != kept_.end(), "no input for micro-batch " << pass.micro_batch);
    at::Tensor tensor = std::move(found->tensor);
    kept_.erase(found);
    return tensor;
  }
  Awaited next = std::move(awaited_.front());
  awaited_.pop_front();
  WEFT_RETURN_IF_ERROR(group_->Wait(next.pending));
  return next.tensor;
}

absl::Status PipelineRunner::HandOn(const topology::PipelinePass& pass, at::Tensor output) {
  const Edge edge = Towards(pass, /*output=*/true);
  if (edge.kind == Edge::kHere) {
    kept_.push_back({edge.tag, std::move(output)});
  } else if (edge.kind == Edge::kMessage) {
    WEFT_ASSIGN_OR_RETURN(Pending pending,
                          group_->Send(output.contiguous(), edge.stage, edge.tag, edge.channel));
    sends_.push_back(std::move(pending));
  }
  return ReapSends(/*all=*/false);
}

// No pass waits for a send: two neighbours that did could wait for each other.
absl::Status PipelineRunner::ReapSends(bool all) {
  while (!sends_.empty()) {
    bool finished = all;
    if (all) {
      WEFT_RETURN_IF_ERROR(group_->Wait(sends_.front()));
    } else {
      WEFT_ASSIGN_OR_RETURN(finished, group_->TryFinish(sends_.front()));
    }
    if (!finished) break;
    sends_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status PipelineRunner::Run(absl::Span<const topology::PipelinePass> passes,
                                 PipelineStage& stage) {
  posted_ = 0;
  times_.clear();
  const bool is_first = !std::exchange(has_run_, true);
  const size_t ahead = is_first && options_.device().is_cuda() ? 0 : receives_ahead_;
  for (size_t i = 0; i < passes.size(); ++i) {
    const topology::PipelinePass& pass = passes[i];
    WEFT_RETURN_IF_ERROR(PostReceives(passes, i + 1));
    PassTime& time = times_.emplace_back();
    time.wait_ns = SystemClock::Nanoseconds();
    WEFT_ASSIGN_OR_RETURN(at::Tensor input, TakeInput(pass));
    time.start_ns = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(PostReceives(passes, i + 1 + ahead));
    at::Tensor output;
    switch (pass.kind) {
      case topology::PassKind::kForward: {
        WEFT_ASSIGN_OR_RETURN(output,
                              stage.Forward(pass.chunk, pass.micro_batch, std::move(input)));
        break;
      }
      case topology::PassKind::kBackward: {
        WEFT_ASSIGN_OR_RETURN(output,
                              stage.Backward(pass.chunk, pass.micro_batch, std::move(input)));
        break;
      }
      case topology::PassKind::kWeight:
        WEFT_RETURN_IF_ERROR(stage.Weight(pass.chunk, pass.micro_batch));
        break;
    }
    time.end_ns = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(HandOn(pass, std::move(output)));
  }
  return ReapSends(/*all=*/true);
}

}  // namespace weft::train
