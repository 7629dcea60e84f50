// What Train leaves to its caller where it fails.
#include "trainer/loop/trainer.h"

#include <gtest/gtest.h>

#include "trainer/device/device.h"

namespace weft::train {
namespace {

// Who trains again after a failure makes new groups: of the old ones nothing may be left.
TEST(TrainTest, ARankWhoseDeviceCannotBeOpenedHasNoGroupsAfterwards) {
  if (OpenDevice(DeviceKind::kCuda, /*local_rank=*/0, /*loads_all=*/false).ok()) {
    GTEST_SKIP() << "there is a GPU, which can be opened";
  }
  const absl::StatusOr<TrainConfig> config =
      LoadTrainConfig("", {"data.prefix=none", "train.device=cuda"}, "tiny");
  ASSERT_TRUE(config.ok()) << config.status();
  RunOptions options;
  options.config = *config;
  ParallelGroups groups = ParallelGroups::Alone();
  const absl::StatusOr<RunOutcome> outcome = Train(options, groups);
  EXPECT_FALSE(outcome.ok());
  EXPECT_EQ(groups.world, nullptr);
  EXPECT_EQ(groups.data, nullptr);
}

}  // namespace
}  // namespace weft::train
