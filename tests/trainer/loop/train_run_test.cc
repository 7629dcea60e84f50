// weft-train as users run it: alone and under weft-run, killed and resumed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/data/prepare.h"
#include "trainer/files/file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Outcome {
  int status = 0;  // exit status; 128 + signal
  std::string output;
};

// A program that writes both its streams to a file. It leads a process group, so that a test can
// take it away with all its children.
class Process {
 public:
  Process(const std::vector<std::string>& command, std::string output)
      : output_(std::move(output)) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_CREAT | O_TRUNC | O_WRONLY,
                                     0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ),
              0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  void Signal(int number) { kill(pid_, number); }
  void KillAll() { kill(-pid_, SIGKILL); }
  bool running() {
    if (pid_ <= 0) return false;
    if (waitpid(pid_, &status_, WNOHANG) != pid_) return true;
    pid_ = -1;
    return false;
  }
  Outcome Wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = -1;
    std::ifstream file(output_);
    Outcome outcome;
    outcome.status = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    outcome.output.assign(std::istreambuf_iterator<char>(file), {});
    return outcome;
  }

 private:
  std::string output_;
  pid_t pid_ = -1;
  int status_ = 0;
};

class TrainRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::path(::testing::TempDir()) / ("weft_train_" + std::to_string(getpid()));
    fs::create_directories(root_);
    WriteText();
    PrepareOptions options;
    options.inputs = {(root_ / "text.txt").string()};
    options.output_prefix = (root_ / "data").string();
    options.vocab_size = 320;
    options.validation_fraction = 0.1;
    auto info = PrepareDataset(options);
    ASSERT_TRUE(info.ok()) << info.status();
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  // Sentences with some grammar, so that there is something to learn.
  static void WriteText() {
    const std::vector<std::string> things = {"horse", "river", "lamp", "field", "ship", "song"};
    const std::vector<std::string> verbs = {"carries", "sees", "follows", "keeps", "makes"};
    std::ofstream file(root_ / "text.txt");
    Random random(5);
    for (int document = 0; document < 400; ++document) {
      for (int line = 0; line < 4; ++line) {
        file << "the " << things[random.Below(6)] << " " << verbs[random.Below(5)] << " the "
             << things[random.Below(6)] << " of " << random.Below(100) << ".\n";
      }
      file << "\n";
    }
  }

  static std::string RunDir(const std::string& name) { return (root_ / name).string(); }

  static std::vector<std::string> Command(int ranks, const std::string& run,
                                          const std::vector<std::string>& extra) {
    std::string bin = Environment("WEFT_BIN");
    std::vector<std::string> command;
    if (ranks > 1) command = {bin + "/weft-run", "-n", std::to_string(ranks), "--"};
    std::vector<std::string> rest = {bin + "/weft-train",
                                     Environment("WEFT_SOURCE") + "/trainer/configs/tiny.toml",
                                     "--run-dir",
                                     RunDir(run),
                                     "--set",
                                     "data.prefix=" + (root_ / "data").string()};
    command.insert(command.end(), rest.begin(), rest.end());
    for (const std::string& word : extra) {
      if (word[0] != '-') command.emplace_back("--set");
      command.push_back(word);
    }
    return command;
  }
  static Outcome Run(int ranks, const std::string& run,
                     const std::vector<std::string>& extra = {}) {
    return Process(Command(ranks, run, extra), RunDir(run + ".out")).Wait();
  }

  static std::map<int, json> Metrics(const std::string& run) {
    std::map<int, json> rows;
    std::ifstream file(RunDir(run) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      json row = json::parse(line);
      EXPECT_EQ(rows.count(row["step"]), 0U) << "step " << row["step"] << " is there twice";
      rows[row["step"]] = row;
    }
    return rows;
  }
  static double LargestDifference(const std::map<int, json>& a, const std::map<int, json>& b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0;
    for (const auto& [step, row] : a) {
      if (b.count(step) == 0) return INFINITY;
      double difference = std::abs(row["loss"].get<double>() - b.at(step)["loss"].get<double>());
      largest = std::max(largest, difference);
    }
    return largest;
  }
  static bool WaitForPath(const std::string& path, Process& process) {
    for (int i = 0; i < 6000 && process.running(); ++i) {
      if (fs::exists(path)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return fs::exists(path);
  }

  static fs::path root_;
};
fs::path TrainRunTest::root_;

TEST_F(TrainRunTest, LeavesEveryFileAndLearns) {
  Outcome outcome = Run(1, "alone");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* name : {"config.toml", "metrics.jsonl", "loss.svg", "trace.json", "sample.txt",
                           "logs/rank-0.log", "model/model.safetensors", "model/config.json",
                           "model/tokenizer.model", "checkpoints/step-00000050/manifest.json"}) {
    EXPECT_TRUE(fs::exists(RunDir("alone") + "/" + name)) << name;
  }
  std::map<int, json> rows = Metrics("alone");
  ASSERT_EQ(rows.size(), 50U);
  for (const char* key : {"step", "loss", "val_loss", "grad_norm", "learning_rate", "tokens",
                          "tokens_per_second", "step_seconds", "exposed_comm_seconds", "mfu"}) {
    EXPECT_TRUE(rows[50].contains(key)) << key;
  }
  EXPECT_FALSE(rows[49].contains("val_loss"));
  EXPECT_EQ(rows[50]["tokens"], 50 * 8 * 32);
  EXPECT_EQ(rows[50]["exposed_comm_seconds"], 0.0);
  EXPECT_LT(rows[50]["loss"].get<double>(), rows[1]["loss"].get<double>() - 1);
  EXPECT_THAT(outcome.output, HasSubstr("unigram"));
  auto model = SafetensorsFile::Open(RunDir("alone") + "/model/model.safetensors");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NE(model->Find("h.1.attn.c_attn.weight"), nullptr);
  EXPECT_EQ(model->Find("h.1.attn.c_attn.weight")->shape, (std::vector<int64_t>{64, 192}));
}

TEST_F(TrainRunTest, FourRanksHaveTheLossesOfOne) {
  ASSERT_EQ(Run(1, "one").status, 0);
  Outcome four = Run(4, "four");
  ASSERT_EQ(four.status, 0) << four.output;
  EXPECT_LT(LargestDifference(Metrics("one"), Metrics("four")), 1e-5);
  EXPECT_GT(Metrics("four")[50]["exposed_comm_seconds"].get<double>(), 0.0);
}

TEST_F(TrainRunTest, BothZeroStagesGiveTheSameLosses) {
  ASSERT_EQ(Run(2, "zero1", {"parallel.zero=1", "train.steps=20"}).status, 0);
  Outcome zero2 = Run(2, "zero2", {"parallel.zero=2", "train.steps=20"});
  ASSERT_EQ(zero2.status, 0) << zero2.output;
  EXPECT_EQ(LargestDifference(Metrics("zero1"), Metrics("zero2")), 0.0);
  // With micro-batches the sums are in another order.
  ASSERT_EQ(Run(2, "micro1", {"parallel.zero=1", "train.steps=20", "train.micro_batch=1"}).status,
            0);
  ASSERT_EQ(Run(2, "micro2", {"parallel.zero=2", "train.steps=20", "train.micro_batch=1"}).status,
            0);
  EXPECT_LT(LargestDifference(Metrics("micro1"), Metrics("micro2")), 1e-5);
  EXPECT_LT(LargestDifference(Metrics("micro1"), Metrics("zero1")), 1e-5);
}

TEST_F(TrainRunTest, KilledRunResumesToTheBit) {
  std::vector<std::string> settings = {"train.precision=bf16", "train.steps=60",
                                       "checkpoint.every=7", "model.dropout=0.1"};
  ASSERT_EQ(Run(2, "unbroken", settings).status, 0);
  {
    Process process(Command(2, "broken", settings), RunDir("broken.out"));
    ASSERT_TRUE(
        WaitForPath(RunDir("broken") + "/checkpoints/step-00000021/manifest.json", process));
    process.KillAll();
    process.Wait();
  }
  settings.emplace_back("--resume");
  Outcome resumed = Run(2, "broken", settings);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed after step"));
  EXPECT_EQ(LargestDifference(Metrics("unbroken"), Metrics("broken")), 0.0);
}

TEST_F(TrainRunTest, ResumesWithAnotherNumberOfRanks) {
  ASSERT_EQ(Run(1, "straight").status, 0);
  ASSERT_EQ(Run(4, "changed", {"train.steps=20", "optimizer.decay_steps=50"}).status, 0);
  Outcome resumed = Run(2, "changed", {"--resume"});
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_LT(LargestDifference(Metrics("straight"), Metrics("changed")), 1e-5);
}

TEST_F(TrainRunTest, TerminationFinishesTheStepAndSaves) {
  Process process(Command(2, "stopped", {"train.steps=100000", "checkpoint.every=0"}),
                  RunDir("stopped.out"));
  ASSERT_TRUE(WaitForPath(RunDir("stopped") + "/loss.svg", process));
  process.Signal(SIGTERM);
  Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.output;  // weft-run says what ended it
  EXPECT_THAT(outcome.output, HasSubstr("stopped after step"));
  int last = Metrics("stopped").rbegin()->first;
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08d", last);
  EXPECT_TRUE(fs::exists(RunDir("stopped") + "/checkpoints/" + name));
  EXPECT_TRUE(fs::exists(RunDir("stopped") + "/trace.json"));
}

// Order of events, not their length: the first reduce-scatter of a step starts while its backward
// pass still runs, and gathers are under way when the next forward pass begins.
TEST_F(TrainRunTest, CommunicationRunsUnderTheBackwardPass) {
  Outcome outcome = Run(2, "overlap", {"train.steps=12"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream file(RunDir("overlap") + "/trace.json");
  json events = json::parse(file)["traceEvents"];
  for (int rank = 0; rank < 2; ++rank) {
    std::map<int, double> backward_end, first_reduction;
    for (const json& event : events) {
      if (event["ph"] != "X" || event["pid"] != rank) continue;
      int step = event["args"]["step"];
      double start = event["ts"];
      if (event["name"] == "backward") backward_end[step] = start + event["dur"].get<double>();
      if (event["name"] == "reduce_scatter" &&
          (first_reduction.count(step) == 0 || start < first_reduction[step])) {
        EXPECT_EQ(event["tid"], 1);
        first_reduction[step] = start;
      }
    }
    ASSERT_EQ(backward_end.size(), 12U);
    for (const auto& [step, end] : backward_end) {
      ASSERT_EQ(first_reduction.count(step), 1U) << "rank " << rank << " step " << step;
      EXPECT_LT(first_reduction[step], end) << "rank " << rank << " step " << step;
    }
  }
}

TEST_F(TrainRunTest, ErrorsSayWhatToDo) {
  Outcome outcome = Run(1, "bad", {"data.prefix=/nowhere/data"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("/nowhere/data"));
  outcome = Run(1, "bad", {"train.stepz=3"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("did you mean train.steps?"));
  outcome = Run(2, "bad", {"train.global_batch=3"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("multiple of the 2 ranks"));
  outcome = Run(2, "diverged",
                {"optimizer.learning_rate=1e30", "optimizer.warmup_steps=0", "train.steps=9"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("step "));
  EXPECT_THAT(outcome.output, HasSubstr("rank "));
  EXPECT_THAT(outcome.output, HasSubstr("optimizer.learning_rate"));
  ASSERT_EQ(Run(1, "again", {"train.steps=3"}).status, 0);
  outcome = Run(1, "again", {"train.steps=3"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("--resume"));
  outcome = Run(1, "again", {"train.steps=5", "model.hidden=128", "--resume"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("model.hidden"));
}

}  // namespace
}  // namespace weft
