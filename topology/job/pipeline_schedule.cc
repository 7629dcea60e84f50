#include "topology/job/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "topology/job/pass_ends.h"
#include "topology/job/zero_bubble_v.h"

namespace weft::topology {
namespace {

using Kind = PipelineScheduleKind;

constexpr std::array<const char*, 6> kNames = {"gpipe",       "1f1b",  "eager-1f1b",
                                               "interleaved", "zb-h1", "zb-v"};

std::string Describe(const PipelinePass& pass) {
  constexpr std::array<const char*, 3> kKinds = {"forward", "backward", "weight"};
  return absl::StrCat(kKinds[static_cast<size_t>(pass.kind)], " pass of micro-batch ",
                      pass.micro_batch, ", chunk ", pass.chunk);
}

absl::Status Check(const PipelineSpec& spec) {
  auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("pipeline schedule ", ToString(spec.kind), ": ", what));
  };
  if (spec.stages < 1 || spec.stages > 4096) return error(absl::StrCat(spec.stages, " stages"));
  if (spec.micro_batches < 1 || spec.micro_batches > 1 << 20) {
    return error(absl::StrCat(spec.micro_batches, " micro-batches"));
  }
  if (spec.chunks < 1 || spec.chunks > 1024) {
    return error(absl::StrCat(spec.chunks, " chunks a stage"));
  }
  // The lists of all stages are in memory.
  constexpr int64_t kForwardsMost = 1 << 24;
  if (int64_t{spec.stages} * spec.chunks * spec.micro_batches > kForwardsMost) {
    return error(absl::StrCat(spec.stages, " stages with ", spec.micro_batches,
                              " micro-batches; their product, times the chunks a stage, may be ",
                              kForwardsMost));
  }
  const bool interleaved = spec.kind == Kind::kInterleaved;
  if (interleaved && spec.chunks < 2) return error("needs 2 chunks a stage or more, not 1");
  if (interleaved && spec.micro_batches % spec.stages != 0) {
    return error(absl::StrCat(spec.micro_batches, " micro-batches; a multiple of the ", spec.stages,
                              " stages is right"));
  }
  if (spec.kind == Kind::kZeroBubbleV && spec.chunks != 2) {
    return error(absl::StrCat(spec.chunks, " chunks a stage; 2 is right"));
  }
  if (!interleaved && spec.kind != Kind::kZeroBubbleV && spec.chunks != 1) {
    return error(absl::StrCat(spec.chunks, " chunks a stage; 1 is right"));
  }
  return absl::OkStatus();
}

// The k-th forward (or backward) pass of a stage under gpipe, 1f1b, eager-1f1b and interleaved.
PipelinePass Kth(const PipelineSpec& spec, int k, PassKind kind) {
  PipelinePass pass{.kind = kind, .micro_batch = k};
  if (spec.chunks == 1) return pass;
  const int p = spec.stages, v = spec.chunks;
  const int in_group = k % (p * v);
  pass.chunk = kind == PassKind::kBackward ? v - 1 - in_group / p : in_group / p;
  pass.micro_batch = k / (p * v) * p + in_group % p;
  return pass;
}

// Forward passes of a stage before it alternates. Under eager-1f1b two neighbours have three
// micro-batches under way where 1f1b has two: while each runs its passes of one, the messages of
// the third travel.
int WarmUp(const PipelineSpec& spec, int stage) {
  const int total = spec.micro_batches * spec.chunks;
  if (spec.kind == Kind::kGpipe) return total;
  const int behind = spec.stages - 1 - stage;
  if (spec.kind == Kind::k1F1B) return std::min(behind, total);
  return std::min(2 * behind + (spec.chunks - 1) * spec.stages, total);
}

std::vector<PipelinePass> Alternate(const PipelineSpec& spec, int stage) {
  const int total = spec.micro_batches * spec.chunks;
  const int warm_up = WarmUp(spec, stage);
  std::vector<PipelinePass> order;
  order.reserve(static_cast<size_t>(total) * 2);
  for (int k = 0; k < warm_up; ++k) order.push_back(Kth(spec, k, PassKind::kForward));
  for (int k = 0; k < total; ++k) {
    if (k + warm_up < total) order.push_back(Kth(spec, k + warm_up, PassKind::kForward));
    order.push_back(Kth(spec, k, PassKind::kBackward));
  }
  return order;
}

// zb-h1: 1f1b, whose stage i puts each weight pass off until i others are due, so that it holds p
// activations at most; the passes put off fill the time in which 1f1b drains.
std::vector<PipelinePass> ZeroBubbleH1(const PipelineSpec& spec, int stage) {
  const int m = spec.micro_batches;
  std::vector<PipelinePass> order;
  int forwards = 0, weights = 0;
  auto forward = [&] { order.push_back({PassKind::kForward, 0, forwards++}); };
  while (forwards < std::min(m, spec.stages - 1 - stage)) forward();
  for (int k = 0; k < m; ++k) {
    if (forwards < m) forward();
    order.push_back({PassKind::kBackward, 0, k});
    if (k >= stage) order.push_back({PassKind::kWeight, 0, weights++});
  }
  while (weights < m) order.push_back({PassKind::kWeight, 0, weights++});
  return order;
}

// The half layers of a model, of which the even ones are first halves, cut into consecutive chunks.
struct HalfLayers {
  double first_cost = 0, end_cost = 0;
  int64_t count = 0;

  double CostOf(int64_t half) const { return half % 2 == 0 ? first_cost : 1 - first_cost; }

  std::vector<double> StageCosts(const PipelineSpec& spec,
                                 const std::vector<int64_t>& halves) const {
    const std::vector<double> costs = CostsOfHalfLayers(halves, first_cost, end_cost);
    std::vector<double> stages(static_cast<size_t>(spec.stages));
    for (size_t depth = 0; depth < costs.size(); ++depth) {
      stages[static_cast<size_t>(PlaceOfDepth(spec, static_cast<int>(depth)).stage)] +=
          costs[depth];
    }
    return stages;
  }
  double LargestStage(const PipelineSpec& spec, const std::vector<int64_t>& halves) const {
    const std::vector<double> stages = StageCosts(spec, halves);
    return *std::max_element(stages.begin(), stages.end());
  }

  // One chunk a stage, each as long as `most` allows, with one half at least for each behind it;
  // empty: they are too few.
  std::vector<int64_t> Fill(int stages, double most) const {
    std::vector<int64_t> halves;
    int64_t at = 0;
    for (int stage = 0; stage < stages; ++stage) {
      const int64_t behind = stages - 1 - stage, begin = at;
      double cost = behind == 0 ? end_cost : 0;
      while (at < count - behind && cost + CostOf(at) <= most) cost += CostOf(at++);
      if (at == begin) return {};
      halves.push_back(at - begin);
    }
    return at == count ? halves : std::vector<int64_t>();
  }
  // One chunk a stage, the largest as small as can be: by bisection.
  std::vector<int64_t> FewestAtMost(int stages) const {
    constexpr int kSteps = 40;
    double low = 0, high = static_cast<double>(count) + end_cost;
    for (int step = 0; step < kSteps; ++step) {
      const double middle = (low + high) / 2;
      (Fill(stages, middle).empty() ? low : high) = middle;
    }
    return Fill(stages, high);
  }
  // Moves the ends of chunks, a half at a time, to where both stages differ the least; none becomes
  // larger than the larger of both was.
  void Even(const PipelineSpec& spec, std::vector<int64_t>& halves) const {
    constexpr double kLeast = 1e-9;
    for (;;) {
      const std::vector<double> stages = StageCosts(spec, halves);
      double gain = kLeast;
      size_t best = 0;
      int64_t by = 0, end = 0;
      for (size_t depth = 0; depth + 1 < halves.size(); ++depth) {
        end += halves[depth];
        const int here = PlaceOfDepth(spec, static_cast<int>(depth)).stage;
        const int next = PlaceOfDepth(spec, static_cast<int>(depth) + 1).stage;
        if (here == next) continue;
        const double more = stages[static_cast<size_t>(here)] - stages[static_cast<size_t>(next)];
        for (int64_t step : {1, -1}) {
          if (halves[step > 0 ? depth + 1 : depth] < 2) continue;
          const double cost = step > 0 ? CostOf(end) : -CostOf(end - 1);
          const double smaller = std::abs(more) - std::abs(more + 2 * cost);
          if (smaller <= gain) continue;
          gain = smaller;
          best = depth;
          by = step;
        }
      }
      if (by == 0) return;
      halves[best] += by;
      halves[best + 1] -= by;
    }
  }
};

// Every pass once, and none that the schedule should not have.
absl::Status CheckComplete(const PipelineSpec& spec, const PipelineSchedule& schedule) {
  if (schedule.size() != static_cast<size_t>(spec.stages)) {
    return absl::FailedPreconditionError(
        absl::StrCat("a schedule of ", schedule.size(), " stages for ", spec.stages));
  }
  const int kinds = SplitsBackward(spec.kind) ? 3 : 2;
  const size_t per_kind =
      static_cast<size_t>(spec.chunks) * static_cast<size_t>(spec.micro_batches);
  for (size_t stage = 0; stage < schedule.size(); ++stage) {
    std::vector<bool> seen(per_kind * static_cast<size_t>(kinds));
    for (const PipelinePass& pass : schedule[stage]) {
      const bool exists = static_cast<int>(pass.kind) < kinds && pass.chunk >= 0 &&
                          pass.chunk < spec.chunks && pass.micro_batch >= 0 &&
                          pass.micro_batch < spec.micro_batches;
      const size_t index = (static_cast<size_t>(pass.kind) * static_cast<size_t>(spec.chunks) +
                            static_cast<size_t>(pass.chunk)) *
                               static_cast<size_t>(spec.micro_batches) +
                           static_cast<size_t>(pass.micro_batch);
      if (!exists || seen[index]) {
        return absl::FailedPreconditionError(absl::StrCat(
            "stage ", stage, " has the ", Describe(pass), exists ? " twice" : ", which is none"));
      }
      seen[index] = true;
    }
    if (schedule[stage].size() != seen.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "stage ", stage, " has ", schedule[stage].size(), " passes of ", seen.size()));
    }
  }
  return absl::OkStatus();
}

// The micro-batches of the passes of `kind` on the chunk at `depth`, in their order.
std::vector<int> OrderOf(const PipelineSpec& spec, const PipelineSchedule& schedule, PassKind kind,
                         int depth) {
  const ChunkPlace place = PlaceOfDepth(spec, depth);
  std::vector<int> order;
  for (const PipelinePass& pass : schedule[static_cast<size_t>(place.stage)]) {
    if (pass.kind == kind && pass.chunk == place.chunk) order.push_back(pass.micro_batch);
  }
  return order;
}

// Every channel's messages are taken in the order in which they are sent.
absl::Status CheckOrder(const PipelineSpec& spec, const PipelineSchedule& schedule) {
  for (int depth = 0; depth + 1 < spec.depth(); ++depth) {
    const int stage = PlaceOfDepth(spec, depth).stage, next = PlaceOfDepth(spec, depth + 1).stage;
    if (stage == next) continue;
    for (const PassKind kind : {PassKind::kForward, PassKind::kBackward}) {
      if (OrderOf(spec, schedule, kind, depth) == OrderOf(spec, schedule, kind, depth + 1)) {
        continue;
      }
      const bool forward = kind == PassKind::kForward;
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", forward ? next : stage, " takes what stage ",
                       forward ? stage : next, " sends to it for the ",
                       forward ? "forward" : "backward", " passes of the model's chunk ",
                       forward ? depth + 1 : depth, " in another order than it is sent"));
    }
  }
  return absl::OkStatus();
}

// Every stage holds as much as its schedule's paper says, and not more.
absl::Status CheckMemory(const PipelineSpec& spec, const std::vector<int>& held) {
  for (int stage = 0; stage < spec.stages; ++stage) {
    const int here = held[static_cast<size_t>(stage)], most = ActivationsMost(spec, stage);
    if (here <= most) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "stage ", stage, " holds the activations of ", here, " forward passes at one time; ",
        ToString(spec.kind), " with ", spec.stages, " stages, ", spec.chunks, " chunks each and ",
        spec.micro_batches, " micro-batches holds ", most, " at most"));
  }
  return absl::OkStatus();
}

// `duration_of(stage, index of the pass)`.
template <typename Duration>
absl::StatusOr<PipelineTiming> RunWith(const PipelineSpec& spec, const PipelineSchedule& schedule,
                                       Duration duration_of, absl::Span<const double> transfers) {
  WEFT_RETURN_IF_ERROR(Check(spec));
  WEFT_RETURN_IF_ERROR(CheckComplete(spec, schedule));
  WEFT_RETURN_IF_ERROR(CheckOrder(spec, schedule));
  const size_t stages = schedule.size();
  EndTimes ends(spec);
  PipelineTiming timing;
  timing.stages.resize(stages);
  timing.activations_held.resize(stages);
  std::vector<size_t> next(stages);
  std::vector<double> free_at(stages);
  std::vector<int> held(stages);
  const PassKind releases = SplitsBackward(spec.kind) ? PassKind::kWeight : PassKind::kBackward;
  double busy = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages; ++s) {
      while (next[s] < schedule[s].size()) {
        const PipelinePass& pass = schedule[s][next[s]];
        const size_t depth = static_cast<size_t>(DepthOf(spec, static_cast<int>(s), pass.chunk));
        const double ready = ends.Ready(static_cast<int>(s), pass, transfers[depth]);
        if (ready < 0) break;
        const double start = std::max(ready, free_at[s]);
        const double end = start + duration_of(s, next[s]);
        if (pass.kind != PassKind::kWeight) {
          ends.Of(DepthOf(spec, static_cast<int>(s), pass.chunk), pass) = end;
        }
        timing.stages[s].push_back({pass, start, end});
        busy += end - start;
        free_at[s] = end;
        if (pass.kind == PassKind::kForward) {
          timing.activations_held[s] = std::max(timing.activations_held[s], ++held[s]);
        }
        if (pass.kind == releases) --held[s];
        ++next[s];
        moved = true;
      }
    }
  }
  for (size_t s = 0; s < stages; ++s) {
    if (next[s] < schedule[s].size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", s, " waits for ever with its ", Describe(schedule[s][next[s]]),
                       ": what that needs comes behind something that waits for this stage"));
    }
    timing.makespan = std::max(timing.makespan, free_at[s]);
  }
  WEFT_RETURN_IF_ERROR(CheckMemory(spec, timing.activations_held));
  if (timing.makespan > 0) {
    timing.bubble = 1 - busy / (timing.makespan * static_cast<double>(stages));
  }
  return timing;
}

}  // namespace

const char* ToString(PipelineScheduleKind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<PipelineScheduleKind> ParsePipelineSchedule(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Kind>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no pipeline schedule; these are: ", kPipelineScheduleNames));
}

bool SplitsBackward(PipelineScheduleKind kind) {
  return kind == Kind::kZeroBubbleH1 || kind == Kind::kZeroBubbleV;
}

bool DependsOnDurations(PipelineScheduleKind kind) { return kind == Kind::kZeroBubbleV; }

int DepthOf(const PipelineSpec& spec, int stage, int chunk) {
  if (spec.kind == Kind::kZeroBubbleV) return chunk == 0 ? stage : 2 * spec.stages - 1 - stage;
  return chunk * spec.stages + stage;
}

ChunkPlace PlaceOfDepth(const PipelineSpec& spec, int depth) {
  if (spec.kind == Kind::kZeroBubbleV && depth >= spec.stages) {
    return {2 * spec.stages - 1 - depth, 1};
  }
  return {depth % spec.stages, depth / spec.stages};
}

uint32_t ChannelNumber(PassKind kind, int target_depth) {
  return 2 * static_cast<uint32_t>(target_depth) + (kind == PassKind::kForward ? 0 : 1);
}

std::vector<PipelineChannel> ChannelsOf(const PipelineSpec& spec) {
  std::vector<PipelineChannel> channels;
  for (int depth = 0; depth + 1 < spec.depth(); ++depth) {
    const int stage = PlaceOfDepth(spec, depth).stage, next = PlaceOfDepth(spec, depth + 1).stage;
    if (stage == next) continue;
    channels.push_back({stage, next, ChannelNumber(PassKind::kForward, depth + 1)});
    channels.push_back({next, stage, ChannelNumber(PassKind::kBackward, depth)});
  }
  return channels;
}

int ActivationsMost(const PipelineSpec& spec, int stage) {
  const int all = spec.micro_batches * spec.chunks;
  switch (spec.kind) {
    case Kind::kGpipe:
      return all;
    case Kind::k1F1B:
    case Kind::kEager1F1B:
    case Kind::kInterleaved:
      return std::min(all, WarmUp(spec, stage) + 1);  // and that of the pass under way
    case Kind::kZeroBubbleH1:
      return std::min(all, spec.stages);
    case Kind::kZeroBubbleV:
      return std::min(all, 2 * spec.stages);
  }
  return all;
}

absl::Status CheckDurations(const PipelineSpec& spec, absl::Span<const PassDurations> by_depth) {
  if (by_depth.size() != static_cast<size_t>(spec.depth())) {
    return absl::InvalidArgumentError(
        absl::StrCat("durations of ", by_depth.size(), " chunks for a model of ", spec.depth()));
  }
  for (const PassDurations& one : by_depth) {
    for (double duration : {one.forward, one.backward, one.weight, one.transfer}) {
      if (duration >= 0 && std::isfinite(duration)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a pass or message takes ", duration, "; a number from 0 is right"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PipelineSchedule> MakePipelineSchedule(const PipelineSpec& spec) {
  WEFT_RETURN_IF_ERROR(Check(spec));
  return MakePipelineSchedule(
      spec, std::vector<PassDurations>(static_cast<size_t>(spec.depth()), {.backward = 1}));
}

absl::StatusOr<PipelineSchedule> MakePipelineSchedule(const PipelineSpec& spec,
                                                      absl::Span<const PassDurations> by_depth) {
  WEFT_RETURN_IF_ERROR(Check(spec));
  WEFT_RETURN_IF_ERROR(CheckDurations(spec, by_depth));
  if (DependsOnDurations(spec.kind)) return PlanZeroBubbleV(spec, by_depth);
  PipelineSchedule schedule;
  for (int stage = 0; stage < spec.stages; ++stage) {
    schedule.push_back(spec.kind == Kind::kZeroBubbleH1 ? ZeroBubbleH1(spec, stage)
                                                        : Alternate(spec, stage));
  }
  return schedule;
}

absl::StatusOr<PipelineTiming> RunPipelineSchedule(const PipelineSpec& spec,
                                                   const PipelineSchedule& schedule,
                                                   const PassDurations& durations) {
  return RunPipelineSchedule(
      spec, schedule,
      std::vector<PassDurations>(static_cast<size_t>(std::max(0, spec.depth())), durations));
}

absl::StatusOr<PipelineTiming> RunPipelineSchedule(const PipelineSpec& spec,
                                                   const PipelineSchedule& schedule,
                                                   absl::Span<const PassDurations> by_depth) {
  std::vector<double> transfers;
  for (const PassDurations& durations : by_depth) transfers.push_back(durations.transfer);
  return RunWith(
      spec, schedule,
      [&](size_t stage, size_t index) {
        const PipelinePass& pass = schedule[stage][index];
        const int depth = DepthOf(spec, static_cast<int>(stage), pass.chunk);
        return DurationOf(by_depth[static_cast<size_t>(depth)], pass.kind);
      },
      transfers);
}

absl::StatusOr<PipelineTiming> RunPipelineSchedule(
    const PipelineSpec& spec, const PipelineSchedule& schedule,
    const std::vector<std::vector<double>>& by_pass) {
  bool is_of_one_form = by_pass.size() == schedule.size();
  for (size_t stage = 0; is_of_one_form && stage < schedule.size(); ++stage) {
    is_of_one_form = by_pass[stage].size() == schedule[stage].size();
  }
  if (!is_of_one_form) {
    return absl::InvalidArgumentError("a schedule is timed with one duration for each pass");
  }
  const std::vector<double> transfers(static_cast<size_t>(std::max(0, spec.depth())));
  return RunWith(
      spec, schedule, [&](size_t stage, size_t index) { return by_pass[stage][index]; }, transfers);
}

// Each further layer goes to the stage that then has the least: layers cost the same, so that no
// other choice has a smaller largest stage.
std::vector<int64_t> BalanceLayers(const PipelineSpec& spec, int64_t layers, double end_cost) {
  std::vector<int64_t> counts(static_cast<size_t>(spec.depth()), 1);
  auto work_of = [&](int stage) {
    double work = 0;
    for (int chunk = 0; chunk < spec.chunks; ++chunk) {
      const int depth = DepthOf(spec, stage, chunk);
      work += static_cast<double>(counts[static_cast<size_t>(depth)]);
      if (depth == spec.depth() - 1) work += end_cost;
    }
    return work;
  };
  for (int64_t left = layers - spec.depth(); left > 0; --left) {
    int stage = 0;
    for (int other = 1; other < spec.stages; ++other) {
      if (work_of(other) < work_of(stage)) stage = other;
    }
    int64_t* least = nullptr;
    for (int chunk = 0; chunk < spec.chunks; ++chunk) {
      int64_t& count = counts[static_cast<size_t>(DepthOf(spec, stage, chunk))];
      if (least == nullptr || count < *least) least = &count;
    }
    ++*least;
  }
  return counts;
}

std::vector<double> CostsOfHalfLayers(const std::vector<int64_t>& halves, double first_half_cost,
                                      double end_cost) {
  std::vector<double> costs;
  int64_t begin = 0;
  for (int64_t count : halves) {
    const int64_t end = begin + count;
    const int64_t seconds = end / 2 - begin / 2, firsts = count - seconds;
    costs.push_back(static_cast<double>(firsts) * first_half_cost +
                    static_cast<double>(seconds) * (1 - first_half_cost));
    begin = end;
  }
  costs.back() += end_cost;
  return costs;
}

std::vector<int64_t> BalanceHalfLayers(const PipelineSpec& spec, int64_t layers,
                                       double first_half_cost, double end_cost) {
  constexpr double kWorthwhile = 0.99;
  std::vector<int64_t> whole = BalanceLayers(spec, layers, end_cost);
  for (int64_t& count : whole) count *= 2;
  const HalfLayers costs{first_half_cost, end_cost, 2 * layers};
  std::vector<int64_t> halves = spec.chunks == 1 ? costs.FewestAtMost(spec.stages) : whole;
  costs.Even(spec, halves);
  const double most = costs.LargestStage(spec, halves);
  return most < kWorthwhile * costs.LargestStage(spec, whole) ? halves : whole;
}

double TheoreticalBubble(const PipelineSpec& spec, const PassDurations& durations) {
  const double p = spec.stages, v = spec.chunks, m = spec.micro_batches;
  if (SplitsBackward(spec.kind)) {
    const double work = m * v * (durations.forward + durations.backward + durations.weight);
    const double lost = spec.kind == Kind::kZeroBubbleV
                            ? (p - 1) * durations.forward
                            : (p - 1) * (durations.forward + durations.backward - durations.weight);
    return lost / (work + lost);
  }
  return (p - 1) / (v * m + p - 1);
}

std::string DrawSchedule(const PipelineSpec& spec, const PipelineTiming& timing) {
  constexpr double kRow = 26, kGap = 6, kLeft = 64, kWidth = 1100, kTop = 34;
  constexpr std::array<const char*, 3> kColours = {"#4c78a8", "#f58518", "#54a24b"};
  const double scale = kWidth / timing.makespan;
  const double height = kTop + static_cast<double>(timing.stages.size()) * (kRow + kGap) + 30;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"18\" font-size=\"13\">%s, %d stages, %d chunks each, %d micro-batches: "
      "bubble %.1f %%</text>\n",
      kLeft + kWidth + 16, height, ToString(spec.kind), spec.stages, spec.chunks,
      spec.micro_batches, 100 * timing.bubble);
  for (size_t s = 0; s < timing.stages.size(); ++s) {
    const double y = kTop + static_cast<double>(s) * (kRow + kGap);
    absl::StrAppendFormat(&svg, "<text x=\"8\" y=\"%.1f\">stage %d</text>\n", y + 17, s);
    for (const PipelineTiming::Span& span : timing.stages[s]) {
      const double x = kLeft + span.start * scale;
      const double width = (span.end - span.start) * scale;
      const size_t kind = static_cast<size_t>(span.pass.kind);
      absl::StrAppendFormat(
          &svg,
          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\" "
          "fill-opacity=\"%s\" stroke=\"white\"><title>%s</title></rect>\n",
          x, y, width, kRow, kColours[kind], span.pass.chunk % 2 == 0 ? "1" : "0.65",
          Describe(span.pass));
      if (width < 12) continue;
      absl::StrAppendFormat(&svg,
                            "<text x=\"%.2f\" y=\"%.1f\" fill=\"white\" "
                            "text-anchor=\"middle\">%d</text>\n",
                            x + width / 2, y + 17, span.pass.micro_batch);
    }
  }
  const double y = height - 12;
  constexpr std::array<const char*, 3> kKinds = {"forward", "backward", "weight gradients"};
  for (size_t kind = 0; kind < (SplitsBackward(spec.kind) ? 3 : 2); ++kind) {
    const double x = kLeft + 160 * static_cast<double>(kind);
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                          "<text x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                          x, y - 10, kColours[kind], x + 18, y, kKinds[kind]);
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace weft::topology
