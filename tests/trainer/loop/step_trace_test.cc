// The ring of a run's trace has place for whole steps, and says what it lost.
#include "trainer/loop/step_trace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::train {
namespace {

// Steps first..last of `spans` each.
void RunSteps(StepTrace& trace, int64_t first, int64_t last, int spans) {
  for (int64_t step = first; step <= last; ++step) {
    trace.BeginStep(step);
    for (int i = 0; i < spans; ++i) trace.trace().Record({"s", 0, i, i + 1, step, -1});
  }
}

TEST(StepTraceTest, TheRingGrowsUntilTheLastStepsFitWhateverAStepRecords) {
  StepTrace trace({"t"}, 10, /*first=*/600);
  RunSteps(trace, 1, 30, 1000);
  EXPECT_EQ(trace.wanted_step(), 21);
  EXPECT_EQ(trace.whole_step(), 21);
  EXPECT_EQ(trace.SpansBefore(trace.whole_step()), 0u);
  int64_t first = 100;
  for (const TraceSpan& span : trace.trace().Snapshot()) first = std::min(first, span.step);
  EXPECT_LE(first, 21);
  EXPECT_EQ(trace.spans_of_a_step(), 1000u);
}

TEST(StepTraceTest, ARunOfFewStepsHasThemAll) {
  StepTrace trace({"t"}, 10, /*first=*/600);
  RunSteps(trace, 1, 3, 1000);
  EXPECT_EQ(trace.wanted_step(), 1);
  EXPECT_EQ(trace.whole_step(), 1);
}

TEST(StepTraceTest, WhatTheBoundDoesNotHoldIsLostByWholeStepsAndCounted) {
  StepTrace trace({"t"}, 10, /*first=*/10, /*most=*/Bytes(64 * 4096));
  RunSteps(trace, 1, 30, 1000);
  EXPECT_EQ(trace.bytes(), Bytes(64 * 4096));
  EXPECT_EQ(trace.wanted_step(), 21);
  EXPECT_EQ(trace.whole_step(), 27);  // 4 steps of 1,000 in 4,096
  EXPECT_EQ(trace.SpansBefore(trace.whole_step()), 6000u);
  // Not even the last one.
  RunSteps(trace, 31, 31, 5000);
  EXPECT_EQ(trace.whole_step(), 32);
}

TEST(StepTraceTest, WithoutStepsToShowThereIsNextToNoRing) {
  StepTrace trace({"t"}, 0, /*first=*/1000);
  RunSteps(trace, 1, 5, 1000);
  EXPECT_LE(trace.bytes(), Bytes(128));
}

}  // namespace
}  // namespace weft::train
