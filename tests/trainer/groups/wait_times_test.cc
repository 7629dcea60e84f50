// What a group counts of waits, and where they are in a trace.
#include "trainer/groups/wait_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using Span = std::tuple<std::string, int, int64_t, int64_t>;  // name, track, start, end

std::vector<Span> SpansOf(const Trace& trace) {
  std::vector<Span> spans;
  for (const TraceSpan& span : trace.Snapshot()) {
    spans.emplace_back(span.name, span.track, span.start_ns, span.end_ns);
  }
  return spans;
}

TEST(WaitTimesTest, WaitsAreAddedUpUntilTheyAreTaken) {
  WaitTimes times;
  times.AddWait(1'000'000'000, 1'500'000'000, "wait");
  times.AddWait(2'000'000'000, 2'250'000'000, "wait");
  times.AddOnGpu({"on_gpu", 0, 1'000'000'000, /*exposed_ns=*/250'000'000});
  times.AddCollective(0, 5'000'000'000, 1, "what is waited for counts nothing");
  EXPECT_DOUBLE_EQ(times.TakeSeconds(), 1.0);
  EXPECT_EQ(times.TakeSeconds(), 0.0);
}

TEST(WaitTimesTest, EachSpanIsOnItsTrack) {
  Trace trace({"compute", "collectives", "exposed"});
  WaitTimes times;
  times.SetTrace(&trace, {.compute = 0, .collectives = 1, .exposed = 2});
  times.AddWait(10, 20, "wait");
  times.AddOnGpu({"on_gpu", 30, 60, /*exposed_ns=*/5});
  EXPECT_THAT(SpansOf(trace), ElementsAre(Span{"wait", 0, 10, 20}, Span{"exposed", 2, 10, 20},
                                          Span{"on_gpu", 1, 30, 60}, Span{"exposed", 2, 55, 60}));
}

// The second was called while the first was under way; the third ended before it was waited for.
TEST(WaitTimesTest, CollectivesOfATrackLieBehindEachOther) {
  Trace trace({"compute", "collectives", "exposed"});
  WaitTimes times;
  times.SetTrace(&trace, {.compute = 0, .collectives = 1, .exposed = 2});
  times.AddCollective(10, 30, 0, "one");
  times.AddCollective(15, 40, 0, "two");
  times.AddCollective(20, 35, 0, "three");
  EXPECT_THAT(SpansOf(trace), ElementsAre(Span{"one", 1, 10, 30}, Span{"two", 1, 30, 40},
                                          Span{"three", 1, 35, 35}));
}

}  // namespace
}  // namespace weft::train
