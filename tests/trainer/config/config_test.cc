#include "trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "trainer/resume_identity.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteConfig(const std::string& text) {
  std::string path = ::testing::TempDir() + "weft_config_test.toml";
  std::ofstream(path) << text;
  return path;
}

std::string ErrorOf(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto config = LoadTrainConfig(WriteConfig(text), overrides);
  return config.ok() ? "no error" : std::string(config.status().message());
}

TEST(TrainConfigTest, ReadsFileAndOverridesInThisOrder) {
  auto config = LoadTrainConfig(
      WriteConfig("[train]\nsteps = 7\nglobal_batch = 12\n[data]\nprefix = \"x\"\n"
                  "[parallel]\nbucket_bytes = \"1MiB\"\n[optimizer]\nlearning_rate = 3e-4\n"
                  "min_learning_rate = 0\n"),
      {"train.steps=9", "model.block=parallel"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->steps, 9);
  EXPECT_EQ(config->global_batch, 12);
  EXPECT_EQ(config->bucket_bytes, MiB(1));
  EXPECT_DOUBLE_EQ(config->optimizer.learning_rate, 3e-4);
  EXPECT_EQ(config->model.block, BlockKind::kParallel);
  EXPECT_EQ(config->optimizer.decay_steps, 9);
}

TEST(TrainConfigTest, GraphsAreOffUntilAskedFor) {
  const std::string text = "[data]\nprefix = \"x\"\n";
  EXPECT_EQ(LoadTrainConfig(WriteConfig(text), {})->graphs, GraphUse::kOff);
  EXPECT_EQ(LoadTrainConfig(WriteConfig(text), {"train.graphs=auto"})->graphs, GraphUse::kAuto);
}

TEST(TrainConfigTest, APresetGivesTheKeysOfTheModelThatAreNotGivenThemselves) {
  auto config = LoadTrainConfig(
      WriteConfig("[model]\nhidden = 96\npreset = \"llama-160m\"\n[data]\nprefix = \"x\"\n"),
      {"model.layers=2"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.layers, 2);
  EXPECT_EQ(config->model.hidden, 96);
  EXPECT_EQ(config->model.ffn, 3072);
  EXPECT_EQ(config->model.position, PositionKind::kRotary);
  EXPECT_EQ(config->model.norm, NormKind::kRmsNorm);
  EXPECT_FALSE(config->model.tied);
  // What a run writes down reads back the same, and is that of a run whose keys are all given.
  auto again = LoadTrainConfig(WriteConfig(config->text), {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ResumeIdentity(*again), ResumeIdentity(*config));
  EXPECT_EQ(again->text, config->text);
}

TEST(TrainConfigTest, AStyleGivesTheArchitectureAndNoSizes) {
  auto config = LoadTrainConfig(
      WriteConfig("[model]\nstyle = \"llama\"\nheads = 8\nkv_heads = 2\nlayers = 6\nwindow = 16\n"
                  "window_layers = \"0-1,4\"\n[data]\nprefix = \"x\"\n"),
      {"model.tied=true"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.hidden, 256);
  EXPECT_EQ(config->model.norm, NormKind::kRmsNorm);
  EXPECT_EQ(config->model.activation, ActivationKind::kSwiglu);
  EXPECT_TRUE(config->model.tied);
  EXPECT_EQ(config->model.KvHeads(), 2);
  EXPECT_EQ(config->model.KvHidden(), 64);
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < 6; ++layer) windows.push_back(config->model.WindowOf(layer));
  EXPECT_EQ(windows, (std::vector<int64_t>{16, 16, 0, 0, 16, 0}));
  auto again = LoadTrainConfig(WriteConfig(config->text), {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->text, config->text);
}

TEST(TrainConfigTest, AttentionThatCannotBeIsRefusedByName) {
  const std::string data = "[data]\nprefix = \"x\"\n";
  EXPECT_THAT(ErrorOf(data, {"model.heads=4", "model.kv_heads=3"}),
              HasSubstr("model.kv_heads = 3: must divide model.heads = 4"));
  EXPECT_THAT(ErrorOf(data, {"model.layers=4", "model.window_layers=2-4"}),
              HasSubstr("'2-4' is not among the layers 0 to 3"));
  EXPECT_THAT(ErrorOf(data, {"model.window_layers=most"}), HasSubstr("'most' is no layer"));
  EXPECT_THAT(ErrorOf(data, {"model.rotary_scaling=linear"}),
              HasSubstr("needs model.position = rotary"));
}

TEST(TrainConfigTest, OverlapIsGivenByAxis) {
  const std::string data = "[data]\nprefix = \"x\"\n";
  auto axes = [&](const std::string& text) {
    auto config = LoadTrainConfig(WriteConfig(data), {"parallel.overlap=" + text});
    EXPECT_TRUE(config.ok()) << config.status();
    const OverlapAxes& overlap = config->overlap;
    return std::vector<bool>{overlap.data, overlap.tensor, overlap.context, overlap.expert};
  };
  EXPECT_EQ(axes("all"), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(axes("none"), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(axes("tensor,expert"), (std::vector<bool>{false, true, false, true}));
  EXPECT_THAT(ErrorOf(data, {"parallel.overlap=data,pipeline"}),
              HasSubstr("parallel.overlap = data,pipeline: 'pipeline' is no axis; all, none, or "));
}

TEST(TrainConfigTest, EveryAllowedValueOfGatheredRowsIsRead) {
  const std::string data = "[data]\nprefix = \"x\"\n";
  for (const SettingRow& row : TrainSettings()) {
    if (row.name == "parallel.tensor_gathered") {
      EXPECT_EQ(row.allowed, absl::StrJoin(kGatheredRowsNames, "|"));
    }
  }
  const auto read = [&](absl::string_view name) {
    const auto config =
        LoadTrainConfig(WriteConfig(data), {absl::StrCat("parallel.tensor_gathered=", name)});
    EXPECT_TRUE(config.ok()) << config.status();
    return config->tensor_gathered;
  };
  EXPECT_EQ(read("auto"), GatheredRows::kAuto);
  EXPECT_EQ(read("again"), GatheredRows::kAgain);
  EXPECT_EQ(read("keep"), GatheredRows::kKeep);
  EXPECT_EQ(NameOf(GatheredRows::kKeep), "keep");
  EXPECT_EQ(LoadTrainConfig(WriteConfig(data), {})->tensor_gathered, GatheredRows::kAuto);
}

TEST(TrainConfigTest, EveryPresetIsAModelToTrain) {
  for (const topology::ModelPreset& preset : topology::ModelPresets()) {
    auto config =
        LoadTrainConfig("", {absl::StrCat("model.preset=", preset.name), "data.prefix=x"});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->model.layers, preset.shape.layers);
    EXPECT_EQ(config->model.AttentionElements(), preset.shape.AttentionElements());
    EXPECT_EQ(config->model.FeedForwardElements(), preset.shape.FeedForwardElements());
  }
  EXPECT_THAT(ErrorOf("[model]\npreset = \"gpt-5\"\n"), HasSubstr("gpt2-124m, llama-160m"));
}

TEST(TrainConfigTest, UnknownKeyNamesFileLineAndTheNearestKey) {
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n\n[train]\nstep = 7\n"),
              AllOf(HasSubstr("weft_config_test.toml:5"), HasSubstr("train.step"),
                    HasSubstr("did you mean train.steps?")));
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n", {"modle.layers=3"}),
              AllOf(HasSubstr("--set"), HasSubstr("did you mean model.layers?")));
}

TEST(TrainConfigTest, BadValueNamesFileLineAndWhatIsAllowed) {
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n[model]\nlayers = 0\n"),
              AllOf(HasSubstr("weft_config_test.toml:4"), HasSubstr("1..1024")));
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n[model]\nnorm = \"batch\"\n"),
              AllOf(HasSubstr(":4"), HasSubstr("layernorm, rmsnorm")));
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n[model]\nlayers = [1, 2]\n"),
              AllOf(HasSubstr(":4"), HasSubstr("model.layers")));
  EXPECT_THAT(ErrorOf("[train\nsteps = 1\n"), HasSubstr("not valid TOML"));
  EXPECT_THAT(std::string(LoadTrainConfig("/nowhere/x.toml", {}).status().message()),
              HasSubstr("/nowhere/x.toml"));
}

TEST(TrainConfigTest, ContradictionsAreErrors) {
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n[model]\nhidden = 100\nheads = 3\n"),
              AllOf(HasSubstr(":4"), HasSubstr("multiple of model.heads = 3")));
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n", {"train.micro_batch=99"}),
              HasSubstr("train.global_batch"));
  const std::string data = "[data]\nprefix = \"x\"\n";
  for (const char* device : {"cuda", "cpu-aten"}) {
    const std::string on = absl::StrCat("train.device=", device);
    EXPECT_THAT(ErrorOf(data, {on, "train.gemm=onednn"}),
                HasSubstr("train.gemm = onednn: of train.device = cpu alone"));
    EXPECT_THAT(ErrorOf(data, {on, "train.attention=weft"}),
                HasSubstr("train.attention = weft: of train.device = cpu alone"));
    EXPECT_EQ(ErrorOf(data, {on, "train.gemm=aten", "train.attention=aten"}), "no error");
    EXPECT_EQ(ErrorOf(data, {on, "train.precision=bf16", "train.master_weights=false"}),
              "no error");
  }
  for (const auto& [schedule, chunks, right] :
       {std::tuple{"1f1b", "2", "1 chunk"}, std::tuple{"zb-h1", "3", "1 chunk"},
        std::tuple{"eager-1f1b", "2", "1 chunk"}, std::tuple{"zb-v", "3", "2 chunks"},
        std::tuple{"interleaved", "1", "2 or more chunks"}}) {
    EXPECT_THAT(ErrorOf(data, {absl::StrCat("parallel.schedule=", schedule),
                               absl::StrCat("parallel.chunks=", chunks)}),
                AllOf(HasSubstr(absl::StrCat("parallel.chunks = ", chunks, ": ")),
                      HasSubstr(absl::StrCat(schedule, " has ", right))));
  }
  const absl::Status beside = LoadTrainConfig("", {"model.preset=gpt-13b"}, "tiny").status();
  EXPECT_THAT(std::string(beside.message()),
              AllOf(HasSubstr("--set: model.preset = gpt-13b"), HasSubstr("--preset tiny has")));
}

TEST(TrainConfigTest, WrittenTextReadsBackTheSame) {
  auto config = LoadTrainConfig("", {"data.prefix=a\"b\\c", "optimizer.learning_rate=0.00037",
                                     "sample.prompt=x|y\r\n\x1b\tz"});
  ASSERT_TRUE(config.ok()) << config.status();
  auto again = LoadTrainConfig(WriteConfig(config->text), {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->text, config->text);
  EXPECT_EQ(again->data.prefixes, std::vector<std::string>{"a\"b\\c"});
  EXPECT_EQ(again->sample_prompt, "x|y\r\n\x1b\tz");
  EXPECT_EQ(again->optimizer.learning_rate, 0.00037);
}

TEST(TrainConfigTest, IdentityIsWhatAResumedRunMustShare) {
  auto before = LoadTrainConfig("", {"data.prefix=x"});
  auto longer = LoadTrainConfig("", {"data.prefix=x", "train.steps=5", "checkpoint.every=1"});
  auto wider = LoadTrainConfig("", {"data.prefix=x", "model.hidden=512"});
  ASSERT_TRUE(before.ok() && longer.ok() && wider.ok());
  EXPECT_EQ(DescribeDifference(ResumeIdentity(*before), ResumeIdentity(*longer)), "");
  EXPECT_THAT(DescribeDifference(ResumeIdentity(*before), ResumeIdentity(*wider)),
              AllOf(HasSubstr("model.hidden = 256"), HasSubstr("model.hidden = 512")));
}

TEST(TrainConfigTest, IdentityHasTheDatasetsAndTheirWeights) {
  const auto identity = [](const std::string& data) {
    const auto config = LoadTrainConfig("", {"data.prefix=" + data});
    EXPECT_TRUE(config.ok()) << config.status();
    return ResumeIdentity(*config);
  };
  const std::string before = identity("0.7 a, 0.3 b");
  EXPECT_EQ(DescribeDifference(before, identity("0.7 a, 0.3 b")), "");
  for (const std::string now : {"0.6 a, 0.4 b", "0.7 a, 0.3 c", "0.3 b, 0.7 a", "a"}) {
    EXPECT_THAT(DescribeDifference(before, identity(now)),
                AllOf(HasSubstr("0.7 a, 0.3 b"), HasSubstr("\"" + now + "\"")));
  }
  const auto again = LoadIdentity(before);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data.prefixes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(again->data.shares, (std::vector<double>{0.7, 0.3}));
}

TEST(TrainConfigTest, ABlendThatCannotBeIsRefusedByName) {
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"0.7 a, 0.3 a\"\n"),
              AllOf(HasSubstr("weft_config_test.toml:2: data.prefix = 0.7 a, 0.3 a: "),
                    HasSubstr("a is there twice")));
}

TEST(TrainConfigTest, SchedulesThatCannotBeAreRefusedByName) {
  const auto error = [](std::vector<std::string> pairs) {
    pairs.insert(pairs.end(), {"train.steps=100", "optimizer.warmup_steps=80"});
    return ErrorOf("[data]\nprefix = \"x\"\n", pairs);
  };
  EXPECT_EQ(error({"optimizer.schedule=wsd", "optimizer.decay_fraction=0.2"}), "no error");
  EXPECT_THAT(error({"optimizer.schedule=wsd", "optimizer.decay_fraction=0.21"}),
              AllOf(HasSubstr("optimizer.decay_fraction = 0.21: a decay of 21 steps, but 100 "),
                    HasSubstr("leave 20 behind optimizer.warmup_steps = 80")));
  EXPECT_EQ(error({"optimizer.schedule=wsd", "optimizer.decay_fraction=0.21",
                   "optimizer.decay_steps=102"}),
            "no error");
  EXPECT_EQ(error({"optimizer.schedule=cosine", "optimizer.decay_fraction=0.9"}), "no error");
  EXPECT_THAT(error({"optimizer.decay_fraction=1.5"}), HasSubstr("0..1"));
  EXPECT_THAT(error({"optimizer.schedule=polynomial"}),
              HasSubstr("cosine, constant, linear, wsd, inverse_sqrt"));
  EXPECT_THAT(ErrorOf("[data]\nprefix = \"x\"\n",
                      {"optimizer.schedule=inverse_sqrt", "optimizer.warmup_steps=0"}),
              HasSubstr("optimizer.warmup_steps = 0: optimizer.schedule = inverse_sqrt falls"));
}

TEST(TrainConfigTest, EverySchedulesNameIsRead) {
  const auto read = [](const std::string& name) {
    const auto config = LoadTrainConfig(
        "", {"optimizer.schedule=" + name, "train.steps=1000", "optimizer.decay_fraction=0.2"});
    EXPECT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->optimizer.wsd_steps, 200);
    return config->optimizer.schedule;
  };
  EXPECT_EQ(read("cosine"), ScheduleKind::kCosine);
  EXPECT_EQ(read("constant"), ScheduleKind::kConstant);
  EXPECT_EQ(read("linear"), ScheduleKind::kLinear);
  EXPECT_EQ(read("wsd"), ScheduleKind::kWsd);
  EXPECT_EQ(read("inverse_sqrt"), ScheduleKind::kInverseSqrt);
}

// What weft-generate reads of a checkpoint.
TEST(TrainConfigTest, AnIdentityReadsBackAsTheRunsConfig) {
  auto config = LoadTrainConfig(
      "", {"data.prefix=a = \"b\"\\c\t\r\n\x1b \\u0041é", "train.seed=7", "model.style=llama",
           "model.norm_epsilon=2e-6", "model.window_layers=0,2-3", "train.precision=bf16"});
  ASSERT_TRUE(config.ok()) << config.status();
  auto again = LoadIdentity(ResumeIdentity(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data.prefixes, config->data.prefixes);
  EXPECT_EQ(again->data.prefixes.size(), 1U);
  EXPECT_EQ(ResumeIdentity(*again), ResumeIdentity(*config));
  EXPECT_EQ(LoadIdentity("data.prefix = \"x\nmodel.layers = 2\n").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TrainConfigTest, SwigluWidthMakesUpForItsThirdMatrix) {
  auto config = LoadTrainConfig("", {"data.prefix=x", "model.activation=swiglu"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->model.ffn, 704);  // 256 * 8 / 3 = 682.7, up to a multiple of 32
}

// Each file that we ship must load.
TEST(TrainConfigTest, ShippedConfigsAreValid) {
  std::string folder = std::string(std::getenv("WEFT_SOURCE")) + "/trainer/configs";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    auto config = LoadTrainConfig(entry.path().string(), {});
    EXPECT_TRUE(config.ok()) << config.status();
    ++count;
  }
  EXPECT_GE(count, 2);
}

}  // namespace
}  // namespace weft::train
