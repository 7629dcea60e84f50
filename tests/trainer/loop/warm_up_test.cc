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

#include "tests/scratch_folder.h"
#include "tests/trainer/data/sample_data.h"
#include "trainer/data/prepare.h"

namespace weft::train {
namespace {

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
    ASSERT_NE(data.validation, nullptr);
    // The run takes what is open.
    const std::shared_ptr<const SampleStream> opened = data.training;
    EXPECT_EQ(data.Open(config, /*wants_tokenizer=*/true), absl::OkStatus());
    EXPECT_EQ(data.training, opened);
  }
}

TEST_F(WarmUpTest, DataOfAnotherConfigAreOpenedAnew) {
  RunData data;
  ASSERT_EQ(WarmUp(Config({}), 1, data), absl::OkStatus());
  const std::shared_ptr<const SampleStream> opened = data.training;
  ASSERT_EQ(data.Open(Config({"model.sequence=8"}), false), absl::OkStatus());
  EXPECT_NE(data.training, opened);
  EXPECT_EQ(data.training->seq_length(), 8);
}

TEST_F(WarmUpTest, DataThatAreNotThereAreNamedAndMayComeLater) {
  RunData data;
  const absl::Status status = WarmUp(Config({}, "late"), 1, data);
  EXPECT_THAT(std::string(status.message()), HasSubstr("late.json"));
  for (const char* part : {".json", "_train.bin", "_train.idx", "_valid.bin", "_valid.idx"}) {
    std::filesystem::copy_file(folder_ / (std::string("data") + part),
                               folder_ / (std::string("late") + part));
  }
  EXPECT_EQ(data.Open(Config({}, "late"), true), absl::OkStatus());
  EXPECT_NE(data.training, nullptr);
}

}  // namespace
}  // namespace weft::train
