// Whether ranks have place on their hosts and GPUs, by arithmetic: no GPU is needed for that.
#include "trainer/forecast/memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "trainer/config.h"
#include "trainer/forecast/memory_estimate.h"
#include "trainer/groups/group.h"

namespace weft::train {
namespace {

using ::testing::ContainsRegex;

TEST(TakeLessMemoryTest, WhatSuitsTheCoresGoesFirstAndPackedWeightsGoLast) {
  TrainConfig given;
  TrainConfig config = given;
  config.micro_batch = 2;
  config.tensor_gathered = GatheredRows::kKeep;
  EXPECT_TRUE(TakeLessMemory(config, given));
  EXPECT_EQ(config.micro_batch, 0);
  EXPECT_EQ(config.tensor_gathered, GatheredRows::kAuto);
  EXPECT_TRUE(config.pack_weights);
  EXPECT_TRUE(TakeLessMemory(config, given));
  EXPECT_FALSE(config.pack_weights);
  EXPECT_FALSE(TakeLessMemory(config, given));
}

TEST(CheckFitsTest, ProgramsCountAndMemoryThatIsNotKnownHoldsEverything) {
  const TrainConfig config;
  const MemoryNeed need{.ranks = 2, .tensors = MiB(30), .program = MiB(10)};
  EXPECT_TRUE(CheckFits(config, "a host", need, MiB(40)).ok());
  EXPECT_TRUE(CheckFits(config, "a host", need, Bytes(0)).ok());
  const absl::Status refused = CheckFits(config, "a host", need, MiB(40) - Bytes(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(IsAgreed(refused));
  EXPECT_THAT(std::string(refused.message()),
              ContainsRegex("a host: 2 ranks need 30 MiB .* and 10 MiB .*, together 40 MiB"));
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
    return CheckDeviceMemory(*config, *plan, 0, 0, "0000:3B:00.0", {GiB(80), free, Bytes(0)},
                             alone);
  };
  EXPECT_TRUE(check(estimate->on_device()).ok());
  const absl::Status refused = check(estimate->on_device() - Bytes(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ContainsRegex("GPU 0000:3B:00.0 of host .*: 1 ranks need [0-9]+ MiB for tensors; "
                            "[0-9]+ MiB of it are free"));
}

}  // namespace
}  // namespace weft::train
