// Lists made anew for other durations than those that they were made for.
#include "topology/job/pipeline_replan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "topology/job/zero_bubble_v.h"

namespace weft::topology {
namespace {

using Kind = PipelineScheduleKind;

constexpr PipelineSpec kTwoStages{Kind::kZeroBubbleV, 2, 2, 8};

std::vector<PassDurations> Equal(const PipelineSpec& spec, const PassDurations& durations) {
  return std::vector<PassDurations>(static_cast<size_t>(spec.depth()), durations);
}

PipelineTiming Timing(const PipelineSpec& spec, const PipelineSchedule& schedule,
                      const std::vector<PassDurations>& by_depth) {
  auto timing = RunPipelineSchedule(spec, schedule, by_depth);
  EXPECT_TRUE(timing.ok()) << timing.status();
  return timing.ok() ? *timing : PipelineTiming();
}

// The backward passes of chunk 0 and the forward passes of chunk 1, on stage 0.
std::vector<PipelinePass> EndsOf(const PipelineSchedule& schedule) {
  std::vector<PipelinePass> ends;
  for (const PipelinePass& pass : schedule[0]) {
    const PassKind kind = pass.chunk == 0 ? PassKind::kBackward : PassKind::kForward;
    if (pass.kind == kind) ends.push_back(pass);
  }
  return ends;
}

// Passes of one kind on one chunk come in the order of their micro-batches, in which gradients are
// added up.
void ExpectMicroBatchesInTheirOrder(const PipelineSchedule& schedule) {
  for (const std::vector<PipelinePass>& passes : schedule) {
    int next[3][2] = {};
    for (const PipelinePass& pass : passes) {
      EXPECT_EQ(pass.micro_batch, next[static_cast<int>(pass.kind)][pass.chunk]++);
    }
  }
}

TEST(PipelineReplanTest, NewListsAreShorterWithTheDurationsMeasured) {
  const PipelineSchedule current =
      *MakePipelineSchedule(kTwoStages, Equal(kTwoStages, {.backward = 1.6}));
  const std::vector<PassDurations> measured = Equal(kTwoStages, {.backward = 3});
  const auto replan = ReplanPipeline(kTwoStages, current, measured);
  ASSERT_TRUE(replan.ok()) << replan.status();
  EXPECT_TRUE(replan->is_new);
  EXPECT_EQ(replan->refused, "");
  EXPECT_GT(replan->bubble_before, 0.12);
  EXPECT_LT(replan->bubble, 0.06);
  EXPECT_LT(Timing(kTwoStages, replan->schedule, measured).makespan,
            0.92 * Timing(kTwoStages, current, measured).makespan);
  ExpectMicroBatchesInTheirOrder(replan->schedule);
}

TEST(PipelineReplanTest, PassesThatAreKeptStayInTheirOrder) {
  const PipelineSchedule current =
      *MakePipelineSchedule(kTwoStages, Equal(kTwoStages, {.backward = 1.6}));
  const std::vector<PassDurations> measured = Equal(kTwoStages, {.backward = 3});
  // Without the condition they do not.
  EXPECT_NE(EndsOf(ReplanPipeline(kTwoStages, current, measured)->schedule), EndsOf(current));
  const auto replan = ReplanPipeline(kTwoStages, current, measured, EndsOf(current));
  ASSERT_TRUE(replan.ok()) << replan.status();
  EXPECT_TRUE(replan->is_new);
  EXPECT_EQ(EndsOf(replan->schedule), EndsOf(current));
  EXPECT_LT(replan->bubble, replan->bubble_before);
  ExpectMicroBatchesInTheirOrder(replan->schedule);
}

// An order in which nothing can run is an error, and no endless plan.
TEST(PipelineReplanTest, AnOrderThatCannotBeKeptIsAnError) {
  const PipelineSpec spec{Kind::kZeroBubbleV, 2, 2, 1};
  const std::vector<PipelinePass> backward_first = {{PassKind::kBackward, 0, 0},
                                                    {PassKind::kForward, 1, 0}};
  EXPECT_EQ(PlanZeroBubbleV(spec, Equal(spec, {}), backward_first).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(PipelineReplanTest, NoListsAreLongerOrHoldMoreThanThoseThatThereWere) {
  Random random(7);
  int replanned = 0;
  for (int turn = 0; turn < 200; ++turn) {
    const PipelineSpec spec{Kind::kZeroBubbleV, 2 + static_cast<int>(random.Below(4)), 2,
                            1 + static_cast<int>(random.Below(12))};
    std::vector<PassDurations> measured(static_cast<size_t>(spec.depth()));
    for (PassDurations& one : measured) {
      for (double* duration : {&one.forward, &one.backward, &one.weight}) {
        *duration = 100 + static_cast<double>(random.Below(300));
      }
    }
    const PipelineSchedule current = *MakePipelineSchedule(spec);
    const std::vector<PipelinePass> kept =
        turn % 2 == 0 ? EndsOf(current) : std::vector<PipelinePass>();
    const auto replan = ReplanPipeline(spec, current, measured, kept);
    ASSERT_TRUE(replan.ok()) << replan.status();
    EXPECT_EQ(replan->refused, "");
    const PipelineTiming before = Timing(spec, current, measured);
    const PipelineTiming after = Timing(spec, replan->schedule, measured);
    if (replan->is_new) {
      ++replanned;
      EXPECT_LT(after.makespan, 0.99 * before.makespan);
    } else {
      EXPECT_EQ(replan->schedule, current);
    }
    for (size_t stage = 0; stage < before.activations_held.size(); ++stage) {
      EXPECT_LE(after.activations_held[stage], before.activations_held[stage]);
    }
  }
  EXPECT_GT(replanned, 0);
}

TEST(PipelineReplanTest, OtherSchedulesAndWrongDurationsChangeNothing) {
  const PipelineSpec spec{Kind::k1F1B, 2, 1, 4};
  const PipelineSchedule current = *MakePipelineSchedule(spec);
  const auto replan = ReplanPipeline(spec, current, Equal(spec, {.backward = 5}));
  ASSERT_TRUE(replan.ok()) << replan.status();
  EXPECT_FALSE(replan->is_new);
  EXPECT_EQ(replan->schedule, current);
  EXPECT_EQ(ReplanPipeline(spec, current, Equal(spec, {.forward = -1})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReplanPipeline(spec, current, {PassDurations{}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weft::topology
