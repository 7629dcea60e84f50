// weft-ckpt convert to and from Hugging Face's format, of runs over several layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/trainer/loop/ckpt_run.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace weft::train
