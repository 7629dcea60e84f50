// weft-ckpt as users run it, on the checkpoints of a short run of weft-train, "one".
#ifndef WEFT_TESTS_TRAINER_LOOP_CKPT_RUN_H_
#define WEFT_TESTS_TRAINER_LOOP_CKPT_RUN_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/manifest.h"

namespace weft::train {

// Settings of the runs: four steps, a checkpoint every two.
inline const std::vector<std::string> kShort = {"train.steps=4",        "checkpoint.every=2",
                                                "sample.tokens=0",      "train.peak_tflops=1",
                                                "validation.batches=1", "optimizer.warmup_steps=1"};

inline std::vector<std::string> Join(std::vector<std::string> words,
                                     const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Changes one bit of the byte at `offset`.
inline void Flip(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 0x40);
  file.seekp(offset);
  file.put(byte);
}

// A Python with PyTorch, where there is one.
inline std::string TorchPython() {
  for (const std::string& python : {Environment("WEFT_TORCH_PYTHON"),
                                    Environment("HOME") + "/.cache/weft/torch-venv/bin/python",
                                    Environment("WEFT_SOURCE") + "/.deps/bench-venv/bin/python"}) {
    if (!python.empty() && fs::exists(python)) return python;
  }
  return "";
}

class CkptRunTest : public TrainRunTest {
 protected:
  static void SetUpTestSuite() {
    TrainRunTest::SetUpTestSuite();
    const Outcome one = Run(1, "one", kShort);
    ASSERT_EQ(one.status, 0) << one.output;
  }

  static std::string Step(const std::string& run, int64_t step) {
    return RunDir(run) + "/checkpoints/" + CheckpointName(step);
  }
  static Outcome Ckpt(const std::vector<std::string>& words) {
    static int calls = 0;
    return Process(Join({Environment("WEFT_BIN") + "/weft-ckpt"}, words),
                   RunDir(absl::StrCat("ckpt", ++calls, ".out")))
        .Wait();
  }
  static json CkptJson(std::vector<std::string> words, int status = 0) {
    words.emplace_back("--json");
    const Outcome outcome = Ckpt(words);
    EXPECT_EQ(outcome.status, status) << outcome.output;
    json parsed = json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(parsed.is_object()) << outcome.output;
    return parsed;
  }
  // The config of the tests' runs, for convert --from.
  static std::vector<std::string> ConfigOf(const std::vector<std::string>& settings) {
    std::vector<std::string> words = {"--config",
                                      Environment("WEFT_SOURCE") + "/trainer/configs/tiny.toml",
                                      "--set", "data.prefix=" + (root_ / "data").string()};
    for (const std::string& setting : settings) {
      words.emplace_back("--set");
      words.push_back(setting);
    }
    return words;
  }
  static Outcome FromHuggingFace(const std::string& source, const std::string& run,
                                 const std::vector<std::string>& settings) {
    return Ckpt(
        Join({"convert", source, "--from", "huggingface", RunDir(run)}, ConfigOf(settings)));
  }
  static Outcome ToHuggingFace(const std::string& checkpoint, const std::string& target,
                               const std::vector<std::string>& more = {}) {
    return Ckpt(Join({"convert", checkpoint, "--to", "huggingface", target}, more));
  }
  // A copy of the checkpoint of `one`, to be damaged.
  static std::string CopyOfStep(const std::string& name) {
    const std::string copy = Step(name, 4);
    fs::create_directories(fs::path(copy).parent_path());
    fs::copy(Step("one", 4), copy);
    return copy;
  }
  // What is in the tests' folder under names that begin so.
  static std::vector<std::string> Entries(const std::string& prefix) {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(root_)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(prefix, 0) == 0) names.push_back(name);
    }
    return names;
  }
  static std::string Bytes(const std::string& path) {
    auto bytes = ReadFile(path);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : "";
  }
};

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_LOOP_CKPT_RUN_H_
