// Pipeline schedules as lists: in which order each stage of a pipeline runs the passes of its
// micro-batches. The training engine executes the lists, the verifier below proves them, the
// simulator times them, DrawSchedule draws them.
//
//   gpipe        all forward passes, then all backward passes (Huang et al., 2019)
//   1f1b         stage i of p warms up with p - 1 - i forward passes, then alternates (Narayanan et
//                al., SC'21, section 2.2.1)
//   eager-1f1b   1f1b with twice the warm-up, 2 (p - 1 - i) forward passes: messages that take up
//                to half the time of a forward and a backward pass are hidden, except while the
//                pipeline fills and drains; a stage holds up to twice the activations (Zhuang et
//                al., "On optimizing the communication of model parallelism", MLSys 2023, arXiv
//                2211.05322, the overlapping-friendly schedule)
//   interleaved  every stage holds v chunks of layers; micro-batches go through in groups of p,
//                chunk by chunk (the same, section 2.2.2); bubble 1/v of 1f1b's
//   zb-h1        1f1b's memory; a backward pass computes the gradient of its input only, and passes
//                of kind kWeight fill the bubble (Qi et al., "Zero bubble pipeline parallelism",
//                ICLR 2024, section 3)
//   zb-v         the same with two chunks a stage in the form of a V: chunk 0 runs down the stages,
//                chunk 1 up again (Qi et al., 2024, "Pipeline parallelism with controllable
//                memory", section 3)
//
// zb-v's lists come from list scheduling with the durations that are given (zero_bubble_v.h), and
// can be made anew for those that were measured (pipeline_replan.h). With equal durations for the
// three kinds of passes and no fewer micro-batches than stages they are up to three passes longer
// than the shortest for 5 to 7 stages, and up to p - 4 passes for 8 to 12.
// Pure functions; thread-safe.
#ifndef WEFT_TOPOLOGY_JOB_PIPELINE_SCHEDULE_H_
#define WEFT_TOPOLOGY_JOB_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::topology {

enum class PipelineScheduleKind : uint8_t {
  kGpipe,
  k1F1B,
  kEager1F1B,
  kInterleaved,
  kZeroBubbleH1,
  kZeroBubbleV,
};
inline constexpr char kPipelineScheduleNames[] = "gpipe|1f1b|eager-1f1b|interleaved|zb-h1|zb-v";

const char* ToString(PipelineScheduleKind kind);
// InvalidArgument lists the names.
absl::StatusOr<PipelineScheduleKind> ParsePipelineSchedule(absl::string_view name);

struct PipelineSpec {
  PipelineScheduleKind kind = PipelineScheduleKind::k1F1B;
  int stages = 1;         // p
  int chunks = 1;         // v, chunks of layers a stage holds
  int micro_batches = 1;  // m

  int depth() const { return stages * chunks; }  // chunks of the whole model
  bool operator==(const PipelineSpec&) const = default;
};

// A backward pass computes all gradients, unless the schedule splits it: then kBackward computes
// the gradient of the chunk's input and kWeight, later, those of its weights.
enum class PassKind : uint8_t { kForward, kBackward, kWeight };
bool SplitsBackward(PipelineScheduleKind kind);
// Whether a schedule's lists are made for durations of passes (MakePipelineSchedule): zb-v's.
bool DependsOnDurations(PipelineScheduleKind kind);

struct PipelinePass {
  PassKind kind = PassKind::kForward;
  int chunk = 0;  // of the stage
  int micro_batch = 0;
  bool operator==(const PipelinePass&) const = default;
};

// Place of a stage's chunk in the model: it comes after DepthOf() others.
int DepthOf(const PipelineSpec& spec, int stage, int chunk);
// Its inverse.
struct ChunkPlace {
  int stage = 0;
  int chunk = 0;
};
ChunkPlace PlaceOfDepth(const PipelineSpec& spec, int depth);

// The way of the messages between two chunks that follow each other and are on different stages:
// activations one way, their gradients the other. Stages receive the messages of a channel in the
// order in which they are sent (the verifier below), so that a connection without tags can serve as
// one.
struct PipelineChannel {
  int from = 0, to = 0;  // stages
  uint32_t number = 0;   // ChannelNumber
  bool operator==(const PipelineChannel&) const = default;
};
// The channel to a pass of `kind` on the chunk at `target_depth`; unique in a pipeline.
uint32_t ChannelNumber(PassKind kind, int target_depth);
// Every channel of a pipeline once, the same list on every stage.
std::vector<PipelineChannel> ChannelsOf(const PipelineSpec& spec);

// Durations of the passes of a chunk, in any unit.
struct PassDurations {
  double forward = 1;
  double backward = 2;  // 1 where the schedule splits it
  double weight = 1;    // used where the schedule splits the backward pass
  double transfer = 0;  // of an activation or its gradient to the chunk from another stage
};

// InvalidArgument: they are not those of depth() chunks, or one is negative or not finite.
absl::Status CheckDurations(const PipelineSpec& spec, absl::Span<const PassDurations> by_depth);

// The passes of every stage, in the order in which the stage runs them. InvalidArgument says which
// number is wrong: interleaved needs m to be a multiple of p and v > 1; zb-v needs v = 2, the
// others v = 1.
using PipelineSchedule = std::vector<std::vector<PipelinePass>>;
absl::StatusOr<PipelineSchedule> MakePipelineSchedule(const PipelineSpec& spec);
// The same for durations of each chunk of the model, depth() of them, from 0 and finite: zb-v's
// lists are made for these, with which all ranks must agree (DependsOnDurations).
absl::StatusOr<PipelineSchedule> MakePipelineSchedule(const PipelineSpec& spec,
                                                      absl::Span<const PassDurations> by_depth);

// A schedule as it runs with given durations, each pass as early as its stage and its input allow.
struct PipelineTiming {
  struct Span {
    PipelinePass pass;
    double start = 0, end = 0;
  };
  std::vector<std::vector<Span>> stages;
  double makespan = 0;
  double bubble = 0;                  // part of stages * makespan in which no pass runs
  std::vector<int> activations_held;  // a stage: the most (chunk, micro-batch) pairs at one time
};

// The most (chunk, micro-batch) pairs whose activations a stage may hold at one time, as the paper
// of spec.kind says: all under gpipe; p - stage under 1f1b; 2 (p - stage) - 1 under eager-1f1b;
// what the warm-up makes under interleaved; p under zb-h1 and 2p chunks under zb-v, which is 1f1b's
// memory.
int ActivationsMost(const PipelineSpec& spec, int stage);

// Proves a schedule and times it: every stage runs every pass once, weights after backwards, no
// pass waits for one that cannot run before it, the messages of a channel keep their order, and no
// stage holds more than ActivationsMost(). FailedPrecondition names the stage and the pass, or the
// channel, at fault.
absl::StatusOr<PipelineTiming> RunPipelineSchedule(const PipelineSpec& spec,
                                                   const PipelineSchedule& schedule,
                                                   const PassDurations& durations);
// The same where chunks take different times: durations of each chunk of the model, depth() of
// them.
absl::StatusOr<PipelineTiming> RunPipelineSchedule(const PipelineSpec& spec,
                                                   const PipelineSchedule& schedule,
                                                   absl::Span<const PassDurations> by_depth);
// The same with a duration for each pass, in the schedule's form, as measured in a step; messages
// take no time. InvalidArgument: the forms differ.
absl::StatusOr<PipelineTiming> RunPipelineSchedule(const PipelineSpec& spec,
                                                   const PipelineSchedule& schedule,
                                                   const std::vector<std::vector<double>>& by_pass);

// Layers of each chunk of the model, depth() of them and one at least each, so that the stage with
// the most work has as little as can be. A layer costs 1; what stands behind the last one costs
// `end_cost` more. Where stages are equal, earlier ones have a layer more.
std::vector<int64_t> BalanceLayers(const PipelineSpec& spec, int64_t layers, double end_cost);
// The same in half layers, for layers that may be cut once: their first half costs
// `first_half_cost`, the second one the rest of 1. Whole layers, twice their numbers, where halves
// make the stage with the most work less than a hundredth smaller.
std::vector<int64_t> BalanceHalfLayers(const PipelineSpec& spec, int64_t layers,
                                       double first_half_cost, double end_cost);
// What chunks of so many half layers cost, depth() of them, with `end_cost` in the last one's.
std::vector<double> CostsOfHalfLayers(const std::vector<int64_t>& halves, double first_half_cost,
                                      double end_cost);

// The bubble of p stages of equal durations and m >= p micro-batches, as a part of the makespan:
// for gpipe, 1f1b, eager-1f1b and interleaved (p - 1) / (v m + p - 1). Time lost under zb-h1:
// (p - 1)(f + b - w). Under zb-v: (p - 1) f of a chunk, because all stages step together after the
// last pass; the paper's 0 lets each stage step when it is done.
double TheoreticalBubble(const PipelineSpec& spec, const PassDurations& durations);

// One row a stage, time to the right, as SVG.
std::string DrawSchedule(const PipelineSpec& spec, const PipelineTiming& timing);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_PIPELINE_SCHEDULE_H_
