#include "collectives/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::collectives {
namespace {

using ::testing::HasSubstr;

TEST(DeviceTest, AnAbsentLibraryIsNamedTogetherWithTheWayToBuildIt) {
  absl::StatusOr<Device> device = Device::Load("libweft-cuda-that-is-not-there.so");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(device.status().ToString(), HasSubstr("libweft-cuda-that-is-not-there.so"));
  EXPECT_THAT(device.status().ToString(), HasSubstr("tools/dev build cuda"));
}

TEST(DeviceTest, AnotherLibraryIsRefused) {
  absl::StatusOr<Device> device = Device::Load("libm.so.6");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(device.status().ToString(), HasSubstr("weft_device_table"));
}

}  // namespace
}  // namespace weft::collectives
