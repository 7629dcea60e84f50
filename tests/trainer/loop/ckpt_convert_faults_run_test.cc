// Conversions by weft-ckpt that cannot be: each is refused by name and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "tests/trainer/loop/ckpt_run.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CkptRunTest, TargetsThatHoldSomethingAreRefusedAndLeft) {
  const std::string full = RunDir("full");
  fs::create_directories(full);
  std::ofstream(full + "/mine") << "mine";
  const Outcome refused = ToHuggingFace(Step("one", 4), full);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, HasSubstr(full + " holds files already"));
  EXPECT_EQ(std::distance(fs::directory_iterator(full), {}), 1);
  const Outcome file = ToHuggingFace(Step("one", 4), full + "/mine");
  EXPECT_EQ(file.status, 1);
  EXPECT_THAT(file.output, HasSubstr("exists and is no folder"));
  EXPECT_THAT(FromHuggingFace(RunDir("one") + "/model", "full", kShort).output,
              HasSubstr("holds files already"));
  // An empty one is taken.
  fs::create_directories(RunDir("empty"));
  EXPECT_EQ(ToHuggingFace(Step("one", 4), RunDir("empty") + "/").status, 0);
  EXPECT_THAT(Entries(".full"), IsEmpty());
  EXPECT_THAT(Entries(".empty"), IsEmpty());
}

// A damaged checkpoint tells whether it was read before.
TEST_F(CkptRunTest, WhatNoRenameCanFillIsRefusedBeforeTheCheckpointIsRead) {
  const std::string damaged = CopyOfStep("place_damaged");
  Flip(damaged + "/" + ShardName(0, 1), 5000);
  fs::create_symlink(RunDir("place_later"), RunDir("place_dangling"));
  const Outcome dangling = ToHuggingFace(damaged, RunDir("place_dangling"));
  EXPECT_EQ(dangling.status, 1);
  EXPECT_THAT(dangling.output, HasSubstr("place_dangling is a link to " + RunDir("place_later")));
  const Outcome above = ToHuggingFace(damaged, RunDir("place_none") + "/..");
  EXPECT_EQ(above.status, 1);
  EXPECT_THAT(above.output, HasSubstr("place_none/.. ends with '..'; name the new folder itself"));
  EXPECT_FALSE(fs::exists(RunDir("place_none")));
  EXPECT_THAT(Entries(".place"), IsEmpty());
}

TEST_F(CkptRunTest, TheRootOfAFileSystemIsRefusedBeforeTheCheckpointIsRead) {
  const auto device = [](const fs::path& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 ? info.st_dev : 0;
  };
  std::string root;
  std::ifstream mounts("/proc/self/mounts");
  for (std::string source, place, rest; mounts >> source >> place && std::getline(mounts, rest);) {
    std::error_code error;
    if (!root.empty() || place == "/" || !fs::is_directory(place, error)) continue;
    const bool is_empty = fs::is_empty(place, error);
    if (is_empty && !error && device(place) != device(fs::path(place).parent_path())) root = place;
  }
  if (root.empty()) GTEST_SKIP() << "no file system that is mounted here is empty";
  const std::string damaged = CopyOfStep("root_damaged");
  Flip(damaged + "/" + ShardName(0, 1), 5000);
  const Outcome outcome = ToHuggingFace(damaged, root);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr(root + " is the root of a file system"));
}

TEST_F(CkptRunTest, ALinkToAnEmptyFolderIsFilled) {
  fs::create_directories(RunDir("linked_folder"));
  fs::create_directory_symlink(RunDir("linked_folder"), RunDir("link"));
  const Outcome outcome = ToHuggingFace(Step("one", 4), RunDir("link"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(fs::is_symlink(RunDir("link")));
  EXPECT_TRUE(fs::exists(RunDir("linked_folder") + "/model.safetensors"));
}

// Written past a limit of the system, a process is killed within its write; the limits lie within
// the shard, the header, and the files behind.
TEST_F(CkptRunTest, AKilledConversionLeavesNothingUnderTheTargetsName) {
  const std::string program = Environment("WEFT_BIN") + "/weft-ckpt convert ";
  const std::string model = RunDir("one") + "/model";
  std::string from = absl::StrCat(model, " --from huggingface ", RunDir("killed_run"));
  for (const std::string& word : ConfigOf(kShort)) absl::StrAppend(&from, " ", word);
  const std::string to = absl::StrCat(Step("one", 4), " --to huggingface ", RunDir("killed_model"));
  for (const std::string& words : {to, from}) {
    int killed = 0;
    for (const int blocks : {0, 1, 100, 400}) {
      for (const bool ignored : {false, true}) {
        const std::string command = absl::StrCat(ignored ? "trap '' XFSZ; " : "", "ulimit -c 0; ",
                                                 "ulimit -f ", blocks, "; exec ", program, words);
        // The program's own words go to a pipe: a file would have the same limit.
        Process process({"/bin/sh", "-c", absl::StrCat("( ", command, " ) 2>&1 | cat; exit 7")},
                        RunDir("killed.out"));
        const Outcome outcome = process.Wait();
        EXPECT_EQ(outcome.status, 7);
        EXPECT_FALSE(fs::exists(RunDir("killed_model"))) << outcome.output;
        EXPECT_FALSE(fs::exists(RunDir("killed_run"))) << outcome.output;
        if (ignored) {
          // A write that fails is named, and what was written is gone.
          EXPECT_THAT(outcome.output, HasSubstr("File too large"));
        } else {
          ++killed;
        }
        for (const std::string& left : Entries(".killed")) {
          EXPECT_FALSE(ignored) << left;
          fs::remove_all(root_ / left);
        }
      }
    }
    EXPECT_EQ(killed, 4);
  }
  EXPECT_EQ(ToHuggingFace(Step("one", 4), RunDir("killed_model")).status, 0);
  EXPECT_EQ(FromHuggingFace(model, "killed_run", kShort).status, 0);
}

TEST_F(CkptRunTest, ModelsThatDoNotFitTheConfigAreNamed) {
  const std::string good = RunDir("one") + "/model";
  const Outcome hidden = FromHuggingFace(good, "misfit", Join(kShort, {"model.layers=3"}));
  EXPECT_EQ(hidden.status, 1);
  EXPECT_THAT(hidden.output, HasSubstr("n_layer is 2, but the config's model has 3"));
  EXPECT_THAT(FromHuggingFace(good, "misfit", Join(kShort, {"model.style=llama"})).output,
              HasSubstr("model_type is \"gpt2\", but the config's model is a 'llama'"));
  EXPECT_THAT(FromHuggingFace(good, "misfit", Join(kShort, {"model.bias=false"})).output,
              HasSubstr("is not zero, but the config's model has no such bias"));

  const std::string bad = RunDir("bad_model");
  auto restore = [&] {
    fs::remove_all(bad);
    fs::copy(good, bad);
  };
  auto edit = [&](const std::string& from, const std::string& to) {
    restore();
    const std::string path = bad + "/config.json";
    const std::string text = Bytes(path);
    ASSERT_THAT(text, HasSubstr(from));
    ASSERT_TRUE(WriteFileAtomically(path, absl::StrReplaceAll(text, {{from, to}})).ok());
  };
  auto message = [&] {
    const Outcome outcome = FromHuggingFace(bad, "misfit", kShort);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_FALSE(fs::exists(RunDir("misfit")));
    return outcome.output;
  };
  edit("\"vocab_size\": 320", "\"vocab_size\": 321");
  EXPECT_THAT(message(), HasSubstr("vocab_size is 321, but the config's model has 320"));
  edit("\"gelu_new\"", "\"relu\"");
  EXPECT_THAT(message(), HasSubstr("activation_function is \"relu\""));
  edit("\"tie_word_embeddings\"", "\"other\"");  // its default is ours
  ASSERT_EQ(FromHuggingFace(bad, "fits", kShort).status, 0);
  edit("\"n_layer\"", "\"other\"");
  EXPECT_THAT(message(), HasSubstr("n_layer is not given"));
  edit("{", "[");
  EXPECT_THAT(message(), HasSubstr("is not a JSON object"));

  // Tensors: renamed within the header, whose length stays.
  auto rename = [&](const std::string& from, const std::string& to) {
    restore();
    const std::string path = bad + "/model.safetensors";
    ASSERT_TRUE(WriteFileAtomically(path, absl::StrReplaceAll(Bytes(path), {{from, to}})).ok());
  };
  rename("\"ln_f.bias\"", "\"ln_f.bios\"");
  EXPECT_THAT(message(), HasSubstr("has no tensor 'ln_f.bias', which the config's model has as"));
  rename("[64,192]", "[192,64]");
  EXPECT_THAT(message(), AllOf(HasSubstr("c_attn.weight' has the shape [192, 64]"),
                               HasSubstr("the config's model has [64, 192]")));
  rename("[320,64],", "[64,320],");
  EXPECT_THAT(message(), HasSubstr("wte.weight' has the shape"));
  restore();
  fs::resize_file(bad + "/model.safetensors", 5000);
  EXPECT_THAT(message(), HasSubstr("the tensors take 490496 bytes, but the file has"));
  fs::remove(bad + "/model.safetensors");
  EXPECT_THAT(message(), HasSubstr("model.safetensors: No such file"));
  restore();
  std::ofstream(bad + "/model.safetensors.index.json")
      << R"({"weight_map": {"wte.weight": "../secret"}})";
  EXPECT_THAT(message(), HasSubstr("no file name"));
  restore();
  std::ofstream(bad + "/tokenizer.model") << "another";
  EXPECT_THAT(message(), AllOf(HasSubstr("is another tokenizer than the data's"),
                               HasSubstr("weft-data prepare --tokenizer")));
}

TEST_F(CkptRunTest, CheckpointsThatCannotBeConvertedSayWhy) {
  const std::string target = RunDir("unconverted");
  const std::string copy = CopyOfStep("old_version");
  const std::string path = copy + "/manifest.json";
  auto manifest = nlohmann::ordered_json::parse(Bytes(path));
  auto write = [&] {
    manifest.erase("crc32c");
    manifest["crc32c"] = absl::StrFormat("%08x", Crc32c(manifest.dump()));
    ASSERT_TRUE(WriteFileAtomically(path, manifest.dump(1)).ok());
  };
  // A tab may stand in a text as it is: the model is read, but the data is not there.
  for (auto& state : manifest["states"]) {
    if (state["name"] != "identity") continue;
    const std::string identity = absl::HexStringToBytes(state["hex"].get<std::string>());
    state["hex"] = absl::BytesToHexString(
        absl::StrReplaceAll(identity, {{"data.prefix = \"", "data.prefix = \"no\tdata"}}));
  }
  write();
  EXPECT_THAT(ToHuggingFace(copy, target).output, HasSubstr("the run's data has the tokenizer"));
  for (auto& state : manifest["states"]) {
    if (state["name"] == "identity") state["name"] = "other";
  }
  write();
  EXPECT_THAT(ToHuggingFace(copy, target).output, HasSubstr("no state 'identity'"));
  manifest["version"] = 2;
  for (auto& buffer : manifest["buffers"]) {
    buffer.erase("shape");
    buffer.erase("checksums");
  }
  write();
  const Outcome old = ToHuggingFace(copy, target);
  EXPECT_EQ(old.status, 1);
  EXPECT_THAT(old.output, AllOf(HasSubstr("a manifest of version 2, which holds no shapes"),
                                HasSubstr("resume its run")));
  // Everything else reads it.
  EXPECT_EQ(CkptJson({"diff", copy, Step("one", 4)})["equal"], true);
  EXPECT_EQ(CkptJson({"verify", copy})["version"], 2);

  const Outcome tokenizer =
      ToHuggingFace(Step("one", 4), target, {"--tokenizer", RunDir("one") + "/model/config.json"});
  EXPECT_EQ(tokenizer.status, 1);
  EXPECT_THAT(tokenizer.output, HasSubstr("config.json"));
  const std::string damaged = CopyOfStep("unconverted_damaged");
  Flip(damaged + "/" + ShardName(0, 1), 5000);
  const Outcome outcome = ToHuggingFace(damaged, target);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("is damaged: its checksum is"));
  EXPECT_FALSE(fs::exists(target));
  EXPECT_THAT(Entries(".unconverted"), IsEmpty());
}

}  // namespace
}  // namespace weft::train
