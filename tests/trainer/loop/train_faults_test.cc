// What happens to a run's folder when something is wrong with it: damaged and unreadable
// checkpoints, a second job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/files/file.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TrainFaultsTest : public TrainRunTest {
 protected:
  static std::string Checkpoints(const std::string& run) { return RunDir(run) + "/checkpoints"; }
  static std::string Step(const std::string& run, int64_t step) {
    return Checkpoints(run) + "/" + CheckpointName(step);
  }
  static std::vector<int64_t> Steps(const std::string& run) {
    std::vector<int64_t> steps;
    auto paths = ListCheckpoints(Checkpoints(run));
    EXPECT_TRUE(paths.ok()) << paths.status();
    for (const std::string& path : *paths) {
      int64_t step = -1;
      ParseCheckpointName(fs::path(path).filename().string(), step);
      steps.push_back(step);
    }
    return steps;
  }
  static void FlipBit(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }
  static void DamageShard(const std::string& run, int64_t step) {
    FlipBit(Step(run, step) + "/" + ShardName(0, 1), 20000);
  }
  // Path -> content of every file of the run but "lock" and the ranks' logs.
  static std::map<std::string, std::string> Contents(const std::string& run) {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::recursive_directory_iterator(RunDir(run))) {
      const fs::path& path = entry.path();
      if (!entry.is_regular_file() || path.filename() == "lock" || path.extension() == ".log") {
        continue;
      }
      contents[path.string()] = ReadFile(path.string()).value_or("");
    }
    return contents;
  }
  static std::string Output(const std::string& run) {
    return ReadFile(RunDir(run + ".out")).value_or("");
  }
};

TEST_F(TrainFaultsTest, ADamagedCheckpointCostsNoGoodOne) {
  ASSERT_EQ(Run(1, "damaged", {"checkpoint.every=10"}).status, 0);
  ASSERT_THAT(Steps("damaged"), ElementsAre(50, 40));
  DamageShard("damaged", 50);
  std::vector<std::string> settings = {"checkpoint.keep=1", "checkpoint.every=3", "train.steps=49",
                                       "optimizer.decay_steps=50", "--resume"};
  Outcome resumed = Run(1, "damaged", settings);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output,
              AllOf(HasSubstr("passed over step 50"), HasSubstr("resumed after step 40")));
  // The one resumed from, the last one, and the damaged one for a look.
  EXPECT_THAT(Steps("damaged"), ElementsAre(50, 49, 40));
  settings[2] = "train.steps=50";
  resumed = Run(1, "damaged", settings);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed after step 49"));
  EXPECT_THAT(Steps("damaged"), ElementsAre(50, 49));
  EXPECT_EQ(FindLatest(Checkpoints("damaged"))->step, 50);
}

TEST_F(TrainFaultsTest, NothingToResumeFromIsAnErrorThatChangesNothing) {
  ASSERT_EQ(Run(1, "broken", {"checkpoint.every=10"}).status, 0);
  DamageShard("broken", 50);
  FlipBit(Step("broken", 40) + "/manifest.json", 60);
  const auto before = Contents("broken");
  Outcome outcome = Run(2, "broken", {"--resume"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("cannot resume"), HasSubstr("step 50: " + Step("broken", 50)),
                    HasSubstr("its checksum is"),
                    HasSubstr("step 40: " + Step("broken", 40) + "/manifest.json")));
  EXPECT_EQ(Contents("broken"), before);
  outcome = Run(1, "broken");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("holds a run with the checkpoint " + Step("broken", 50)));
  EXPECT_EQ(Contents("broken"), before);
}

// Older steps are not what a user wants while the newest may be whole.
TEST_F(TrainFaultsTest, ANewerCheckpointThatCannotBeReadNowIsNotPassedOver) {
  ASSERT_EQ(Run(1, "unreadable", {"checkpoint.every=10"}).status, 0);
  const std::string manifest = Step("unreadable", 50) + "/manifest.json";
  fs::rename(manifest, manifest + ".away");
  fs::create_symlink("/proc/self/mem", manifest);  // opens, and fails to read with EIO
  const auto before = Contents("unreadable");
  Outcome outcome = Run(1, "unreadable", {"--resume", "train.steps=60"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr(manifest), HasSubstr("Input/output error"),
                                    HasSubstr("to go on from step 40")));
  EXPECT_EQ(Contents("unreadable"), before);
  fs::rename(manifest + ".away", manifest);
  outcome = Run(1, "unreadable", {"--resume", "train.steps=60"});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step 50"));
}

TEST_F(TrainFaultsTest, ASecondJobIsRefusedAndAKilledOneIsNot) {
  std::vector<std::string> settings = {"train.steps=100000", "optimizer.decay_steps=50",
                                       "checkpoint.every=5"};
  Process first(Command(1, "shared", settings), RunDir("shared.out"));
  ASSERT_TRUE(WaitForPath(Step("shared", 5) + "/manifest.json", first)) << Output("shared");
  settings.emplace_back("--resume");
  Outcome second = Process(Command(2, "shared", settings), RunDir("second.out")).Wait();
  EXPECT_EQ(second.status, 1) << second.output;
  EXPECT_THAT(second.output, AllOf(HasSubstr(RunDir("shared") + " is in use by another job"),
                                   HasSubstr(absl::StrCat("process ", first.pid(), " on host"))));
  EXPECT_FALSE(fs::exists(RunDir("shared") + "/logs/rank-1.log"));
  ASSERT_TRUE(first.running()) << Output("shared");
  first.KillAll();
  first.Wait();
  Outcome resumed = Run(1, "shared", {"train.steps=1", "optimizer.decay_steps=50", "--resume"});
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed after step"));
}

}  // namespace
}  // namespace weft
