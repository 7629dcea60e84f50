// What happens to a run's folder when something is wrong with it: damaged and unreadable
// checkpoints, a second job, a full disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "tests/scoped_variable.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
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
  // False when it does not come true within a minute, or the process ended before.
  static bool Await(Process& process, const std::function<bool()>& condition) {
    for (int i = 0; i < 6000 && process.running(); ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
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
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("cannot resume"), ContainsRegex("step 50: rank [01]: " + Step("broken", 50)),
            HasSubstr("is damaged: the checksum of buffer"),
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

// What is read to know whether it is whole holds up no save: here a shard with a hole, of a size
// that takes minutes, while the other rank has no patience for that.
TEST_F(TrainFaultsTest, NoSaveWaitsUntilAnOlderCheckpointIsVerified) {
  const std::vector<std::string> settings = {"checkpoint.every=2", "checkpoint.keep=3",
                                             "optimizer.decay_steps=10", "sample.tokens=0"};
  std::vector<std::string> first = settings, second = settings;
  first.emplace_back("train.steps=6");
  second.insert(second.end(), {"train.steps=10", "--resume"});
  ASSERT_EQ(Run(2, "large", first).status, 0);
  ASSERT_THAT(Steps("large"), ElementsAre(6, 4, 2));
  const int64_t terabyte = int64_t{1} << 40;
  const std::string path = Step("large", 4) + "/manifest.json";
  auto manifest = ParseManifest(ReadFile(path).value_or(""), path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  manifest->shards[0].bytes = terabyte;
  ASSERT_TRUE(WriteFileAtomically(path, ToJson(*manifest)).ok());
  std::error_code error;
  fs::resize_file(Step("large", 4) + "/" + ShardName(0, 2), terabyte, error);
  if (error) GTEST_SKIP() << "no file of a terabyte with a hole: " << error.message();
  const ScopedVariable patience("WEFT_COLLECTIVE_TIMEOUT", "30s");
  const Outcome outcome = Run(2, "large", second);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step 6"));
  // In the end three are known, and those before them are gone.
  EXPECT_THAT(Steps("large"), ElementsAre(10, 8, 6));
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

// A small disk of a test's own.
class Disk {
 public:
  Disk(std::string path, const std::string& size) : path_(std::move(path)) {
    fs::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    if (!mounted_) why_ = std::strerror(errno);
  }
  ~Disk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& why() const { return why_; }
  std::string filler() const { return path_ + "/filler"; }
  void Fill() const {
    std::ofstream file(filler(), std::ios::app | std::ios::binary);
    for (const std::string block(4096, 'x'); file.good();) file << block << std::flush;
  }

 private:
  const std::string path_;
  bool mounted_ = false;
  std::string why_;
};

TEST_F(TrainFaultsTest, AFullDiskCostsNoStepAndNoLine) {
  Disk disk(RunDir("full"), "8m");
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small disk (needs root): " << disk.why();
  Process process(Command(1, "full",
                          {"train.steps=100000", "optimizer.decay_steps=50", "checkpoint.every=5",
                           "checkpoint.keep=1"}),
                  RunDir("full.out"));
  ASSERT_TRUE(WaitForPath(Step("full", 5) + "/manifest.json", process)) << Output("full");
  // What a failed save gives back is filled again, until the metrics, too, have no place.
  ASSERT_TRUE(Await(process, [&] {
    disk.Fill();
    const std::string output = Output("full");
    return output.find("no checkpoint of step") != std::string::npos &&
           output.find("the lines are kept in memory") != std::string::npos;
  })) << Output("full");
  auto latest = FindLatest(Checkpoints("full"));
  ASSERT_TRUE(latest.ok()) << latest.status();
  const int64_t old = latest->step;
  EXPECT_GE(old, 5);
  fs::remove(disk.filler());
  EXPECT_TRUE(Await(process, [&] { return Steps("full").front() > old; })) << Output("full");
  process.Signal(SIGTERM);
  Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("No space left on device"),
                                    HasSubstr("checkpoints could not be written")));
  std::map<int, json> rows = Metrics("full");
  EXPECT_EQ(rows.rbegin()->first, static_cast<int>(rows.size()));
  EXPECT_THAT(ReadFile(RunDir("full") + "/metrics.jsonl").value_or(""),
              HasSubstr("checkpoint_failed"));
}

TEST_F(TrainFaultsTest, AScriptCanTellThatTheLastCheckpointIsMissing) {
  Disk disk(Checkpoints("unsaved"), "600k");  // a checkpoint takes 1.5 MB
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small disk (needs root): " << disk.why();
  for (int ranks : {1, 2}) {
    Outcome outcome = Run(ranks, "unsaved", {"train.steps=5"});
    EXPECT_EQ(outcome.status, 3) << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("missing checkpoint of step 5"),
                                      HasSubstr("No space left on device")));
    EXPECT_TRUE(fs::exists(RunDir("unsaved") + "/model/model.safetensors"));
    EXPECT_TRUE(fs::is_empty(Checkpoints("unsaved")));
  }
}

TEST_F(TrainFaultsTest, AFileSizeLimitIsAFailedWriteAndNoDeath) {
  std::string line = "ulimit -f 400; exec";  // blocks of 512 bytes
  for (const std::string& word : Command(1, "limited", {"train.steps=5"})) line += " " + word;
  Outcome outcome = Process({"/bin/sh", "-c", line}, RunDir("limited.out")).Wait();
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("missing checkpoint of step 5"), HasSubstr("File too large")));
  EXPECT_EQ(Metrics("limited").size(), 5U);
}

}  // namespace
}  // namespace weft::train
