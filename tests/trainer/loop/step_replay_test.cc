#include "trainer/loop/step_replay.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/scratch_folder.h"

namespace weft::train {
namespace {

TEST(StepReplay, LeavesTheRunAloneWhateverTheJobsName) {
  ScratchFolder run;
  run.Write("metrics.jsonl", "{}\n");
  run.Write("replay/other/metrics.jsonl", "{}\n");
  for (const char* name : {"..", ".", "", "team/run", "../../run"}) {
    TrainConfig config;
    const auto replay = StepReplay::Plan(run.path(), name, config);
    ASSERT_TRUE(replay.ok()) << replay.status();
    ASSERT_TRUE(replay->Begin().ok()) << name;
    EXPECT_TRUE(replay->End().ok()) << name;
    EXPECT_TRUE(std::filesystem::exists(run / "metrics.jsonl")) << name;
    EXPECT_TRUE(std::filesystem::exists(run / "replay/other/metrics.jsonl")) << name;
  }
}

}  // namespace
}  // namespace weft::train
