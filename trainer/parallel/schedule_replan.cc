#include "trainer/parallel/schedule_replan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/median.h"
#include "base/status.h"
#include "topology/job/pipeline_replan.h"

namespace weft::train {
namespace {

using topology::PassDurations;
using topology::PassKind;
using topology::PipelinePass;
using topology::PipelineSchedule;
using topology::PipelineSpec;

constexpr size_t kKinds = 3;

}  // namespace

MeasuredPasses::MeasuredPasses(const PipelineSpec& spec, int stage)
    : stage_(stage), nanoseconds_(static_cast<size_t>(spec.chunks)) {}

void MeasuredPasses::Add(absl::Span<const PipelinePass> passes, absl::Span<const PassTime> times) {
  WEFT_CHECK(passes.size() == times.size(), passes.size()
                                                << " passes with " << times.size() << " times");
  for (size_t i = 0; i < passes.size(); ++i) {
    nanoseconds_[static_cast<size_t>(passes[i].chunk)][static_cast<size_t>(passes[i].kind)]
        .push_back(std::max<int64_t>(0, times[i].end_ns - times[i].start_ns));
  }
}

std::string MeasuredPasses::ToText() const {
  std::string text = absl::StrCat(stage_);
  for (const auto& chunk : nanoseconds_) {
    for (const std::vector<int64_t>& kind : chunk) absl::StrAppend(&text, " ", LowerMedian(kind));
  }
  return text;
}

absl::StatusOr<std::vector<PassDurations>> MedianDurations(const PipelineSpec& spec,
                                                           absl::Span<const std::string> texts) {
  const auto depths = static_cast<size_t>(spec.depth());
  std::vector<std::array<std::vector<int64_t>, kKinds>> all(depths);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::vector<std::string> words = absl::StrSplit(texts[rank], ' ');
    const auto error = [&] {
      return absl::DataLossError(absl::StrCat("rank ", rank, " sent '", texts[rank],
                                              "' as its stage and the durations of its passes"));
    };
    int stage = -1;
    if (words.size() != 1 + static_cast<size_t>(spec.chunks) * kKinds ||
        !absl::SimpleAtoi(words[0], &stage) || stage < 0 || stage >= spec.stages) {
      return error();
    }
    for (size_t i = 1; i < words.size(); ++i) {
      int64_t nanoseconds = 0;
      if (!absl::SimpleAtoi(words[i], &nanoseconds) || nanoseconds < 0) return error();
      const int chunk = static_cast<int>((i - 1) / kKinds);
      all[static_cast<size_t>(DepthOf(spec, stage, chunk))][(i - 1) % kKinds].push_back(
          nanoseconds);
    }
  }
  std::vector<PassDurations> durations;
  for (size_t depth = 0; depth < depths; ++depth) {
    if (all[depth][0].empty()) {
      return absl::DataLossError(absl::StrCat("no rank sent the durations of stage ",
                                              PlaceOfDepth(spec, static_cast<int>(depth)).stage));
    }
    auto median = [&](PassKind kind) {
      return static_cast<double>(LowerMedian(all[depth][static_cast<size_t>(kind)]));
    };
    durations.push_back({.forward = median(PassKind::kForward),
                         .backward = median(PassKind::kBackward),
                         .weight = median(PassKind::kWeight)});
  }
  return durations;
}

std::vector<PipelinePass> OrderOfTiedGradients(const TrainConfig& config, const PipelineSpec& spec,
                                               const PipelineSchedule& schedule) {
  const topology::ChunkPlace end = PlaceOfDepth(spec, spec.depth() - 1);
  if (!config.model.tied || spec.stages == 1 || end.stage != 0 || end.chunk == 0) return {};
  // The embedding's gradient comes in the backward pass. That of the output projection comes with
  // the loss in the forward pass, or in the backward pass where each micro-batch is reduced
  // (model/loss.cc).
  const PassKind of_output = config.zero_stage >= 2 ? PassKind::kBackward : PassKind::kForward;
  std::vector<PipelinePass> order;
  for (const PipelinePass& pass : schedule[0]) {
    const bool is_embedding = pass.chunk == 0 && pass.kind == PassKind::kBackward;
    const bool is_output = pass.chunk == end.chunk && pass.kind == of_output;
    if (is_embedding || is_output) order.push_back(pass);
  }
  return order;
}

bool ScheduleReplan::IsWanted(const TrainConfig& config, const PipelineSpec& spec) {
  return config.replan != ReplanKind::kOff && config.device != DeviceKind::kCuda &&
         spec.stages > 1 && topology::DependsOnDurations(spec.kind);
}

ScheduleReplan::ScheduleReplan(const TrainConfig& config, const PipelineSpec& spec, int stage,
                               Group* world)
    : config_(config),
      spec_(spec),
      world_(world),
      is_wanted_(IsWanted(config, spec)),
      measured_(spec, stage) {}

absl::StatusOr<std::string> ScheduleReplan::BeforeStep(const PipelineSchedule& current,
                                                       PipelineSchedule& better) {
  better.clear();
  if (!is_wanted_ || steps_ > kLastMeasured || ++steps_ <= kLastMeasured) return std::string();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, world_->Gather(measured_.ToText()));
  WEFT_ASSIGN_OR_RETURN(const std::vector<PassDurations> durations, MedianDurations(spec_, texts));
  std::vector<PipelinePass> kept;
  if (config_.replan == ReplanKind::kBitwise) {
    kept = OrderOfTiedGradients(config_, spec_, current);
  }
  WEFT_ASSIGN_OR_RETURN(topology::PipelineReplan replan,
                        ReplanPipeline(spec_, current, durations, kept));
  std::string text = absl::StrFormat(
      "pipeline: with the passes' durations in steps %d to %d since the start the bubble of its "
      "lists is %.1f %%",
      kFirstMeasured, kLastMeasured, 100 * replan.bubble_before);
  if (replan.is_new) {
    absl::StrAppendFormat(&text, "; new lists make it %.1f %% (parallel.replan)",
                          100 * replan.bubble);
    better = std::move(replan.schedule);
  } else {
    absl::StrAppend(&text, "; no others were found that make the passes 1 % shorter");
  }
  if (!replan.refused.empty()) absl::StrAppend(&text, "; lists were refused: ", replan.refused);
  return text;
}

void ScheduleReplan::AddStep(absl::Span<const PipelinePass> passes,
                             absl::Span<const PassTime> times) {
  if (is_wanted_ && steps_ >= kFirstMeasured && steps_ <= kLastMeasured) {
    measured_.Add(passes, times);
  }
}

}  // namespace weft::train
