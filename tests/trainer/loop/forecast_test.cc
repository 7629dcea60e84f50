// Whether ranks have place on their GPUs, by arithmetic: no GPU is needed for that.
#include "trainer/loop/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"

namespace weft::train {
namespace {

using ::testing::ContainsRegex;

TEST(EstimateMemoryTest, CountsPackedWeightsWhereAStepReadsThemSeveralTimes) {
  const auto packed = [](const std::vector<std::string>& settings,
                         const GemmLibraries* gemm = nullptr) {
    std::vector<std::string> all = {"data.prefix=none", "train.precision=fp32"};
    all.insert(all.end(), settings.begin(), settings.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", all, "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 512;
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(*config, {});
    EXPECT_TRUE(plan.ok()) << plan.status();
    const absl::StatusOr<MemoryEstimate> estimate =
        EstimateMemory(*config, *plan, 0, 0, /*keeps_snapshots=*/false, gemm);
    EXPECT_TRUE(estimate.ok()) << estimate.status();
    return estimate->packed;
  };
  // Copies of the matrices of the layers and of the output projection, for two orders.
  EXPECT_GT(packed({"train.micro_batch=1"}), Bytes(0));
  const Bytes head = packed({"train.loss_rows=16"});
  EXPECT_GT(head, Bytes(0));
  EXPECT_LT(head, packed({"train.micro_batch=1"}));
  EXPECT_EQ(packed({}), Bytes(0));
  EXPECT_EQ(packed({"train.micro_batch=1", "train.pack_weights=false"}), Bytes(0));
  EXPECT_EQ(packed({"train.micro_batch=1", "train.gemm=aten"}), Bytes(0));
  EXPECT_EQ(packed({"train.micro_batch=1", "parallel.zero=3"}), Bytes(0));
  const GemmLibraries chosen = KernelLibrary::kAten;
  EXPECT_EQ(packed({"train.micro_batch=1"}, &chosen), Bytes(0));
}

// What no routing exceeds: the rows of all ranks' tokens on the experts of one.
TEST(EstimateMemoryTest, SaysWhatUnevenRoutingTakesAtMost) {
  const auto estimate = [](const std::vector<std::string>& settings, const ParallelSizes& sizes) {
    std::vector<std::string> all = {"data.prefix=none", "train.precision=fp32"};
    all.insert(all.end(), settings.begin(), settings.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", all, "moe-tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 512;
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(*config, sizes);
    EXPECT_TRUE(plan.ok()) << plan.status();
    const absl::StatusOr<MemoryEstimate> memory = EstimateMemory(*config, *plan, 0, 0, false);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *memory;
  };
  EXPECT_EQ(estimate({}, {}).uneven_routing, Bytes(0));  // one rank has all experts
  const ParallelSizes four{.data = 4, .expert = 4};
  // A rank has 2 of the 8 experts, and a token takes 2: all tokens can fall on one rank, 4 times
  // the rows. A row is kept with its inner activations: 128 + 2 x 192 numbers in each of 4 layers.
  const Bytes uneven = estimate({}, four).uneven_routing;
  const int64_t rows = 4 * 128 * 2;  // of 4 samples of 128 tokens, two choices each
  EXPECT_GT(uneven, Bytes(4 * 3 * rows * (128 + 2 * 192) * 4));
  EXPECT_LT(uneven, Bytes(2 * 4 * 3 * rows * (128 + 2 * 192) * 4));
  // A capacity bounds it: half as many rows again.
  EXPECT_LT(estimate({"model.capacity_factor=1.5"}, four).uneven_routing, uneven / 4);
  EXPECT_EQ(estimate({"model.capacity_factor=1"}, four).uneven_routing, Bytes(0));
}

// With parallel.zero = 0 no rank does without any state of what it holds, be it shared by all or an
// expert's.
TEST(EstimateMemoryTest, ExpertsStateIsShardedWithinTheGroupsOfTheOthers) {
  const auto estimate = [](const std::vector<std::string>& settings, int data) {
    std::vector<std::string> all = {"data.prefix=none", "train.precision=fp32", "parallel.expert=2",
                                    "checkpoint.background=true"};
    all.insert(all.end(), settings.begin(), settings.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", all, "moe-tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 512;
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(*config, {.data = data, .expert = 2});
    EXPECT_TRUE(plan.ok()) << plan.status();
    const absl::StatusOr<MemoryEstimate> memory = EstimateMemory(*config, *plan, 0, 0, false);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *memory;
  };
  const MemoryEstimate two = estimate({"parallel.zero=0"}, 2);
  const MemoryEstimate four = estimate({"parallel.zero=0"}, 4);
  EXPECT_EQ(four.optimizer, two.optimizer);
  // Twice as many ranks hold each byte, and write equal parts of it.
  EXPECT_NEAR(static_cast<double>(four.pool.count()), static_cast<double>(two.pool.count()) / 2, 2);
  EXPECT_LT(estimate({"parallel.zero=1"}, 4).optimizer, four.optimizer);
  // In a group of two each rank has experts of its own, 4 of each layer, with all their state, and
  // they do not come and go.
  const Bytes experts(int64_t{12} * 4 * (2 * 192 * 128 + 128 * 192) * 4);
  const std::vector<std::string> groups = {"model.layers=12", "parallel.zero_group=2"};
  EXPECT_GT(estimate(groups, 4).optimizer, experts * 2);
  EXPECT_GT(estimate({groups[0], groups[1], "parallel.zero=3"}, 4).parameters, experts);
}

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

TEST(CheckDeviceMemoryTest, ARunThatHasNoPlaceOnItsGpuIsRefusedWithTheArithmetic) {
  absl::StatusOr<TrainConfig> config = LoadTrainConfig("", {"data.prefix=none"}, "tiny");
  ASSERT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 512;
  const absl::StatusOr<StepPlan> plan = StepPlan::Make(*config, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<MemoryEstimate> estimate =
      EstimateMemory(*config, *plan, 0, 0, /*keeps_snapshots=*/true);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  // Snapshots are in host memory.
  EXPECT_GT(estimate->snapshots.count(), 0);
  EXPECT_EQ(estimate->on_device(), estimate->tensors() - estimate->snapshots);
  Group alone;
  const auto check = [&](Bytes free) {
    return CheckDeviceMemory(*config, *plan, 0, 0, /*gpu=*/3, {GiB(80), free, Bytes(0)}, alone);
  };
  EXPECT_TRUE(check(estimate->on_device()).ok());
  const absl::Status refused = check(estimate->on_device() - Bytes(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ContainsRegex("GPU 3 of host .*: 1 ranks need [0-9]+ MiB for tensors; [0-9]+ MiB of "
                            "it are free"));
}

}  // namespace
}  // namespace weft::train
