// What weft-ckpt says of checkpoints and how it copies them: list, verify, diff, copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/trainer/loop/ckpt_run.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(CkptRunTest, ACopyIsWholeOrNotThere) {
  const std::string folder = RunDir("copies"), copy = folder + "/" + CheckpointName(4);
  const json said = CkptJson({"copy", Step("one", 4), folder});
  EXPECT_EQ(said.value("copy", ""), copy);
  EXPECT_EQ(Ckpt({"verify", copy}).status, 0);
  EXPECT_EQ(Ckpt({"diff", Step("one", 4), copy}).status, 0);
  // A damaged checkpoint is not copied, and the copy of that step that was there stays.
  const std::string damaged = RunDir("damaged") + "/" + CheckpointName(4);
  fs::create_directories(RunDir("damaged"));
  fs::copy(copy, damaged);
  for (const fs::directory_entry& entry : fs::directory_iterator(damaged)) {
    if (entry.path().extension() == ".safetensors") Flip(entry.path().string(), 5000);
  }
  const Outcome outcome = Ckpt({"copy", damaged, folder});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("is damaged: its checksum is"));
  EXPECT_EQ(Ckpt({"verify", copy}).status, 0);
}

TEST_F(CkptRunTest, ListsWhatARunHasAndProvesItWhole) {
  const json listed = CkptJson({"list", RunDir("one")});
  ASSERT_EQ(listed["checkpoints"].size(), 2U);
  const json& newest = listed["checkpoints"][0];
  EXPECT_EQ(newest["step"], 4);
  EXPECT_EQ(newest["whole"], true);
  EXPECT_EQ(newest["ranks"], 1);
  EXPECT_EQ(newest["optimizer"], "adamw");
  EXPECT_EQ(newest["version"], kCheckpointVersion);
  EXPECT_EQ(newest["samples_consumed"], 32);
  EXPECT_EQ(listed["checkpoints"][1]["step"], 2);

  const std::string copy = CopyOfStep("damaged_list");
  fs::create_directories(RunDir("damaged_list") + "/checkpoints/.tmp-step-00000006");
  Flip(copy + "/" + ShardName(0, 1), 5000);
  const Outcome damaged = Ckpt({"list", RunDir("damaged_list")});
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.output, AllOf(HasSubstr("step-00000004"), HasSubstr("NOT WHOLE: rank-00000"),
                                    HasSubstr(".tmp-step-00000006  being written, or left")));
  // Sizes are right.
  const Outcome quick = Ckpt({"list", "--quick", RunDir("damaged_list")});
  EXPECT_EQ(quick.status, 0) << quick.output;
  EXPECT_THAT(quick.output, HasSubstr("sizes are right"));
}

TEST_F(CkptRunTest, VerifyNamesFileBufferAndBothChecksums) {
  EXPECT_EQ(CkptJson({"verify", Step("one", 4)})["faults"], json::array());
  const std::string copy = CopyOfStep("damaged");
  const std::string shard = copy + "/" + ShardName(0, 1);
  // Within the tensor of one buffer.
  auto file = SafetensorsFile::Open(shard);
  ASSERT_TRUE(file.ok());
  const TensorInfo* tensor = file->Find("parameters.norm.weight");
  ASSERT_NE(tensor, nullptr);
  const auto place = reinterpret_cast<const std::byte*>(file->Data(*tensor).data()) -
                     (file->Data(file->tensors().front()).data());
  const int64_t data = static_cast<int64_t>(fs::file_size(shard)) - file->tensors().back().end;
  Flip(shard, data + place + 1);
  const json report = CkptJson({"verify", copy}, 1);
  EXPECT_EQ(report["whole"], false);
  ASSERT_EQ(report["faults"].size(), 2U) << report;
  auto manifest = ParseManifest(Bytes(copy + "/manifest.json"), copy);
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(report["faults"][0]["buffer"], "");
  EXPECT_EQ(report["faults"][0]["expected"],
            absl::StrFormat("checksum %08x", manifest->shards[0].crc32c));
  EXPECT_EQ(report["faults"][1]["file"], ShardName(0, 1));
  EXPECT_EQ(report["faults"][1]["buffer"], "parameters.norm.weight");
  EXPECT_EQ(
      report["faults"][1]["expected"],
      absl::StrFormat("checksum %08x", manifest->Find("parameters.norm.weight")->checksums.at(0)));
  EXPECT_NE(report["faults"][1]["found"], report["faults"][1]["expected"]);

  fs::resize_file(shard, 1000);
  EXPECT_THAT(Ckpt({"verify", copy}).output, HasSubstr("bytes expected, 1000 bytes found"));
  fs::remove(shard);
  EXPECT_THAT(Ckpt({"verify", copy}).output, HasSubstr("No such file or directory found"));
  Flip(copy + "/manifest.json", 40);
  const Outcome manifest_damaged = Ckpt({"verify", copy});
  EXPECT_EQ(manifest_damaged.status, 1);
  EXPECT_THAT(manifest_damaged.output, HasSubstr("manifest.json"));
}

TEST_F(CkptRunTest, ARunInPlaceOfACheckpointIsAnErrorThatNamesOne) {
  for (const std::string command : {"verify", "convert"}) {
    std::vector<std::string> words = {command, RunDir("one")};
    if (command == "convert") words = Join(words, {"--to", "huggingface", RunDir("nowhere")});
    const Outcome outcome = Ckpt(words);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("name one of them, as ", Step("one", 4))));
  }
  const Outcome nothing = Ckpt({"verify", root_.string()});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_THAT(nothing.output, HasSubstr("is not a checkpoint"));
}

TEST_F(CkptRunTest, DiffMeasuresWhatAStepChanged) {
  EXPECT_EQ(CkptJson({"diff", Step("one", 4), Step("one", 4)})["equal"], true);
  const json changed = CkptJson({"diff", Step("one", 2), Step("one", 4)}, 1);
  EXPECT_EQ(changed["equal"], false);
  for (const json& row : changed["differences"]) {
    EXPECT_EQ(row["is"], "values") << row;
    EXPECT_GT(row["differing"], 0) << row;
    EXPECT_GT(row["max_absolute"], 0) << row;
    EXPECT_LE(row["max_relative"], 2) << row;
  }
  const Outcome other = Run(1, "wider", Join(kShort, {"model.hidden=32", "optimizer.name=sgd"}));
  ASSERT_EQ(other.status, 0) << other.output;
  const json shapes = CkptJson({"diff", Step("one", 4), Step("wider", 4)}, 1);
  std::set<std::string> kinds;
  for (const json& row : shapes["differences"]) {
    kinds.insert(row["is"]);
    if (row["name"] == "parameters.norm.weight") {
      EXPECT_EQ(row["first"], "[64]");
      EXPECT_EQ(row["second"], "[32]");
    }
  }
  EXPECT_EQ(kinds.count("shape"), 1U);
  EXPECT_EQ(kinds.count("only in the first"), 1U);
}

}  // namespace
}  // namespace weft::train
