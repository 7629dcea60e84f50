#include "net/roce/adaptive_retransmission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "net/roce/tuning.h"
#include "tests/net/roce/fake_firmware.h"
#include "tests/net/roce/sys_folder.h"

namespace weft::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPci = "0000:10:00.0";  // of mlx5_0, in sys_folder.h

std::string ReadError() { return std::string(ReadAdaptiveRetransmission(kPci).status().message()); }

TEST(AdaptiveRetransmission, IsReadAndWritten) {
  for (const char* program : {"mlxreg", "mstreg"}) {
    FakeFirmware firmware(program);
    firmware.Set(kPci, false);
    EXPECT_EQ(ReadAdaptiveRetransmission(kPci).value(), false);
    ASSERT_TRUE(WriteAdaptiveRetransmission(kPci, true).ok());
    EXPECT_EQ(ReadAdaptiveRetransmission(kPci).value(), true);
    EXPECT_EQ(firmware.Get(kPci), "0x1");
    ASSERT_TRUE(WriteAdaptiveRetransmission(kPci, false).ok());
    EXPECT_EQ(firmware.Get(kPci), "0x0");
    EXPECT_THAT(firmware.calls(),
                AllOf(HasSubstr("-d 0000:10:00.0 --yes --reg_name ROCE_ACCL --get\n"),
                      HasSubstr("--reg_name ROCE_ACCL --set roce_adp_retrans_en=0x1\n")));
  }
}

TEST(AdaptiveRetransmission, WhatDoesNotWorkIsNamed) {
  {
    FakeFirmware none("");
    EXPECT_TRUE(absl::IsNotFound(ReadAdaptiveRetransmission(kPci).status()));
    EXPECT_THAT(ReadError(), AllOf(HasSubstr("mlxreg"), HasSubstr("mstreg")));
  }
  FakeFirmware firmware;
  EXPECT_THAT(ReadError(), HasSubstr("-E- Failed to open device: 0000:10:00.0."));
  firmware.Set(kPci, false);
  firmware.SupportNothing();
  EXPECT_TRUE(absl::IsUnimplemented(ReadAdaptiveRetransmission(kPci).status()));
  firmware.Install("mlxreg", "echo nonsense");
  EXPECT_TRUE(absl::IsUnimplemented(ReadAdaptiveRetransmission(kPci).status()));
  firmware.Install("mlxreg", "exit 4");
  EXPECT_THAT(ReadError(),
              HasSubstr("mlxreg -d 0000:10:00.0 ended with status 4: it said nothing"));
}

TEST(AdaptiveRetransmission, AFirmwareThatDoesNotKeepItIsAnError) {
  FakeFirmware firmware;
  firmware.Install("mlxreg", "echo 'roce_adp_retrans_en | 0x00000000'");
  const absl::Status status = WriteAdaptiveRetransmission(kPci, true);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not keep roce_adp_retrans_en=0x1"));
}

// A host with two ConnectX NICs and one of somebody else's.
class FirmwareTuning : public testing::Test {
 protected:
  FirmwareTuning() {
    for (int i = 0; i < 3; ++i) AddMlx5(root_, i);
    root_.Write("sys/devices/pci0000:00/0000:12:00.0/vendor", "0x14e4\n");
    firmware_.Set(kPci, false);
    firmware_.Set("0000:11:00.0", true);
    firmware_.Set("0000:12:00.0", false);
    devices_ = ReadRdmaDevices(root_.path()).value();
  }
  ScratchFolder root_;
  FakeFirmware firmware_;
  std::vector<RdmaDevice> devices_;
};

TEST_F(FirmwareTuning, NoFirmwareIsAskedBeforeItIsWanted) {
  for (const RdmaDevice& device : devices_) EXPECT_FALSE(device.adaptive_retransmission);
  EXPECT_EQ(firmware_.calls(), "");
}

TEST_F(FirmwareTuning, OnlyWhatDiffersIsSet) {
  ASSERT_TRUE(ReadFirmware(devices_).ok());
  NicWishes wishes;
  wishes.adaptive_retransmission = true;
  const std::vector<NicChange> changes = PlanNics(devices_, wishes);
  int differ = 0;
  for (const NicChange& change : changes) differ += change.differs() ? 1 : 0;
  EXPECT_EQ(differ, 1);
  ASSERT_TRUE(ApplyNics(changes).ok());
  EXPECT_EQ(firmware_.Get(kPci), "0x1");
  EXPECT_EQ(firmware_.Get("0000:12:00.0"), "0x0");
}

TEST_F(FirmwareTuning, IsPutBackWithTheRest) {
  ASSERT_TRUE(ReadFirmware(devices_).ok());
  NicWishes wishes;
  wishes.adaptive_retransmission = true;
  wishes.priority = 4;
  std::vector<NicChange> changes = PlanNics(devices_, wishes);
  changes.back().now.path = root_.path();  // a folder cannot be written
  changes.back().wanted = changes.back().now.value + 1;
  EXPECT_FALSE(ApplyNics(changes).ok());
  EXPECT_EQ(firmware_.Get(kPci), "0x0");
}

TEST_F(FirmwareTuning, TheFirstDeviceThatCannotBeReadIsNamed) {
  std::swap(devices_[0], devices_[1]);
  devices_[0].pci = "0000:99:00.0";
  const absl::Status status = ReadFirmware(devices_);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("adaptive retransmission of mlx5_1: mlxreg -d 0000:99:00.0"));
  EXPECT_FALSE(devices_[0].adaptive_retransmission);
  ASSERT_TRUE(devices_[1].adaptive_retransmission);
  EXPECT_EQ(devices_[1].adaptive_retransmission->value, 0);
}

}  // namespace
}  // namespace weft::net
