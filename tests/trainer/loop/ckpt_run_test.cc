// weft-ckpt on checkpoints that weft-train wrote, over several layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::vector<std::string> kShort = {"train.steps=4",        "checkpoint.every=2",
                                         "sample.tokens=0",      "train.peak_tflops=1",
                                         "validation.batches=1", "optimizer.warmup_steps=1"};

std::vector<std::string> Join(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void Flip(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 0x40);
  file.seekp(offset);
  file.put(byte);
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

struct Style {
  const char* name;
  int ranks;
  std::vector<std::string> model;   // and what the converted run has, too
  std::vector<std::string> layout;  // of the run that wrote the checkpoint
};

class CkptStyleTest : public CkptRunTest, public ::testing::WithParamInterface<Style> {};

// Trained over a layout, converted to Hugging Face and back: the same bytes, and what weft-train
// itself exports.
TEST_P(CkptStyleTest, RoundTripKeepsEveryBit) {
  const Style& style = GetParam();
  const std::string run = absl::StrCat("style_", style.name);
  const Outcome trained = Run(style.ranks, run, Join(Join(kShort, style.model), style.layout));
  ASSERT_EQ(trained.status, 0) << trained.output;
  const std::string model = RunDir(absl::StrCat(run, "_model"));
  const Outcome converted = ToHuggingFace(Step(run, 4), model);
  ASSERT_EQ(converted.status, 0) << converted.output;
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.model"}) {
    EXPECT_TRUE(Bytes(model + "/" + file) == Bytes(RunDir(run) + "/model/" + file)) << file;
  }
  const std::string back = absl::StrCat(run, "_back");
  const Outcome returned = FromHuggingFace(model, back, Join(kShort, style.model));
  ASSERT_EQ(returned.status, 0) << returned.output;
  EXPECT_EQ(CkptJson({"verify", Step(back, 0)})["whole"], true);
  const json diff = CkptJson({"diff", "--all", Step(back, 0), Step(run, 4)}, 1);
  int equal = 0;
  for (const json& row : diff["differences"]) {
    const bool is_parameter = row["name"].get<std::string>().rfind("parameters.", 0) == 0;
    EXPECT_EQ(row["is"], is_parameter ? "equal" : "only in the second") << row;
    equal += is_parameter ? 1 : 0;
  }
  EXPECT_GT(equal, 10);
}

INSTANTIATE_TEST_SUITE_P(
    Styles, CkptStyleTest,
    ::testing::Values(
        Style{"gpt2_zero3", 2, {}, {"parallel.zero=3"}},
        Style{"gpt2_no_bias", 1, {"model.bias=false", "model.tied=false"}, {}},
        Style{"neox", 1, {"model.style=neox"}, {}},
        Style{"llama_tensor2",
              2,
              {"model.style=llama", "model.kv_heads=2", "model.ffn=96"},
              {"parallel.tensor=2"}},
        Style{"mistral_pipeline2",
              2,
              {"model.style=llama", "model.window=8", "model.ffn=96"},
              {"parallel.pipeline=2"}},
        Style{"mixtral", 1, {"model.style=mixtral", "model.experts=4", "model.ffn=32"}, {}},
        Style{"ours", 1, {"model.activation=swiglu", "model.ffn=96"}, {}}),
    [](const auto& info) { return std::string(info.param.name); });

// From one layout to another by way of a file that knows none.
TEST_F(CkptRunTest, AConvertedCheckpointIsResumedOnAnyLayout) {
  const std::string model = RunDir("resumed_model");
  ASSERT_EQ(ToHuggingFace(Step("one", 4), model).status, 0);
  // With no learning rate a step changes no parameter.
  const std::vector<std::string> still = {"train.steps=2", "optimizer.learning_rate=0",
                                          "optimizer.min_learning_rate=0"};
  const std::vector<std::string> settings = Join(kShort, still);
  for (const auto& [name, ranks, layout] : {std::tuple<std::string, int, std::vector<std::string>>{
                                                "resumed_tensor", 2, {"parallel.tensor=2"}},
                                            std::tuple<std::string, int, std::vector<std::string>>{
                                                "resumed_zero", 2, {"parallel.zero=3"}}}) {
    ASSERT_EQ(FromHuggingFace(model, name, settings).status, 0);
    const Outcome resumed = Run(ranks, name, Join(Join(settings, layout), {"--resume"}));
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_THAT(resumed.output, AllOf(HasSubstr("has parameters alone"), HasSubstr("adamw"),
                                      HasSubstr("begin at zero")));
    EXPECT_THAT(resumed.output, HasSubstr("resumed after step 0"));
    const json diff = CkptJson({"diff", "--all", Step("one", 4), Step(name, 2)}, 1);
    for (const json& row : diff["differences"]) {
      if (row["name"].get<std::string>().rfind("parameters.", 0) == 0) {
        EXPECT_EQ(row["is"], "equal") << row;
      }
    }
  }
  // It goes on learning where the other stood, with the config that stands beside the checkpoint.
  ASSERT_EQ(FromHuggingFace(model, "learning", Join(kShort, {"train.steps=8"})).status, 0);
  const Outcome learning =
      Process({Environment("WEFT_BIN") + "/weft-train", RunDir("learning") + "/config.toml",
               "--run-dir", RunDir("learning"), "--resume"},
              RunDir("learning.out"))
          .Wait();
  ASSERT_EQ(learning.status, 0) << learning.output;
  const std::map<int, json> before = Metrics("one"), after = Metrics("learning");
  EXPECT_LT(after.at(1)["loss"].get<double>(), before.at(1)["loss"].get<double>() - 0.05);
}

TEST_F(CkptRunTest, NarrowTypesAreRoundedAndReadBack) {
  const std::string model = RunDir("narrow");
  ASSERT_EQ(ToHuggingFace(Step("one", 4), model, {"--dtype", "bfloat16"}).status, 0);
  auto file = SafetensorsFile::Open(model + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  for (const TensorInfo& tensor : file->tensors()) EXPECT_EQ(tensor.dtype, DType::kBF16);
  EXPECT_THAT(Bytes(model + "/config.json"), HasSubstr("\"bfloat16\""));
  ASSERT_EQ(FromHuggingFace(model, "narrow_back", kShort).status, 0);
  for (const json& row :
       CkptJson({"diff", Step("narrow_back", 0), Step("one", 4)}, 1)["differences"]) {
    if (row["is"] == "values") {
      EXPECT_LE(row["max_relative"], 1.0 / 256) << row;
    }
  }
}

TEST_F(CkptRunTest, NumbersBeyondFloat16AreNamedAndNotMadeInfinite) {
  const std::string model = RunDir("large_model"), file = model + "/model.safetensors";
  fs::copy(RunDir("one") + "/model", model);
  const float large = 70000;  // in the place of the file's last number
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-static_cast<std::streamoff>(sizeof(large)), std::ios::end);
  stream.write(reinterpret_cast<const char*>(&large), sizeof(large));
  stream.close();
  ASSERT_EQ(FromHuggingFace(model, "large", kShort).status, 0);
  const std::string narrow = RunDir("large_narrow");
  const Outcome refused = ToHuggingFace(Step("large", 0), narrow, {"--dtype", "float16"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("buffer parameters."),
                                    HasSubstr("is 70000, beyond float16, which ends at 65504")));
  EXPECT_FALSE(fs::exists(narrow));
  EXPECT_EQ(ToHuggingFace(Step("large", 0), narrow, {"--dtype", "bfloat16"}).status, 0);
}

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

// A Python with PyTorch, where there is one.
std::string TorchPython() {
  for (const std::string& python : {Environment("WEFT_TORCH_PYTHON"),
                                    Environment("HOME") + "/.cache/weft/torch-venv/bin/python",
                                    Environment("WEFT_SOURCE") + "/.deps/bench-venv/bin/python"}) {
    if (!python.empty() && fs::exists(python)) return python;
  }
  return "";
}

// The tensors of a file under other names, and some more.
void Rewrite(const std::string& path, const std::function<std::string(const std::string&)>& name,
             const std::vector<std::string>& copies_of_first = {}) {
  const std::string changed = path + ".changed";
  {
    auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<TensorSpec> specs;
    for (const TensorInfo& tensor : file->tensors()) {
      specs.push_back({name(tensor.name), tensor.dtype, tensor.shape});
    }
    const TensorInfo& first = file->tensors().front();
    for (const std::string& copy : copies_of_first) {
      specs.push_back({copy, first.dtype, first.shape});
    }
    auto writer = SafetensorsWriter::Create(changed, specs);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const TensorInfo& tensor : file->tensors()) {
      ASSERT_TRUE(writer->Append(file->Data(tensor)).ok());
    }
    for (size_t i = 0; i < copies_of_first.size(); ++i) {
      ASSERT_TRUE(writer->Append(file->Data(first)).ok());
    }
    ASSERT_TRUE(writer->Commit().ok());
  }
  fs::rename(changed, path);
}

// As other versions of the library have saved models: names with the part's own in front, the tied
// projection and constants beside the parameters, several files, rotary keys in an object.
TEST_F(CkptRunTest, FormsOfOtherVersionsAreReadAsTheSame) {
  const std::string model = RunDir("other_form");
  fs::copy(RunDir("one") + "/model", model);
  const std::string file = model + "/model.safetensors";
  Rewrite(file, [](const std::string& name) { return "transformer." + name; },
          {"lm_head.weight", "transformer.h.0.attn.bias"});
  ASSERT_EQ(FromHuggingFace(model, "other_back", kShort).status, 0);
  for (const json& row :
       CkptJson({"diff", Step("other_back", 0), Step("one", 4)}, 1)["differences"]) {
    EXPECT_EQ(row["is"], "only in the second") << row;
  }
  // The same in a file of another name.
  fs::rename(file, model + "/model-00001-of-00001.safetensors");
  std::ofstream(file + ".index.json")
      << R"({"weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors"}})";
  EXPECT_EQ(FromHuggingFace(model, "other_index", kShort).status, 0);
  // A tensor that would be lost, and an output projection that is not the embedding.
  fs::remove_all(model);
  fs::copy(RunDir("one") + "/model", model);
  Rewrite(file, [](const std::string& name) { return name; }, {"adapter.weight"});
  EXPECT_THAT(FromHuggingFace(model, "other_lost", kShort).output,
              HasSubstr("tensor 'adapter.weight' has no place in the config's model"));
  const Outcome untied = Run(1, "untied", Join(kShort, {"model.tied=false"}));
  ASSERT_EQ(untied.status, 0) << untied.output;
  const std::string untied_model = RunDir("untied") + "/model";
  const std::string text = Bytes(untied_model + "/config.json");
  ASSERT_TRUE(WriteFileAtomically(untied_model + "/config.json",
                                  absl::StrReplaceAll(text, {{"\"tie_word_embeddings\": false",
                                                              "\"tie_word_embeddings\": true"}}))
                  .ok());
  EXPECT_THAT(FromHuggingFace(untied_model, "other_untied", kShort).output,
              HasSubstr("'lm_head.weight' is not the same as the one before it"));

  const std::vector<std::string> llama =
      Join(kShort, {"model.style=llama", "model.ffn=96", "model.bias=false"});
  const Outcome trained = Run(1, "rotary", llama);
  ASSERT_EQ(trained.status, 0) << trained.output;
  const std::string path = RunDir("rotary") + "/model/config.json";
  json config = json::parse(Bytes(path));
  config.erase("rope_theta");
  config.erase("attention_bias");  // left out: false
  config["rope_parameters"] = {{"rope_theta", 10000}, {"rope_type", "default"}};
  ASSERT_TRUE(WriteFileAtomically(path, config.dump()).ok());
  const Outcome good = FromHuggingFace(RunDir("rotary") + "/model", "rotary_back", llama);
  EXPECT_EQ(good.status, 0) << good.output;
  config["rope_parameters"]["rope_theta"] = 500000;
  ASSERT_TRUE(WriteFileAtomically(path, config.dump()).ok());
  EXPECT_THAT(FromHuggingFace(RunDir("rotary") + "/model", "rotary_other", llama).output,
              HasSubstr("rope_theta is 500000, but the config's model has 10000"));
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 10000}};
  ASSERT_TRUE(WriteFileAtomically(path, config.dump()).ok());
  EXPECT_THAT(FromHuggingFace(RunDir("rotary") + "/model", "rotary_other", llama).output,
              HasSubstr("rope_scaling is {"));
}

// What the transformers library loads and saves again comes back to the bit.
TEST_F(CkptRunTest, TransformersLoadsAndSavesTheSameModel) {
  const std::string python = TorchPython();
  const std::string model = RunDir("one") + "/model", saved = RunDir("transformers_saved");
  const std::string script = absl::StrCat(
      "import sys\ntry:\n    import transformers, torch\nexcept ImportError:\n    sys.exit(77)\n",
      "model, info = transformers.AutoModelForCausalLM.from_pretrained('", model,
      "', output_loading_info=True, dtype=torch.float32)\n",
      "assert not any(info.values()), info\nmodel.save_pretrained('", saved, "')\n");
  const Outcome outcome = python.empty()
                              ? Outcome{77, ""}
                              : Process({python, "-c", script}, RunDir("transformers.out")).Wait();
  if (outcome.status == 77) {
    GTEST_SKIP() << "no Python with PyTorch and transformers: set WEFT_TORCH_PYTHON";
  }
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  ASSERT_EQ(FromHuggingFace(saved, "transformers_back", kShort).status, 0);
  for (const json& row :
       CkptJson({"diff", Step("transformers_back", 0), Step("one", 4)}, 1)["differences"]) {
    EXPECT_EQ(row["is"], "only in the second") << row;
  }
}

// All of the state: a run goes on from what came back as from what went.
TEST_F(CkptRunTest, TorchDistributedCheckpointKeepsEveryBitOfTheState) {
  const std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch: set WEFT_TORCH_PYTHON";
  const Outcome cut = Run(2, "cut", Join(kShort, {"parallel.tensor=2"}));
  ASSERT_EQ(cut.status, 0) << cut.output;
  const std::string folder = RunDir("dcp");
  const Outcome to = Ckpt({"convert", Step("cut", 2), "--to", "dcp", folder, "--python", python});
  ASSERT_EQ(to.status, 0) << to.output;
  EXPECT_TRUE(fs::exists(folder + "/.metadata"));
  EXPECT_FALSE(fs::exists(folder + "/exchange.safetensors"));
  const Outcome from =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("dcp_back"), "--python", python});
  ASSERT_EQ(from.status, 0) << from.output;
  EXPECT_EQ(CkptJson({"diff", Step("cut", 2), Step("dcp_back", 2)})["equal"], true);
  const Outcome resumed = Run(2, "dcp_back", Join(kShort, {"parallel.tensor=2", "--resume"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(CkptJson({"diff", Step("cut", 4), Step("dcp_back", 4)})["equal"], true);

  const Outcome nothing =
      Ckpt({"convert", RunDir("one"), "--from", "dcp", RunDir("dcp_never"), "--python", python});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_THAT(nothing.output, HasSubstr("FileNotFoundError"));
  EXPECT_FALSE(fs::exists(RunDir("dcp_never")));
}

// Two processes with FSDP2 and AdamW: "save" takes the tensors of a safetensors file as parameters,
// does two steps, and saves model and optimizer; "load" reads such a folder into other shards. Both
// leave the whole tensors in a safetensors file.
constexpr char kFsdpProgram[] = R"python(
import datetime, json, os, pathlib, struct, sys, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


def read(path):
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:8 + length])
    entries.pop("__metadata__", None)
    return {name: torch.frombuffer(bytearray(data[8 + length + e["data_offsets"][0]:
                                                  8 + length + e["data_offsets"][1]]),
                                   dtype=torch.float32).reshape(e["shape"])
            for name, e in entries.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def build(tensors):
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        at = root
        for word in path:
            if not hasattr(at, word):
                at.add_module(word, torch.nn.Module())
            at = getattr(at, word)
        at.register_parameter(last, torch.nn.Parameter(tensor.clone()))
    return root


def job(rank, what, source, folder, whole, rendezvous):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2,
                            timeout=datetime.timedelta(minutes=3))
    tensors = read(source)
    if what == "load":
        tensors = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    model = build(tensors)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.01 * (number % 7 + 1 + step))
        optimizer.step()
    states, optim = get_state_dict(model, optimizer)
    both = {"model": states, "optim": optim}
    if what == "save":
        dcp.save(both, checkpoint_id=folder)
    else:
        dcp.load(both, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=True))
    out = {name: tensor.full_tensor() for name, tensor in states.items()}
    for name, state in optim["state"].items():
        for which in ("exp_avg", "exp_avg_sq"):
            out[f"{which}/{name}"] = state[which].full_tensor()
        assert state["step"].item() == 2, state["step"]
    if rank == 0:
        write(whole, out)
    # Gloo takes a peer that has ended for a lost one, in a barrier too: both are through it before
    # either ends.
    dist.barrier()
    pathlib.Path(f"{rendezvous}.{rank}").touch()
    end = time.monotonic() + 60
    while not pathlib.Path(f"{rendezvous}.{1 - rank}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.spawn(job, args=tuple(sys.argv[1:]), nprocs=2)
)python";

// A checkpoint that FSDP2 wrote becomes a run that goes on, and goes back, with AdamW's states.
TEST_F(CkptRunTest, WhatFsdpSavesGoesOnAndComesBackToTheBit) {
  const std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch: set WEFT_TORCH_PYTHON";
  const std::vector<std::string> llama =
      Join(kShort, {"model.style=llama", "train.precision=fp32", "optimizer.name=adamw"});
  ASSERT_EQ(Run(1, "llama_model", Join(llama, {"train.steps=1"})).status, 0);
  const std::string script = RunDir("fsdp.py");
  std::ofstream(script) << kFsdpProgram;
  const auto fsdp = [&](const std::string& what, const std::string& folder,
                        const std::string& whole) {
    const std::string rendezvous = RunDir("fsdp_" + what);
    return Process({python, "-W", "ignore", script, what,
                    RunDir("llama_model") + "/model/model.safetensors", folder, whole, rendezvous},
                   rendezvous + ".out")
        .Wait();
  };
  const std::string folder = RunDir("fsdp_dcp"), whole = RunDir("fsdp_whole.safetensors");
  const Outcome saved = fsdp("save", folder, whole);
  if (saved.output.find("ImportError") != std::string::npos) {
    GTEST_SKIP() << "this PyTorch has no FSDP2";
  }
  ASSERT_EQ(saved.status, 0) << saved.output;

  const Outcome from =
      Ckpt(Join({"convert", folder, "--from", "dcp", RunDir("from_fsdp"), "--python", python},
                ConfigOf(llama)));
  ASSERT_EQ(from.status, 0) << from.output;
  EXPECT_THAT(from.output, HasSubstr("The optimizer's states are those of step 2"));
  const Outcome resumed =
      Run(2, "from_fsdp", Join(llama, {"train.steps=3", "parallel.tensor=2", "--resume"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output,
              AllOf(HasSubstr("resumed after step 2"), Not(HasSubstr("begin at zero"))));

  const std::string back = RunDir("back_dcp"), back_whole = RunDir("back_whole.safetensors");
  const Outcome to = Ckpt({"convert", Step("from_fsdp", 2), "--to", "dcp", back, "--names",
                           "huggingface", "--python", python});
  ASSERT_EQ(to.status, 0) << to.output;
  const Outcome loaded = fsdp("load", back, back_whole);
  ASSERT_EQ(loaded.status, 0) << loaded.output;
  EXPECT_TRUE(*ReadFile(whole) == *ReadFile(back_whole));

  // Without a config nobody knows what run it is to be; with another model it is refused by name.
  const Outcome unnamed =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("unnamed"), "--python", python});
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_THAT(unnamed.output, HasSubstr("--config says what run it is to be"));
  const Outcome other =
      Ckpt(Join({"convert", folder, "--from", "dcp", RunDir("unnamed"), "--python", python},
                ConfigOf(Join(llama, {"model.layers=3"}))));
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.output, HasSubstr(".layers.2."));
}

// fp16 leaves out the steps in which its loss scale is too large; a run without steps makes none.
// The Python is one that keeps what it is called with.
TEST_F(CkptRunTest, AdamsStepsForPyTorchAreThoseThatUpdated) {
  const Outcome trained = Run(1, "left_out",
                              Join(kShort, {"train.precision=fp16", "train.loss_scale=1e6",
                                            "optimizer.name=adamw", "train.steps=12"}));
  ASSERT_EQ(trained.status, 0) << trained.output;
  const size_t updates = Metrics("left_out").size();
  ASSERT_GT(updates, 0U);
  ASSERT_LT(updates, 12U);
  const Outcome none = Run(1, "no_steps", Join(kShort, {"train.steps=0"}));
  ASSERT_EQ(none.status, 0) << none.output;
  const std::string python = RunDir("keeping_python"), called = RunDir("called");
  std::ofstream(python) << "#!/bin/sh\nfor word; do :; done\necho $word > " << called << "\n";
  fs::permissions(python, fs::perms::owner_all);
  for (const auto& [run, step, expected] :
       {std::tuple("left_out", 12, updates), std::tuple("no_steps", 0, size_t{0})}) {
    const Outcome to =
        Ckpt({"convert", Step(run, step), "--to", "dcp", absl::StrCat(RunDir(run), "_dcp"),
              "--names", "huggingface", "--python", python});
    ASSERT_EQ(to.status, 0) << to.output;
    EXPECT_EQ(*ReadFile(called), absl::StrCat(expected, "\n"));
  }
}

// Its .metadata is a pickle of os.system("touch ..."): the reader runs nothing of it. Nor does it
// give attributes of what the format knows, beyond what an enumeration of it has.
TEST_F(CkptRunTest, APickleThatAsksForMoreThanTheFormatIsRefusedByName) {
  const std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch: set WEFT_TORCH_PYTHON";
  const std::string folder = RunDir("dcp_strange"), touched = RunDir("touched");
  fs::create_directories(folder);
  std::ofstream(folder + "/.metadata") << "cposix\nsystem\n(S'touch " << touched << "'\ntR.";
  const Outcome outcome =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("dcp_refused"), "--python", python});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("asks for posix.system, which is no part of the format"));
  EXPECT_FALSE(fs::exists(touched));
  EXPECT_FALSE(fs::exists(RunDir("dcp_refused")));
  std::ofstream(folder + "/.metadata")
      << "cbuiltins\ngetattr\n(ccollections\nOrderedDict\nS'fromkeys'\ntR.";
  const Outcome attribute =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("dcp_refused"), "--python", python});
  EXPECT_EQ(attribute.status, 1);
  EXPECT_THAT(attribute.output, HasSubstr("asks for builtins.getattr of <class "
                                          "'collections.OrderedDict'>, which is no part"));
}

TEST_F(CkptRunTest, APythonWithoutPyTorchIsNamed) {
  const std::string target = RunDir("dcp_without");
  const Outcome none =
      Ckpt({"convert", Step("one", 4), "--to", "dcp", target, "--python", "/nonexistent/python"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.output, HasSubstr("there is no /nonexistent/python; --python names another"));
  // One that sees no package but its own.
  const std::string bare = RunDir("bare_python");
  std::ofstream(bare) << "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n";
  fs::permissions(bare, fs::perms::owner_all);
  const Outcome without =
      Ckpt({"convert", Step("one", 4), "--to", "dcp", target, "--python", bare});
  EXPECT_EQ(without.status, 1);
  EXPECT_THAT(without.output, HasSubstr("has no PyTorch"));
  EXPECT_FALSE(fs::exists(target));
  EXPECT_THAT(Entries(".dcp_without"), IsEmpty());
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
