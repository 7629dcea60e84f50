#include "topology/job/zero_bubble_v.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "base/status.h"
#include "topology/job/pass_ends.h"

namespace weft::topology {
namespace {

// Durations in whole numbers, of which sums are exact: passes that end at one time by arithmetic do
// so in the plan, too.
std::vector<PassDurations> InTicks(absl::Span<const PassDurations> by_depth) {
  constexpr double kTicks = 1 << 20;  // of the longest
  double longest = 0;
  for (const PassDurations& one : by_depth) {
    longest = std::max({longest, one.forward, one.backward, one.weight, one.transfer});
  }
  const double scale = longest > 0 ? kTicks / longest : 0;
  std::vector<PassDurations> ticks;
  for (const PassDurations& one : by_depth) {
    ticks.push_back({.forward = std::round(one.forward * scale),
                     .backward = std::round(one.backward * scale),
                     .weight = std::round(one.weight * scale),
                     .transfer = std::round(one.transfer * scale)});
  }
  return ticks;
}

class Planner {
 public:
  Planner(const PipelineSpec& spec, absl::Span<const PassDurations> by_depth,
          absl::Span<const PipelinePass> kept)
      : spec_(spec),
        by_depth_(InTicks(by_depth)),
        kept_(kept),
        ends_(spec),
        stages_(static_cast<size_t>(spec.stages)) {
    for (const PipelinePass& pass : kept) IsKept(pass) = true;
  }

  absl::StatusOr<PipelineSchedule> Plan() {
    PipelineSchedule orders(stages_.size());
    for (int s = 0; s < spec_.stages; ++s) turns_.emplace(0, s);
    while (!turns_.empty()) {
      const auto [now, s] = turns_.top();
      turns_.pop();
      PipelinePass pass;
      if (now < stages_[static_cast<size_t>(s)].free_at || !Choose(s, now, pass)) continue;
      Take(s, pass, now);
      orders[static_cast<size_t>(s)].push_back(pass);
    }
    for (const std::vector<PipelinePass>& order : orders) {
      if (order.size() == static_cast<size_t>(spec_.micro_batches) * 2 * 3) continue;
      WEFT_CHECK(!kept_.empty(), "no stage can go on");
      return absl::FailedPreconditionError(
          "zb-v: no stage can go on where the first one keeps the order of its passes");
    }
    return orders;
  }

 private:
  struct Stage {
    std::array<int, 2> next_forward = {0, 0}, next_backward = {0, 0};  // by chunk: micro-batch
    std::array<int, 2> held = {0, 0};                                  // by chunk
    std::vector<PipelinePass> weights;                                 // due
    size_t weights_done = 0;
    double free_at = 0;
  };

  // Whether kept_ has the passes of this one's kind and chunk.
  bool& IsKept(const PipelinePass& pass) {
    return is_kept_[static_cast<size_t>(pass.kind)][static_cast<size_t>(pass.chunk)];
  }
  bool IsItsTurn(int s, const PipelinePass& pass) {
    return s != 0 || !IsKept(pass) || (kept_done_ < kept_.size() && kept_[kept_done_] == pass);
  }

  bool IsReady(int s, const PipelinePass& pass, double now) {
    if (pass.micro_batch == spec_.micro_batches || !IsItsTurn(s, pass)) return false;
    const size_t depth = static_cast<size_t>(DepthOf(spec_, s, pass.chunk));
    const double ready = ends_.Ready(s, pass, by_depth_[depth].transfer);
    return ready >= 0 && ready <= now;
  }

  bool HasRoom(const Stage& stage, int chunk) const {
    const int most = 2 * spec_.stages;
    return stage.held[0] + stage.held[1] < most && (chunk == 1 || stage.held[0] < most - 1);
  }

  bool Choose(int s, double now, PipelinePass& pass) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    for (int chunk : {0, 1}) {
      pass = {PassKind::kBackward, chunk, stage.next_backward[static_cast<size_t>(chunk)]};
      if (IsReady(s, pass, now)) return true;
    }
    for (int chunk : {1, 0}) {
      pass = {PassKind::kForward, chunk, stage.next_forward[static_cast<size_t>(chunk)]};
      if (HasRoom(stage, chunk) && IsReady(s, pass, now)) return true;
    }
    if (stage.weights_done == stage.weights.size()) return false;
    pass = stage.weights[stage.weights_done];
    return IsItsTurn(s, pass);
  }

  void Take(int s, const PipelinePass& pass, double now) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    const size_t chunk = static_cast<size_t>(pass.chunk);
    const int depth = DepthOf(spec_, s, pass.chunk);
    const double end = now + DurationOf(by_depth_[static_cast<size_t>(depth)], pass.kind);
    stage.free_at = end;
    turns_.emplace(end, s);
    if (s == 0 && IsKept(pass)) ++kept_done_;
    if (pass.kind == PassKind::kWeight) {
      ++stage.weights_done;
      --stage.held[chunk];
      return;
    }
    if (pass.kind == PassKind::kForward) {
      ++stage.next_forward[chunk];
      ++stage.held[chunk];
    } else {
      ++stage.next_backward[chunk];
      stage.weights.push_back({PassKind::kWeight, pass.chunk, pass.micro_batch});
    }
    ends_.Of(depth, pass) = end;
    const int target = pass.kind == PassKind::kForward ? depth + 1 : depth - 1;
    if (target < 0 || target >= spec_.depth()) return;
    turns_.emplace(end + by_depth_[static_cast<size_t>(target)].transfer,
                   PlaceOfDepth(spec_, target).stage);
  }

  // When a stage is free or has its input, and its number; the earliest first.
  using Turn = std::pair<double, int>;

  const PipelineSpec& spec_;
  const std::vector<PassDurations> by_depth_;
  const absl::Span<const PipelinePass> kept_;
  std::array<std::array<bool, 2>, 3> is_kept_ = {};  // by kind and chunk
  size_t kept_done_ = 0;
  EndTimes ends_;
  std::vector<Stage> stages_;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
};

}  // namespace

absl::StatusOr<PipelineSchedule> PlanZeroBubbleV(const PipelineSpec& spec,
                                                 absl::Span<const PassDurations> by_depth,
                                                 absl::Span<const PipelinePass> kept) {
  return Planner(spec, by_depth, kept).Plan();
}

}  // namespace weft::topology
