// Checkpoints that are written under the next steps, and copies in a remote folder, as users run
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class CheckpointTiersRunTest : public TrainRunTest {
 protected:
  static std::vector<std::string> Settings(const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"train.steps=10",       "train.precision=fp32",
                                         "train.peak_tflops=1",  "sample.tokens=0",
                                         "checkpoint.every=1",   "checkpoint.keep=20",
                                         "optimizer.name=adamw", "optimizer.decay_steps=10"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  static void ExpectWhole(const std::string& folder) {
    const auto latest = FindLatest(folder);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ(latest->step, 10) << folder;
    EXPECT_TRUE(latest->passed_over.empty());
    EXPECT_TRUE(latest->unfinished.empty());
  }
};

// Each checkpoint of the background has the bytes that one has for which the run stood still.
TEST_F(CheckpointTiersRunTest, BackgroundWritesWhatTheForegroundWrites) {
  const std::pair<std::string, std::vector<std::string>> layouts[] = {
      {"data", {}}, {"tensor", {"parallel.tensor=2"}}, {"bf16", {"train.precision=bf16"}}};
  for (const auto& [name, settings] : layouts) {
    SCOPED_TRACE(name);
    const std::string still = name + "_still", under = name + "_under";
    Outcome outcome = Run(2, still, Settings(settings));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    std::vector<std::string> background = Settings(settings);
    background.push_back("checkpoint.background=true");
    outcome = Run(2, under, background);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("checkpoints      in the background "));
    EXPECT_EQ(LargestDifference(Metrics(still), Metrics(under)), 0);
    const std::string folder = RunDir(under) + "/checkpoints";
    ExpectWhole(folder);
    const auto paths = ListCheckpoints(folder);
    ASSERT_TRUE(paths.ok());
    EXPECT_GE(paths->size(), 2U);  // the first is never left out, nor is the last
    for (const std::string& path : *paths) {
      const auto reader = CheckpointReader::Open(path, Verification::kEverything);
      ASSERT_TRUE(reader.ok()) << reader.status();
      for (const ShardInfo& shard : (*reader)->manifest().shards) {
        const fs::path other =
            fs::path(RunDir(still)) / "checkpoints" / fs::path(path).filename() / shard.file;
        EXPECT_EQ(*ReadFile(path + "/" + shard.file), *ReadFile(other.string())) << other;
      }
    }
  }
}

TEST_F(CheckpointTiersRunTest, TheRemoteFolderIsResumedFromWhereTheRunsOwnIsLost) {
  Outcome outcome = Run(2, "whole", Settings({"train.steps=14", "optimizer.decay_steps=14"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const std::string remote = RunDir("remote_folder");
  const std::vector<std::string> settings = {"optimizer.decay_steps=14",
                                             "checkpoint.background=true", "checkpoint.keep=3",
                                             "checkpoint.remote_folder=" + remote};
  outcome = Run(2, "lost", Settings(settings));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("remote copies    "));
  ExpectWhole(remote);
  EXPECT_LE(ListCheckpoints(remote)->size(), 3U);
  fs::remove_all(RunDir("lost") + "/checkpoints");

  outcome = Run(2, "lost", Settings(settings));  // not by mistake as a new run
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("another checkpoint.remote_folder"));

  std::vector<std::string> more = Settings(settings);
  more.insert(more.end(), {"train.steps=14", "--resume"});
  outcome = Run(2, "lost", more);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("resumed after step 10, from " + remote + "/step-00000010"));
  EXPECT_EQ(LargestDifference(Metrics("whole"), Metrics("lost")), 0);
  EXPECT_EQ(FindLatest(remote)->step, 14);
}

// A folder that takes nothing costs copies, and not the run; its end says so.
TEST_F(CheckpointTiersRunTest, ARemoteFolderThatTakesNothingCostsNoStep) {
  const Outcome outcome =
      Run(1, "refused", Settings({"checkpoint.remote_folder=/proc/none/copies"}));
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.output,
              ContainsRegex("remote checkpoint: .*copy step 10 to /proc/none/copies"));
  EXPECT_THAT(outcome.output, HasSubstr("remote copies    0 in /proc/none/copies"));
  ExpectWhole(RunDir("refused") + "/checkpoints");
}

}  // namespace
}  // namespace weft::train
