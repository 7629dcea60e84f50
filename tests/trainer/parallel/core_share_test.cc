// What the cores of a job's hosts decide: arithmetic alone.
#include "trainer/parallel/core_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<RankCores> Ranks(int hosts, int ranks, int cores, int threads) {
  std::vector<RankCores> all;
  for (int rank = 0; rank < hosts * ranks; ++rank) {
    all.push_back({.host = rank / ranks, .cores = cores, .threads = threads});
  }
  return all;
}

TrainConfig Config(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"data.prefix=none", "train.precision=fp32", "model.layers=6",
                                     "model.hidden=384", "model.heads=6", "model.ffn=1536",
                                     "model.sequence=256", "train.global_batch=16"});
  absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
  EXPECT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 4096;
  return *std::move(config);
}

TEST(CoreShareTest, IsThatOfTheHostWithMostRanksACore) {
  std::vector<RankCores> ranks = Ranks(1, 2, 8, 4);
  for (int i = 0; i < 6; ++i) ranks.push_back({.host = 1, .cores = 4, .threads = 1});
  const CoreShare share = ShareOf(ranks, /*tensor=*/2);
  EXPECT_EQ(share.hosts, 2);
  EXPECT_EQ(share.ranks, 6);
  EXPECT_EQ(share.cores, 4);
  EXPECT_TRUE(share.is_crowded());
  EXPECT_FALSE(share.has_idle_cores);
  EXPECT_TRUE(share.tensor_in_host);
  EXPECT_FALSE(ShareOf(ranks, /*tensor=*/4).tensor_in_host);
  EXPECT_FALSE(ShareOf(Ranks(1, 2, 2, 1), 2).is_crowded());
}

TEST(CoreShareTest, IdleCoresAreThoseOfEveryHost) {
  std::vector<RankCores> ranks = Ranks(2, 2, 8, 2);
  EXPECT_TRUE(ShareOf(ranks, 2).has_idle_cores);
  ranks[0].threads = 6;
  EXPECT_FALSE(ShareOf(ranks, 2).has_idle_cores);
}

// Pieces hide something where another host or another core moves the bytes.
TEST(CoreShareTest, RowsMoveInOnePieceWhereTheComputingCoresMoveThem) {
  struct Case {
    std::vector<std::string> settings;
    CoreShare share;
    int chunks;
    GatheredRows gathered;
  };
  const ParallelSizes sizes{.tensor = 2};
  const CoreShare full = ShareOf(Ranks(1, 2, 2, 1), 2), idle = ShareOf(Ranks(1, 2, 8, 1), 2),
                  apart = ShareOf(Ranks(2, 1, 2, 2), 2);
  for (const Case& one :
       {Case{{}, full, 1, GatheredRows::kKeep}, Case{{}, idle, kTensorChunks, GatheredRows::kAuto},
        Case{{}, apart, kTensorChunks, GatheredRows::kAuto},
        Case{{"parallel.tensor_chunks=4"}, full, 4, GatheredRows::kKeep},
        Case{{"parallel.tensor_gathered=again"}, full, 1, GatheredRows::kAgain},
        Case{{"train.device=cuda"}, full, kTensorChunks, GatheredRows::kAuto}}) {
    std::vector<std::string> settings = {"parallel.tensor=2"};
    settings.insert(settings.end(), one.settings.begin(), one.settings.end());
    TrainConfig config = Config(settings);
    FitToCores(config, sizes, one.share);
    EXPECT_EQ(config.tensor_chunks, one.chunks) << ::testing::PrintToString(one.settings);
    EXPECT_EQ(config.tensor_gathered, one.gathered) << ::testing::PrintToString(one.settings);
    EXPECT_EQ(config.micro_batch, 0);
  }
}

TEST(CoreShareTest, CrowdedCoresHaveFewerMicroBatchesOfAPipeline) {
  const ParallelSizes sizes{.tensor = 2, .data = 2, .pipeline = 2};
  const std::vector<std::string> settings = {"parallel.tensor=2", "parallel.pipeline=2"};
  auto samples_at_once = [&](std::vector<std::string> more, const std::vector<RankCores>& ranks) {
    more.insert(more.end(), settings.begin(), settings.end());
    TrainConfig config = Config(std::move(more));
    FitToCores(config, sizes, ShareOf(ranks, 2));
    return config.micro_batch;
  };
  EXPECT_EQ(samples_at_once({}, Ranks(1, 8, 2, 1)), 4);                       // two of them
  EXPECT_EQ(samples_at_once({}, Ranks(1, 8, 8, 1)), 0);                       // left open
  EXPECT_EQ(samples_at_once({}, Ranks(2, 4, 2, 1)), 0);                       // a stage a host
  EXPECT_EQ(samples_at_once({"train.micro_batch=1"}, Ranks(1, 8, 2, 1)), 1);  // as given
}

// A rank's new host may have other cores: the run goes on with what it had.
TEST(CoreShareTest, AChoiceGoesFromRankToRankAsAWord) {
  const ParallelSizes sizes{.tensor = 2, .data = 2, .pipeline = 2};
  const TrainConfig given = Config({"parallel.tensor=2", "parallel.pipeline=2"});
  TrainConfig crowded = given, taken = given;
  FitToCores(crowded, sizes, ShareOf(Ranks(1, 8, 2, 1), 2));
  const std::string word = CoreChoiceToWord(crowded, sizes);
  ASSERT_TRUE(TakeCoreChoice(word, sizes, taken)) << word;
  EXPECT_EQ(taken.micro_batch, 4);
  EXPECT_EQ(taken.tensor_chunks, 1);
  EXPECT_EQ(taken.tensor_gathered, GatheredRows::kKeep);
  EXPECT_FALSE(TakeCoreChoice(word, {.tensor = 2, .data = 1, .pipeline = 2}, taken));
  EXPECT_FALSE(TakeCoreChoice("", sizes, taken));
  EXPECT_FALSE(TakeCoreChoice(word + "x", sizes, taken));
  EXPECT_EQ(taken.micro_batch, 4);
}

TEST(CoreShareTest, AResumedRunKeepsWhatItsConfigLeavesOpen) {
  const ParallelSizes sizes{.tensor = 2, .data = 2, .pipeline = 2};
  const TrainConfig given = Config({"parallel.tensor=2", "parallel.pipeline=2"});
  TrainConfig crowded = given, roomy = given;
  FitToCores(crowded, sizes, ShareOf(Ranks(1, 8, 2, 1), 2));
  FitToCores(roomy, sizes, ShareOf(Ranks(1, 8, 16, 1), 2));
  const std::string word = CoreChoiceToWord(crowded, sizes);
  TrainConfig kept = given;
  ASSERT_TRUE(KeepCoreChoice(word, sizes, kept));
  EXPECT_EQ(CoreChoiceToWord(kept, sizes), word);
  EXPECT_EQ(DescribeKeptChoice(kept, roomy, sizes),
            "kept from the checkpoint, so that sums have the same last bits: train.micro_batch = 4 "
            "(by the cores: open), parallel.tensor_chunks = 1 (by the cores: 2), "
            "parallel.tensor_gathered = keep (by the cores: auto)");
  EXPECT_THAT(DescribeKeptChoice(kept, crowded, sizes), IsEmpty());
  // What is given now stays.
  kept = given;
  kept.micro_batch = 2;
  kept.tensor_chunks = 3;
  ASSERT_TRUE(KeepCoreChoice(word, sizes, kept));
  EXPECT_EQ(kept.micro_batch, 2);
  EXPECT_EQ(kept.tensor_chunks, 3);
  EXPECT_EQ(kept.tensor_gathered, GatheredRows::kKeep);
}

TEST(CoreShareTest, WhatDoesNotFitAResumedRunIsNotKept) {
  const ParallelSizes sizes{.tensor = 2, .data = 2, .pipeline = 2};
  const TrainConfig given = Config({"parallel.tensor=2", "parallel.pipeline=2"});
  for (const char* word : {"", "2,1,2,2,1,2", "2,1,4,2,1,2,4", "2,1,2,2,0,2,4", "2,1,2,2,1,3,4",
                           "2,1,2,2,1,-1,4", "2,1,2,2,1,2,3", "2,1,2,2,1,2,-4"}) {
    TrainConfig config = given;
    EXPECT_FALSE(KeepCoreChoice(word, sizes, config)) << word;
    EXPECT_EQ(config.tensor_chunks, 0) << word;
    EXPECT_EQ(config.micro_batch, 0) << word;
  }
  TrainConfig config = given;
  EXPECT_TRUE(KeepCoreChoice("2,1,2,2,1,2,4", sizes, config));
  config = given;
  config.device = DeviceKind::kCuda;
  EXPECT_FALSE(KeepCoreChoice("2,1,2,2,1,2,4", sizes, config));
}

// Else what a run without a tensor axis takes back for memory would be nothing.
TEST(CoreShareTest, WithoutATensorAxisNoRowsAreKept) {
  TrainConfig config = Config({});
  const TrainConfig given = config;
  FitToCores(config, {}, ShareOf(Ranks(1, 2, 2, 1), 1));
  EXPECT_FALSE(GiveBackMemory(config, given));
}

TEST(CoreShareTest, SaysWhatItDecidedAndTakesItBackForMemory) {
  const ParallelSizes sizes{.tensor = 2, .data = 2, .pipeline = 2};
  const CoreShare share = ShareOf(Ranks(1, 8, 2, 1), 2);
  const TrainConfig given = Config({"parallel.tensor=2", "parallel.pipeline=2"});
  TrainConfig config = given;
  FitToCores(config, sizes, share);
  EXPECT_EQ(DescribeCores(given, config, sizes, share),
            "8 ranks on 2 cores: 2 micro-batches, since other ranks have the cores of a stage that "
            "waits; the tensor axis exchanges rows in 1 piece and keeps gathered rows");
  EXPECT_TRUE(GiveBackMemory(config, given));
  EXPECT_EQ(config.micro_batch, 0);
  EXPECT_EQ(config.tensor_gathered, GatheredRows::kAuto);
  EXPECT_EQ(config.tensor_chunks, 1);
  EXPECT_FALSE(GiveBackMemory(config, given));
  EXPECT_THAT(DescribeCores(given, config, sizes, share), HasSubstr("in 1 piece"));
  const TrainConfig alone = Config({});
  TrainConfig fitted = alone;
  const CoreShare one = ShareOf(Ranks(1, 1, 2, 2), 1);
  FitToCores(fitted, {}, one);
  EXPECT_THAT(DescribeCores(alone, fitted, {}, one), IsEmpty());
}

}  // namespace
}  // namespace weft::train
