// The picture of a run's last steps, from the events of its trace.
#include "trainer/plot/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/trace.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Events(int rank) {
  Trace trace({"compute", "communication"}, 64);
  for (int64_t step : {1, 2, 3}) {
    const int64_t at = step * 10'000'000;
    trace.Record({"forward", 0, at, at + 3'000'000, step, -1});
    trace.Record({"wait_all_gather", 0, at + 1'000'000, at + 1'500'000, step, -1});
    trace.Record({"backward", 0, at + 3'000'000, at + 9'000'000, step, -1});
    trace.Record({"reduce_scatter", 1, at + 5'000'000, at + 8'000'000, step, 4096});
  }
  return ChromeEvents(trace, rank);
}

TEST(TimelineTest, ShowsTheLastStepsOfEveryRank) {
  auto spans = ParseTimeline({Events(0), Events(1)});
  ASSERT_TRUE(spans.ok()) << spans.status();
  ASSERT_EQ(spans->size(), 24U);
  const std::string svg = DrawTimeline(*spans, {"compute", "communication"}, 2);
  EXPECT_THAT(svg, HasSubstr("Steps 2 to 3: 19.0 ms"));
  for (const char* text :
       {"rank 0, step 2: forward, 3.000 ms", "rank 1, step 3: backward, 6.000 ms",
        "rank 1, step 3: wait_all_gather, 0.500 ms", "rank 0, step 2: reduce_scatter, 3.000 ms",
        ">communication</text>"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(svg, Not(HasSubstr("step 1:")));
  // A wait is drawn on top of the pass that it interrupts.
  EXPECT_LT(svg.find("step 2: backward"), svg.find("step 2: wait_all_gather"));
}

TEST(TimelineTest, TracksWithoutANameAreNotDrawn) {
  const std::vector<TimelineSpan> spans = {
      {0, 0, "forward", 0, 1e6, 1}, {0, 1, "all_gather", 0, 5e5, 1}, {0, 2, "exposed", 0, 5e5, 1}};
  const std::string svg = DrawTimeline(spans, {"compute", "communication"}, 2);
  EXPECT_THAT(svg, HasSubstr("all_gather"));
  EXPECT_THAT(svg, Not(HasSubstr("exposed")));
}

TEST(TimelineTest, SpansTooNarrowToSeeAreDrawnTogether) {
  std::vector<TimelineSpan> spans = {{0, 0, "forward", 0, 1e6, 1}};
  for (int i = 0; i < 1000; ++i) spans.push_back({0, 1, "all_gather", i * 100.0, 90, 1});
  spans.push_back({0, 1, "all_gather", 5e5, 90, 1});
  const std::string svg = DrawTimeline(spans, {"compute", "communication"}, 2);
  EXPECT_THAT(svg, HasSubstr("rank 0, step 1: all_gather and 999 more, 99.990 ms"));
  EXPECT_THAT(svg, HasSubstr("rank 0, step 1: all_gather, 0.090 ms"));
}

TEST(TimelineTest, NothingToShowIsNoPicture) {
  EXPECT_EQ(DrawTimeline({}, {}, 2), "");
  EXPECT_FALSE(ParseTimeline({"{"}).ok());
}

}  // namespace
}  // namespace weft::train
