// What happens to a run's folder when something is wrong with it: a second job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/files/file.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainFaultsTest : public TrainRunTest {
 protected:
  static std::string Checkpoints(const std::string& run) { return RunDir(run) + "/checkpoints"; }
  static std::string Step(const std::string& run, int64_t step) {
    return Checkpoints(run) + "/" + CheckpointName(step);
  }
  static std::string Output(const std::string& run) {
    return ReadFile(RunDir(run + ".out")).value_or("");
  }
};

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
