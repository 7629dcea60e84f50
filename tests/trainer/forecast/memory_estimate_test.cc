// What the estimate counts for a rank, and what it shares out over ranks.
#include "trainer/forecast/memory_estimate.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config.h"

namespace weft::train {
namespace {

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

}  // namespace
}  // namespace weft::train
