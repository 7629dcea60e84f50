// weft-train as users run it, on a small text of the tests' own: processes, run folders, metrics.
#ifndef WEFT_TESTS_TRAINER_LOOP_TRAIN_RUN_H_
#define WEFT_TESTS_TRAINER_LOOP_TRAIN_RUN_H_

#include <fcntl.h>
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
#include <utility>
#include <vector>

#include "base/random.h"
#include "trainer/data/prepare.h"

namespace weft::train {

namespace fs = std::filesystem;
using nlohmann::json;

inline std::string Environment(const char* name) {
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
    // A shell has its background jobs ignore SIGINT.
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    posix_spawnattr_setsigdefault(&attributes, &interrupt);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
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
  pid_t pid() const { return pid_; }
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

  // Copies the dataset that all tests share, to be damaged. Returns the copy's prefix.
  static std::string CopyOfData(const std::string& name) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder);
    for (const fs::directory_entry& entry : fs::directory_iterator(root_)) {
      const std::string file = entry.path().filename().string();
      if (file.rfind("data", 0) != 0) continue;
      fs::copy_file(entry.path(), folder / file, fs::copy_options::overwrite_existing);
    }
    return (folder / "data").string();
  }

  static std::vector<std::string> Command(int ranks, const std::string& run,
                                          const std::vector<std::string>& extra) {
    std::string bin = Environment("WEFT_BIN");
    std::vector<std::string> command;
    if (ranks > 1) command = {bin + "/weft-run", "-n", std::to_string(ranks), "--"};
    // Measuring the peak would take all cores for longer than the steps do.
    std::vector<std::string> rest = {bin + "/weft-train",
                                     Environment("WEFT_SOURCE") + "/trainer/configs/tiny.toml",
                                     "--run-dir",
                                     RunDir(run),
                                     "--set",
                                     "data.prefix=" + (root_ / "data").string(),
                                     "--set",
                                     "train.gemm=weft",
                                     "--set",
                                     "train.attention=weft",
                                     "--set",
                                     "train.peak_tflops=1"};
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
      if (!row.contains("loss")) continue;
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

  static inline fs::path root_;
};

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_LOOP_TRAIN_RUN_H_
