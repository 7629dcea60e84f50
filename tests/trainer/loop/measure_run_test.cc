// What weft-train measures of its steps: the trace, the pipeline's bubble, MFU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MeasureRunTest : public TrainRunTest {
 protected:
  static json Trace(const std::string& run) {
    std::ifstream file(RunDir(run) + "/trace.json");
    return json::parse(file);
  }
};

TEST_F(MeasureRunTest, APipelineOfManyMicroBatchesIsTracedWholeAndItsBubbleIsNoCommunication) {
  constexpr int kSteps = 20, kMicroBatches = 16;
  const Outcome outcome =
      Run(2, "pipeline",
          {"train.steps=20", "log.trace_steps=20", "train.global_batch=16", "train.micro_batch=1",
           "parallel.pipeline=2", "sample.tokens=0", "checkpoint.every=0", "validation.every=0"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("of the time waited for the pipeline's schedule (1f1b)"));
  // By rank and step: passes forward, and seconds of bubble.
  std::map<int, std::map<int, int>> forward;
  std::map<int, std::map<int, double>> bubble, waits;
  const json trace = Trace("pipeline");
  EXPECT_FALSE(trace.contains("otherData"));
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const int rank = event["pid"], step = event["args"]["step"];
    const double seconds = event["dur"].get<double>() * 1e-6;
    if (event["name"] == "forward") ++forward[rank][step];
    if (event["name"] == "bubble") bubble[rank][step] += seconds;
    if (event["name"] == "wait_receive") waits[rank][step] += seconds;
  }
  const std::map<int, json> rows = Metrics("pipeline");
  double bubble_seconds = 0;
  for (int step = 1; step <= kSteps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      // The last one has the validation's, too.
      EXPECT_GE(forward[rank][step], kMicroBatches) << "rank " << rank << ", step " << step;
    }
    // What is no bubble of the first stage's waits is communication.
    const json& row = rows.at(step);
    EXPECT_NEAR(row["bubble_seconds"].get<double>(), bubble[0][step], 1e-3) << "step " << step;
    // A stage that got its core late finds all inputs there, and waits for none in that step.
    EXPECT_GE(row["bubble_seconds"], 0.0);
    bubble_seconds += row["bubble_seconds"].get<double>();
    EXPECT_GE(row["exposed_pipeline_seconds"], 0.0);
    EXPECT_GT(row["bubble_share"], 0.0);
    EXPECT_LT(row["bubble_share"], 1.0);
    if (step == kSteps) continue;
    EXPECT_GE(row["exposed_pipeline_seconds"].get<double>() + bubble[0][step],
              waits[0][step] - 1e-3)
        << "step " << step;
  }
  EXPECT_GT(bubble_seconds, 0.0);
}

// Seconds of the tracks are those of the rows.
TEST_F(MeasureRunTest, WhatAStepWaitsForAndTheOptimizerAreRowsAndTracks) {
  const Outcome outcome = Run(4, "tracks",
                              {"train.steps=4", "log.trace_steps=4", "parallel.tensor=2",
                               "sample.tokens=0", "checkpoint.every=0", "validation.every=0"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::map<int, std::string> names;
  std::map<std::string, std::map<int, double>> seconds;  // by track and step, of rank 0
  const json trace = Trace("tracks");
  for (const json& event : trace["traceEvents"]) {
    if (event["pid"] != 0) continue;
    if (event["ph"] == "M" && event["name"] == "thread_name") {
      names[event["tid"]] = event["args"]["name"];
    }
    if (event["ph"] != "X") continue;
    const int step = event["args"]["step"];
    seconds[names[event["tid"]]][step] += event["dur"].get<double>() * 1e-6;
  }
  const std::map<int, json> rows = Metrics("tracks");
  for (int step = 1; step <= 3; ++step) {  // the last one has the validation's waits, too
    const json& row = rows.at(step);
    for (const char* axis : {"data", "tensor"}) {
      const double on_track = seconds[std::string("exposed ") + axis][step];
      EXPECT_GT(on_track, 0.0) << axis;
      EXPECT_NEAR(row["exposed_" + std::string(axis) + "_seconds"].get<double>(), on_track, 1e-4)
          << axis << ", step " << step;
    }
    // These spans enclose what the rows count.
    EXPECT_GE(seconds["data wait"][step] + 1e-5, row["work_data_seconds"].get<double>());
    EXPECT_GE(seconds["optimizer"][step] + 1e-5, row["work_optimizer_seconds"].get<double>());
    EXPECT_GT(seconds["data wait"][step], 0.0);
    EXPECT_GT(seconds["optimizer"][step], 0.0);
  }
  EXPECT_EQ(seconds.count("exposed context"), 0U);
}

TEST_F(MeasureRunTest, BothWaysToCountAttentionAreWrittenAndNamed) {
  const Outcome outcome =
      Run(1, "mfu", {"train.steps=2", "train.peak_tflops=1", "sample.tokens=0"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("6 N + 6 L h T FLOPs a token: causal attention"));
  const json row = Metrics("mfu").at(2);
  // 2 layers of 64, samples of 32 tokens, vocabulary 320, feed-forward 256.
  const double weights = 2 * (4 * 64 * 64 + 2 * 64 * 256) + 320 * 64;
  const double rate = row["tokens_per_second"].get<double>() / 1e12;
  EXPECT_NEAR(row["mfu"].get<double>() / (rate * (6 * weights + 6 * 2 * 64 * 32)), 1, 1e-6);
  EXPECT_NEAR(row["mfu_full"].get<double>() / (rate * (6 * weights + 12 * 2 * 64 * 32)), 1, 1e-6);
  EXPECT_EQ(row["bubble_seconds"], 0.0);
}

TEST_F(MeasureRunTest, APipelineIsPlannedAnewForItsDurationsAndLossesStayTheSame) {
  // Recomputation makes backward passes longer than the first lists are made for.
  const std::vector<std::string> common = {
      "model.layers=4",       "train.precision=fp32",   "train.steps=10",
      "train.global_batch=8", "train.micro_batch=1",    "train.recompute=full",
      "parallel.pipeline=2",  "parallel.schedule=zb-v", "sample.tokens=0",
      "checkpoint.every=0",   "validation.every=0"};
  const auto losses = [&](const std::string& kind) {
    std::vector<std::string> settings = common;
    settings.push_back("parallel.replan=" + kind);
    const Outcome outcome = Run(2, "replan_" + kind, settings);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const std::string tells =
        "with the passes' durations in steps 3 to 6 since the start the bubble of its lists is ";
    if (kind == "off") {
      EXPECT_THAT(outcome.output, Not(HasSubstr(tells)));
    } else {
      EXPECT_THAT(outcome.output, HasSubstr(tells));
    }
    return Metrics("replan_" + kind);
  };
  const auto off = losses("off");
  ASSERT_EQ(off.size(), 10U);
  EXPECT_EQ(LargestDifference(off, losses("bitwise")), 0.0);
  EXPECT_LT(LargestDifference(off, losses("any")), 1e-5);
}

}  // namespace
}  // namespace weft::train
