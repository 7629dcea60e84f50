// Whether ranks have place on their GPUs, by arithmetic: no GPU is needed for that.
#include "trainer/loop/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "trainer/config.h"
#include "trainer/groups/group.h"

namespace weft::train {
namespace {

using ::testing::ContainsRegex;

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
