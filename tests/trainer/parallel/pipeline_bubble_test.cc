// What of a stage's waits is its pipeline's schedule, and what is communication.
#include "trainer/parallel/pipeline_bubble.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::train {
namespace {

using topology::PipelineSpec;

constexpr int64_t kSecond = 1'000'000'000;

PassTime At(int64_t wait, double start, double end) {
  return {wait * kSecond, static_cast<int64_t>(start * kSecond),
          static_cast<int64_t>(end * kSecond)};
}

// Stage 0: forward 1 s, then a wait of 3 s for the other's forward and backward passes.
TEST(PipelineBubbleTest, IsWhatTheScheduleIdlesWithTheDurationsOfTheStep) {
  const PipelineSpec spec{.stages = 2, .micro_batches = 1};
  const auto schedule = MakePipelineSchedule(spec);
  ASSERT_TRUE(schedule.ok());
  const std::vector<std::vector<double>> seconds = {{1, 2}, {1, 2}};
  // Half a second of the wait is a message's.
  auto first = BubbleOf(spec, *schedule, seconds, 0, {At(0, 0, 1), At(1, 4.5, 6.5)});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_DOUBLE_EQ(first->waits, 3);
  EXPECT_DOUBLE_EQ(first->behind, 0);
  EXPECT_DOUBLE_EQ(first->share, 0.5);
  ASSERT_EQ(first->spans.size(), 1u);
  EXPECT_EQ(first->spans[0].start_ns, 1 * kSecond);
  EXPECT_EQ(first->spans[0].end_ns, 4 * kSecond);
  // Stage 1 has nothing at first, and is done 2 s before stage 0.
  auto last = BubbleOf(spec, *schedule, seconds, 1, {At(0, 1.25, 2.25), At(2, 2.25, 4.25)});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_DOUBLE_EQ(last->waits, 1);
  EXPECT_DOUBLE_EQ(last->behind, 2);
}

// A slow pass is its own stage's time, and a wait for it is no communication.
TEST(PipelineBubbleTest, AWaitForASlowStageIsBubble) {
  const PipelineSpec spec{.stages = 2, .micro_batches = 1};
  const auto schedule = MakePipelineSchedule(spec);
  ASSERT_TRUE(schedule.ok());
  auto bubble = BubbleOf(spec, *schedule, {{1, 2}, {1, 9}}, 0, {At(0, 0, 1), At(1, 11, 13)});
  ASSERT_TRUE(bubble.ok()) << bubble.status();
  EXPECT_DOUBLE_EQ(bubble->waits, 10);
}

// What the timing idles before a pass, but the stage did not, may be waited for later.
TEST(PipelineBubbleTest, IdleTimeThatWasNotWaitedForStaysToBeTaken) {
  const PipelineSpec spec{.stages = 2, .micro_batches = 2};
  const auto schedule = MakePipelineSchedule(spec);
  ASSERT_TRUE(schedule.ok());
  // Stage 0: F0 [0,1], F1 [1,2], B0 [4,6], B1 [7,9]; stage 1: F0 [1,2], B0 [2,4], F1, B1 [5,7].
  const std::vector<std::vector<double>> seconds = {{1, 1, 2, 2}, {1, 2, 1, 2}};
  auto bubble = BubbleOf(spec, *schedule, seconds, 0,
                         {At(0, 0, 1), At(1, 1, 2), At(2, 3.5, 5.5), At(5, 8, 10)});
  ASSERT_TRUE(bubble.ok()) << bubble.status();
  EXPECT_NEAR(bubble->waits, 3, 1e-9);  // 1.5 and 1.5 of 2 + 1
}

TEST(PipelineBubbleTest, TimesOfAnotherFormAreRefused) {
  const PipelineSpec spec{.stages = 2, .micro_batches = 2};
  const auto schedule = MakePipelineSchedule(spec);
  ASSERT_TRUE(schedule.ok());
  EXPECT_FALSE(BubbleOf(spec, *schedule, {{1, 1, 2, 2}}, 0, {}).ok());
  EXPECT_FALSE(BubbleOf(spec, *schedule, {{1, 1, 2, 2}, {1, 1, 2}}, 0, {}).ok());
  EXPECT_FALSE(BubbleOf(spec, *schedule, {{1, 1, 2, 2}, {1, 1, 2, 2}}, 0, {}).ok());
}

}  // namespace
}  // namespace weft::train
