// What a spare process does before it has a place: for every kind of model, and with data that are
// not there.
#include "trainer/loop/warm_up.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/scratch_folder.h"
#include "tests/trainer/data/sample_data.h"
#include "trainer/data/prepare.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WarmUpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status prepared = PrepareSampleData(folder_.path());
    ASSERT_TRUE(prepared.ok()) << prepared;
  }
  TrainConfig Config(std::vector<std::string> more, const std::string& data = "data") {
    std::vector<std::string> pairs = {"model.layers=2",
                                      "model.hidden=32",
                                      "model.heads=2",
                                      "model.sequence=16",
                                      "train.steps=4",
                                      "train.global_batch=2",
                                      "data.prefix=" + (folder_ / data)};
    pairs.insert(pairs.end(), more.begin(), more.end());
    auto config = LoadTrainConfig("", pairs);
    EXPECT_TRUE(config.ok()) << config.status();
    return *std::move(config);
  }

  void CopyData(const std::string& name) {
    for (const char* part : {".json", "_train.bin", "_train.idx", "_valid.bin", "_valid.idx"}) {
      std::filesystem::copy_file(folder_ / (std::string("data") + part), folder_ / (name + part));
    }
  }

  const ScratchFolder folder_;
};

TEST_F(WarmUpTest, DataAndComputeThreadsOfEveryKindOfModelAreReady) {
  const std::vector<std::vector<std::string>> kinds = {
      {"model.style=gpt2", "train.precision=fp32"},
      {"model.style=llama", "train.precision=bf16"},
      {"model.style=neox", "train.precision=fp16"},
      {"model.style=mixtral", "model.experts=2", "model.window=8", "train.precision=fp32"},
      {"model.style=gpt2", "model.dropout=0.1", "train.precision=fp32"}};
  for (const std::vector<std::string>& kind : kinds) {
    SCOPED_TRACE(kind[0]);
    const TrainConfig config = Config(kind);
    RunData data;
    EXPECT_EQ(WarmUp(config, 2, data), absl::OkStatus());
    EXPECT_EQ(at::get_num_threads(), 2);
    EXPECT_TRUE(data.tokenizer.has_value());
    ASSERT_NE(data.training, nullptr);
    EXPECT_EQ(data.validation.size(), 1U);
    // The run takes what is open.
    const std::shared_ptr<const SampleBlend> opened = data.training;
    EXPECT_EQ(data.Open(config, /*wants_tokenizer=*/true), absl::OkStatus());
    EXPECT_EQ(data.training, opened);
  }
}

TEST_F(WarmUpTest, DataOfAnotherConfigAreOpenedAnew) {
  RunData data;
  ASSERT_EQ(WarmUp(Config({}), 1, data), absl::OkStatus());
  const std::shared_ptr<const SampleBlend> opened = data.training;
  ASSERT_EQ(data.Open(Config({"model.sequence=8"}), false), absl::OkStatus());
  EXPECT_NE(data.training, opened);
  EXPECT_EQ(data.training->seq_length(), 8);
}

TEST_F(WarmUpTest, ABlendHasItsDatasetsInTheOrderOfTheConfig) {
  CopyData("more");
  const TrainConfig config =
      Config({absl::StrCat("data.prefix=0.75 ", folder_ / "data", ", 0.25 ", folder_ / "more")});
  RunData data;
  ASSERT_EQ(WarmUp(config, 1, data), absl::OkStatus());
  ASSERT_EQ(data.training->streams().size(), 2U);
  EXPECT_EQ(data.training->streams()[0]->dataset().prefix(), folder_ / "data_train");
  EXPECT_EQ(data.training->streams()[1]->dataset().prefix(), folder_ / "more_train");
  EXPECT_EQ(data.training->period(), 4);
  ASSERT_EQ(data.validation.size(), 2U);
  EXPECT_EQ(data.validation[1]->dataset().prefix(), folder_ / "more_valid");
  EXPECT_DOUBLE_EQ(data.unigram_loss, data.infos[0].unigram_loss);
  EXPECT_THAT(
      DescribeDatasets(config, {3, 4}),  // of 4 steps of 2 samples
      ElementsAre(folder_ / "data" + ": 75 % of the samples, 3 in an epoch; 2.00 epochs in 4 "
                                     "steps",
                  folder_ / "more" + ": 25 % of the samples, 4 in an epoch; 0.50 epochs in 4 "
                                     "steps"));
  // Other weights are other data.
  const std::shared_ptr<const SampleBlend> opened = data.training;
  ASSERT_EQ(
      data.Open(
          Config({absl::StrCat("data.prefix=1 ", folder_ / "data", ", 1 ", folder_ / "more")}),
          false),
      absl::OkStatus());
  EXPECT_NE(data.training, opened);
  EXPECT_EQ(data.training->period(), 2);
}

TEST_F(WarmUpTest, DatasetsOfABlendAreShuffledEachInItsOwnWay) {
  CopyData("more");
  RunData alone, blend;
  ASSERT_EQ(alone.Open(Config({}), false), absl::OkStatus());
  const std::string both =
      absl::StrCat("data.prefix=1 ", folder_ / "data", ", 1 ", folder_ / "more");
  ASSERT_EQ(blend.Open(Config({both}), false), absl::OkStatus());
  const auto first_samples = [](const SampleStream& stream) {
    std::vector<int32_t> tokens;
    for (int64_t sample = 0; sample < 20; ++sample) {
      std::vector<int32_t> one(static_cast<size_t>(stream.seq_length()) + 1);
      EXPECT_EQ(stream.Read(sample, absl::MakeSpan(one)), absl::OkStatus());
      tokens.insert(tokens.end(), one.begin(), one.end());
    }
    return tokens;
  };
  const auto& streams = blend.training->streams();
  EXPECT_EQ(first_samples(*streams[0]), first_samples(*alone.training->streams()[0]));
  EXPECT_NE(first_samples(*streams[1]), first_samples(*streams[0]));
}

TEST_F(WarmUpTest, DataThatAreNotThereAreNamedAndMayComeLater) {
  RunData data;
  const absl::Status status = WarmUp(Config({}, "late"), 1, data);
  EXPECT_THAT(std::string(status.message()), HasSubstr("late.json"));
  CopyData("late");
  EXPECT_EQ(data.Open(Config({}, "late"), true), absl::OkStatus());
  EXPECT_NE(data.training, nullptr);
}

}  // namespace
}  // namespace weft::train
