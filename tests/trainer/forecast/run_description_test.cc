// What --check prints, and what it refuses.
#include "trainer/forecast/run_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "trainer/config.h"

namespace weft::train {
namespace {

using ::testing::ContainsRegex;

// --check knows it without the data, and no sum of bytes overflows.
TEST(DescribeRunTest, ABatchThatNoLoaderTakesIsRefused) {
  absl::StatusOr<TrainConfig> config =
      LoadTrainConfig("",
                      {"data.prefix=none", "train.global_batch=16777216", "model.sequence=1048576",
                       "model.hidden=65536", "model.heads=64", "model.layers=1024"},
                      "tiny");
  ASSERT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 512;
  const absl::Status status = DescribeRun(*config, 1, 1, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ContainsRegex("take a smaller train.global_batch"));
}

TEST(DescribeRunTest, CoresThatAreKnownDecideWhatIsLeftOpen) {
  const absl::StatusOr<TrainConfig> loaded = LoadTrainConfig(
      "", {"data.prefix=none", "parallel.tensor=2", "parallel.pipeline=2", "train.global_batch=16"},
      "tiny");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  TrainConfig config = *loaded;
  config.model.vocabulary = 512;
  const auto crowded = DescribeRun(config, 8, 8, false, Bytes(0), /*cores=*/2);
  ASSERT_TRUE(crowded.ok()) << crowded.status();
  EXPECT_THAT(*crowded, ContainsRegex("takes 8 in 2 micro-batches\ncores         8 ranks on 2 "
                                      "cores: 2 micro-batches.*in 1 piece and keeps"));
  const auto enough = DescribeRun(config, 8, 8, false, Bytes(0), /*cores=*/16);
  ASSERT_TRUE(enough.ok()) << enough.status();
  EXPECT_THAT(*enough, ContainsRegex("8 ranks on 16 cores: the tensor axis exchanges rows in"));
  const auto unknown = DescribeRun(config, 8, 8, false);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(*unknown, ::testing::Not(::testing::HasSubstr("cores ")));
}

// The picture of --svg is of the config that is described, and so the run's.
TEST(DescribeRunTest, WhatTheCoresDecidedIsTakenBackWhereAHostHasNoRoomForIt) {
  absl::StatusOr<TrainConfig> config = LoadTrainConfig(
      "",
      {"data.prefix=none", "train.precision=fp32", "train.pack_weights=false", "parallel.tensor=2",
       "parallel.pipeline=2", "train.global_batch=64", "train.host_memory=64GiB"},
      "tiny");
  ASSERT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 512;
  TrainConfig as_run;
  const auto roomy = DescribeRun(*config, 8, 8, false, Bytes(0), /*cores=*/2, &as_run);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_GT(as_run.micro_batch, 0);
  EXPECT_EQ(as_run.tensor_gathered, GatheredRows::kKeep);
  const size_t at = roomy->find("8 ranks: ");
  ASSERT_NE(at, std::string::npos) << *roomy;
  int mebibytes = 0;
  ASSERT_EQ(std::sscanf(roomy->c_str() + at, "8 ranks: %d MiB", &mebibytes), 1) << *roomy;
  config->host_memory = MiB(mebibytes - 1);
  const auto narrow = DescribeRun(*config, 8, 8, false, Bytes(0), /*cores=*/2, &as_run);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(as_run.micro_batch, 0);
  EXPECT_EQ(as_run.tensor_gathered, GatheredRows::kAuto);
  EXPECT_EQ(as_run.tensor_chunks, 1);
  EXPECT_THAT(*narrow, ContainsRegex("cores         8 ranks on 2 cores: the tensor axis exchanges "
                                     "rows in 1 piece\n"));
}

// What goes to experts, and around the ring of attention, has two bytes a number in both.
TEST(DescribeRunTest, NumbersOfSixteenBitsAreAsWideInBothTypes) {
  const auto lines = [](const std::string& precision) {
    absl::StatusOr<TrainConfig> config =
        LoadTrainConfig("",
                        {"data.prefix=none", "parallel.expert=2", "parallel.context=2",
                         "train.precision=" + precision},
                        "moe-tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 512;
    const absl::StatusOr<std::string> text = DescribeRun(*config, 4, 4, false);
    EXPECT_TRUE(text.ok()) << text.status();
    std::vector<std::string> found;
    for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
      if (absl::StartsWith(line, "experts ") || absl::StartsWith(line, "context ")) {
        found.emplace_back(line);
      }
    }
    EXPECT_EQ(found.size(), 2U) << *text;
    return found;
  };
  EXPECT_EQ(lines("fp16"), lines("bf16"));
  EXPECT_NE(lines("fp16"), lines("fp32"));
}

TEST(DescribeRunTest, SaysWhetherAPipelineIsPlannedAnew) {
  const auto description = [](const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"data.prefix=none", "model.layers=4",
                                         "parallel.pipeline=2", "train.global_batch=16"};
    settings.insert(settings.end(), more.begin(), more.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 512;
    const absl::StatusOr<std::string> text = DescribeRun(*config, 2, 2, false);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? *text : "";
  };
  const std::string said = "lists are made anew once, before step 7 of a start, .*";
  EXPECT_THAT(description({"parallel.schedule=zb-v"}), ContainsRegex(said + "to the bit"));
  EXPECT_THAT(description({"parallel.schedule=zb-v", "parallel.replan=any"}),
              ContainsRegex(said + "other last bits"));
  EXPECT_FALSE(absl::StrContains(description({"parallel.schedule=zb-v", "parallel.replan=off"}),
                                 "made anew"));
  EXPECT_FALSE(absl::StrContains(description({"parallel.schedule=zb-h1"}), "made anew"));
}

}  // namespace
}  // namespace weft::train
