// Checkpoints that are written under the next steps, and copies in a remote folder, as users run
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/read_file.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/files/folder_lock.h"

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
    const auto unfinished = ListUnfinished(folder);
    ASSERT_TRUE(unfinished.ok()) << unfinished.status();
    EXPECT_TRUE(unfinished->empty());
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

// A run that is at its end already saves nothing into its own folder.
TEST_F(CheckpointTiersRunTest, AModelThatIsCutIsExportedFromTheRemoteFolderWhereNoStepIsLeft) {
  const std::string remote = RunDir("ended_remote");
  std::vector<std::string> settings =
      Settings({"parallel.tensor=2", "checkpoint.remote_folder=" + remote});
  Outcome outcome = Run(2, "ended", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const std::string model = RunDir("ended") + "/model/model.safetensors";
  const auto exported = ReadFile(model);
  ASSERT_TRUE(exported.ok()) << exported.status();
  fs::remove_all(RunDir("ended") + "/checkpoints");
  fs::remove_all(RunDir("ended") + "/model");
  settings.push_back("--resume");
  outcome = Run(2, "ended", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("resumed after step 10, from " + remote + "/step-00000010"));
  const auto again = ReadFile(model);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(*again == *exported);
}

// The driver's replay of a step begins there as well, with the same result, and changes nothing.
TEST_F(CheckpointTiersRunTest, AStepIsReplayedFromTheRemoteFolder) {
  const std::string remote = RunDir("replay_remote");
  const std::vector<std::string> settings =
      Settings({"optimizer.decay_steps=14", "checkpoint.remote_folder=" + remote});
  Outcome outcome = Run(2, "replayed", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::vector<std::string> replay = settings;
  replay.push_back("--replay");
  const auto digest = [&] {
    const Outcome replayed = Run(2, "replayed", replay);
    EXPECT_EQ(replayed.status, 0) << replayed.output;
    const size_t at = replayed.output.find("replay: step 11, ");
    EXPECT_NE(at, std::string::npos) << replayed.output;
    return at == std::string::npos
               ? std::string()
               : replayed.output.substr(at, replayed.output.find('\n', at) - at);
  };
  const std::string from_own = digest();
  fs::remove_all(RunDir("replayed") + "/checkpoints");
  EXPECT_EQ(digest(), from_own);
  ExpectWhole(remote);
}

// Memory, local disk, the run's folder, a remote one: the newest is taken, of the same step the
// fastest, and what a tier has lost or damaged comes from the next.
TEST_F(CheckpointTiersRunTest, EachTierIsResumedFromWhereTheFasterOnesAreLost) {
  Outcome outcome = Run(2, "calm", Settings({"train.steps=14", "optimizer.decay_steps=14"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const std::string local = RunDir("local_disk"), remote = RunDir("far_disk");
  std::vector<std::string> settings =
      Settings({"optimizer.decay_steps=14", "checkpoint.background=true", "checkpoint.keep=3",
                "checkpoint.local_folder=" + local, "checkpoint.remote_folder=" + remote});
  outcome = Run(2, "tiers", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(" in " + local + " of each host; "));
  ExpectWhole(RunDir("tiers") + "/checkpoints");
  ExpectWhole(remote);
  EXPECT_LE(ListCheckpoints(local)->size(), 3U);
  const auto newest = FindLatest(local);
  ASSERT_TRUE(newest.ok() && newest->step >= 1) << newest.status();
  EXPECT_TRUE(newest->passed_over.empty());

  // Until the last step the newest is on the local disk; it alone is left.
  const std::string name = "/" + CheckpointName(newest->step);
  fs::remove_all(RunDir("tiers") + "/checkpoints");
  fs::remove_all(remote);
  settings.push_back("--resume");
  settings.push_back("train.steps=14");
  outcome = Run(2, "tiers", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step " + std::to_string(newest->step) +
                                        ", from " + local + name));
  EXPECT_EQ(LargestDifference(Metrics("calm"), Metrics("tiers")), 0);

  // The last step of a run goes to the run's folder at once, and from there to the remote one.
  outcome = Run(1, "tiers", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step 14, from " + RunDir("tiers") +
                                        "/checkpoints/step-00000014"));
  fs::remove_all(RunDir("tiers") + "/checkpoints");
  outcome = Run(2, "tiers", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("resumed after step 14, from " + remote + "/step-00000014"));

  outcome = Run(1, "other", Settings({"checkpoint.local_folder=" + local}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("needs checkpoint.background = true"));
  outcome =
      Run(2, "other", Settings({"checkpoint.background=true", "checkpoint.local_folder=" + local}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("another checkpoint.local_folder"));
}

// All processes are killed again and again, in whatever they write to whichever tier.
TEST_F(CheckpointTiersRunTest, AKilledJobGoesOnFromWhateverTierHasTheNewest) {
  std::vector<std::string> settings = Settings({"train.steps=24", "optimizer.decay_steps=24"});
  Outcome outcome = Run(2, "unbroken", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const std::string local = RunDir("killed_local");
  settings.insert(settings.end(), {"checkpoint.background=true", "checkpoint.keep=3",
                                   "checkpoint.local_folder=" + local,
                                   "checkpoint.remote_folder=" + RunDir("killed_remote")});
  for (const int64_t step : {2, 6, 11}) {
    Process job(Command(2, "killed", settings), RunDir("killed.out"));
    // The step itself may be left out, or deleted again before this looks: a later one will do.
    for (int i = 0; i < 6000 && job.running(); ++i) {
      const auto paths = ListCheckpoints(local);
      int64_t newest = 0;
      if (paths.ok() && !paths->empty()) {
        ParseCheckpointName(fs::path(paths->front()).filename().string(), newest);
      }
      if (newest >= step) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    job.KillAll();
    job.Wait();
    // Until the ranks are gone, too.
    for (int i = 0; i < 6000 && !FolderLock::Take(RunDir("killed")).ok(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (settings.back() != "--resume") settings.push_back("--resume");
  }
  outcome = Run(2, "killed", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("resumed after step [0-9]+, from "));
  EXPECT_EQ(LargestDifference(Metrics("unbroken"), Metrics("killed")), 0);
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
