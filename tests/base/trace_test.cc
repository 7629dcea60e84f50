#include "base/trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

namespace weft {
namespace {

using nlohmann::json;

TEST(Trace, KeepsSpansInOrder) {
  Trace trace({"compute", "communication"}, 8);
  trace.Record({"forward", 0, 10, 20, 1, -1});
  trace.Record({"all_reduce", 1, 15, 30, 1, 4096});
  std::vector<TraceSpan> spans = trace.Snapshot();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].name, "forward");
  EXPECT_EQ(spans[0].start_ns, 10);
  EXPECT_EQ(spans[0].end_ns, 20);
  EXPECT_STREQ(spans[1].name, "all_reduce");
  EXPECT_EQ(spans[1].track, 1);
  EXPECT_EQ(spans[1].bytes, 4096);
}

TEST(Trace, AFullRingForgetsTheOldest) {
  Trace trace({"t"}, 4);
  for (int64_t i = 0; i < 11; ++i) trace.Record({"s", 0, i, i, i, i});
  std::vector<TraceSpan> spans = trace.Snapshot();
  ASSERT_EQ(spans.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(spans[i].step, static_cast<int64_t>(7 + i));
}

TEST(Trace, CapacityIsRoundedUpToAPowerOfTwo) {
  Trace trace({"t"}, 5);
  for (int64_t i = 0; i < 100; ++i) trace.Record({"s", 0, i, i, i, i});
  EXPECT_EQ(trace.Snapshot().size(), 8u);
}

TEST(Trace, ALargerRingKeepsWhatTheSmallerOneHad) {
  Trace trace({"t"}, 4);
  for (int64_t i = 0; i < 6; ++i) trace.Record({"s", 0, i, i, i, i});
  trace.Reserve(16);
  EXPECT_EQ(trace.capacity(), 16u);
  trace.Reserve(8);
  EXPECT_EQ(trace.capacity(), 16u);
  for (int64_t i = 6; i < 12; ++i) trace.Record({"s", 0, i, i, i, i});
  const std::vector<TraceSpan> spans = trace.Snapshot();
  ASSERT_EQ(spans.size(), 10u);
  for (size_t i = 0; i < spans.size(); ++i) EXPECT_EQ(spans[i].step, static_cast<int64_t>(2 + i));
  EXPECT_EQ(trace.recorded(), 12u);
}

// A ring so small that writers lap each other and the reader all the time. Each span carries one
// number in all of its fields, so that a torn one is seen.
TEST(Trace, NoSpanIsTornWhileThreadsWrite) {
  Trace trace({"t"}, 64);
  std::atomic<bool> done{false};
  std::latch started(5);
  std::vector<std::thread> writers;
  for (int64_t writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      started.arrive_and_wait();
      for (int64_t value = writer; !done.load(); value += 4) {
        trace.Record({"s", static_cast<int32_t>(value), value, value, value, value});
      }
    });
  }
  started.arrive_and_wait();
  int64_t torn = 0;
  for (int snapshot = 0; snapshot < 50'000; ++snapshot) {
    for (const TraceSpan& span : trace.Snapshot()) {
      bool whole = span.start_ns == span.end_ns && span.end_ns == span.step &&
                   span.step == span.bytes && static_cast<int32_t>(span.bytes) == span.track;
      torn += whole ? 0 : 1;
    }
  }
  done = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(torn, 0);
}

TEST(TraceScope, RecordsFromConstructionToEnd) {
  Trace trace({"compute"});
  { TraceScope scope(&trace, "step", 0, 3, 64); }
  std::vector<TraceSpan> spans = trace.Snapshot();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_STREQ(spans[0].name, "step");
  EXPECT_EQ(spans[0].step, 3);
  EXPECT_EQ(spans[0].bytes, 64);
  EXPECT_GT(spans[0].start_ns, 0);
  EXPECT_GE(spans[0].end_ns, spans[0].start_ns);
}

TEST(TraceScope, WithoutATraceDoesNothing) { TraceScope scope(nullptr, "step", 0); }

TEST(ChromeJson, HoldsTheSpansOfEveryRankOnNamedRows) {
  Trace first({"compute", "communication"});
  first.Record({"forward", 0, 1'500, 4'000, 7, -1});
  Trace second({"compute", "communication"});
  second.Record({"all_reduce", 1, 2'000, 3'000, -1, 4096});
  json document = json::parse(MergeChromeJson({ChromeEvents(first, 0), ChromeEvents(second, 1)}));
  const json& events = document.at("traceEvents");
  ASSERT_EQ(events.size(), 8u);  // for each rank: its name, two tracks' names, a span

  EXPECT_EQ(events[0].at("ph"), "M");
  EXPECT_EQ(events[0].at("name"), "process_name");
  EXPECT_EQ(events[0].at("args").at("name"), "rank 0");
  EXPECT_EQ(events[2].at("name"), "thread_name");
  EXPECT_EQ(events[2].at("tid"), 1);
  EXPECT_EQ(events[2].at("args").at("name"), "communication");

  EXPECT_EQ(events[3], json::parse(R"({"ph":"X","pid":0,"tid":0,"name":"forward","ts":1.5,
                                       "dur":2.5,"args":{"step":7}})"));
  EXPECT_EQ(events[7], json::parse(R"({"ph":"X","pid":1,"tid":1,"name":"all_reduce","ts":2.0,
                                       "dur":1.0,"args":{"bytes":4096}})"));
}

TEST(ChromeJson, BeginsWithTheStepThatIsAskedForAndSaysWhatIsMissing) {
  Trace trace({"t"}, 8);
  for (int64_t step : {-1, 1, 2, 3}) trace.Record({"s", 0, 0, 1, step, -1});
  const json document =
      json::parse(MergeChromeJson({ChromeEvents(trace, 0, 2)}, R"({"lost_spans":7})"));
  EXPECT_EQ(document["otherData"]["lost_spans"], 7);
  std::vector<int> steps;
  for (const json& event : document["traceEvents"]) {
    if (event["ph"] == "X") steps.push_back(event["args"].value("step", -1));
  }
  EXPECT_EQ(steps, (std::vector<int>{-1, 2, 3}));
}

TEST(ChromeJson, OfNothingIsStillADocument) {
  EXPECT_TRUE(json::parse(MergeChromeJson({})).at("traceEvents").empty());
}

}  // namespace
}  // namespace weft
