// A server in order has nothing to complain of; each thing broken is found, by its name.
#include "tools/doctor/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/net/roce/sys_folder.h"
#include "tools/doctor/libraries.h"
#include "tools/doctor/report.h"

namespace weft::doctor {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Warnings and errors alone.
Findings Ills(const Findings& findings) {
  Findings ills;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(ills),
               [](const Finding& finding) { return finding.severity != Severity::kNote; });
  return ills;
}

auto Is(Severity severity, const std::string& check, const std::string& words) {
  return AllOf(Field(&Finding::severity, severity), Field(&Finding::check, check),
               Field(&Finding::sentence, HasSubstr(words)));
}

// Two rails in order, and what the checks of devices say of them.
class DeviceChecks : public testing::Test {
 protected:
  DeviceChecks() {
    for (int index : {0, 1}) net::AddMlx5(root_, index);
  }
  Findings Examine() {
    Node node;
    node.devices = *net::ReadRdmaDevices(root_.path());
    node.device_folder = true;
    for (int index : {0, 1}) {
      if (std::filesystem::exists(root_ / absl::StrCat("dev/infiniband/uverbs", index))) {
        node.device_nodes.push_back(absl::StrCat("uverbs", index));
      }
    }
    Findings findings;
    CheckDevices(node, findings);
    CheckCongestionControl(node, findings);
    CheckCounters(node, findings);
    return findings;
  }
  void WritePort(const std::string& file, const std::string& text) {
    root_.Write(net::PortFolder(1) + file, text);
  }
  void WriteInterface(const std::string& file, const std::string& text) {
    root_.Write("sys/class/net/ens1/" + file, text);
  }

  ScratchFolder root_;
};

TEST_F(DeviceChecks, AServerInOrderHasNoIlls) {
  EXPECT_THAT(Ills(Examine()), IsEmpty()) << FindingsText(Examine());
}

TEST_F(DeviceChecks, ARailThatForcesNoTrafficClassWhereTheOtherDoes) {
  root_.Write("sys/class/infiniband/mlx5_1/tc/1/traffic_class", "");
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kWarning, "traffic-class-differs",
                                              "mlx5_0 port 1 106, mlx5_1 port 1 none")));
}

TEST_F(DeviceChecks, APortThatIsDown) {
  WritePort("state", "1: DOWN\n");
  WritePort("phys_state", "3: Disabled\n");
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kError, "port-down", "DOWN (Disabled)")));
}

TEST_F(DeviceChecks, ADeviceNodeThatTheContainerLacks) {
  std::filesystem::remove(root_ / "dev/infiniband/uverbs1");
  EXPECT_THAT(Examine(), Contains(Is(Severity::kError, "device-node", "/dev/infiniband/uverbs1")));
}

TEST_F(DeviceChecks, NoRoutableAddress) {
  for (const char* gid : {"gids/2", "gids/3"}) {
    WritePort(gid, "0000:0000:0000:0000:0000:0000:0000:0000\n");
  }
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kError, "gid-missing", "no routable")));
}

TEST_F(DeviceChecks, AddressesOfIpv6Alone) {
  for (const char* gid : {"gids/2", "gids/3"}) {
    WritePort(gid, "2001:0db8:0000:0000:0000:0000:0000:0001\n");
  }
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kWarning, "gid-ipv6", "index 3")));
}

TEST_F(DeviceChecks, GidTypesThatAContainerCannotRead) {
  for (int gid = 0; gid < 4; ++gid) WritePort(absl::StrCat("gid_attrs/types/", gid), "");
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kWarning, "gid-types", "cannot be read")));
}

TEST_F(DeviceChecks, AnMtuTooSmallForFullPacketsIsFoundAndThatItDiffers) {
  WriteInterface("mtu", "1500\n");
  EXPECT_THAT(Ills(Examine()),
              ElementsAre(Is(Severity::kWarning, "mtu", "packets carry 1024 bytes"),
                          Is(Severity::kWarning, "mtu-differs", "ens0 9000, ens1 1500")));
}

TEST_F(DeviceChecks, ASlowerRailAndOtherFirmware) {
  WritePort("rate", "200 Gb/sec (4X HDR)\n");
  root_.Write("sys/class/infiniband/mlx5_1/fw_ver", "28.38.0\n");
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kWarning, "rate-differs", "200"),
                                           Is(Severity::kWarning, "firmware-differs", "28.38.0")));
}

TEST_F(DeviceChecks, HalfOfDcqcn) {
  WriteInterface("ecn/roce_rp/enable/3", "0\n");
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kWarning, "ecn-one-sided", "priority 3"),
                                           Is(Severity::kWarning, "ecn-differs", "ens1")));
}

TEST_F(DeviceChecks, NoneOfDcqcn) {
  for (const char* point : {"roce_np", "roce_rp"}) {
    for (const char* net : {"ens0", "ens1"}) {
      root_.Write(absl::StrCat("sys/class/net/", net, "/ecn/", point, "/enable/3"), "0\n");
    }
  }
  EXPECT_THAT(Ills(Examine()), ElementsAre(Is(Severity::kWarning, "ecn-off", "every priority"),
                                           Is(Severity::kWarning, "ecn-off", "every priority")));
}

TEST(RetransmissionChecks, WhereItIsOffAndWhereNicsDiffer) {
  Node node;
  node.devices.resize(3);
  for (int i = 0; i < 3; ++i) {
    node.devices[static_cast<size_t>(i)].name = absl::StrCat("mlx5_", i);
  }
  const auto examine = [&] {
    Findings findings;
    CheckRetransmission(node, findings);
    return findings;
  };
  EXPECT_THAT(examine(), IsEmpty());  // nothing is known
  node.devices[0].adaptive_retransmission = net::NicSetting{1, "0000:10:00.0", true};
  EXPECT_THAT(examine(), IsEmpty());
  node.devices[1].adaptive_retransmission = net::NicSetting{0, "0000:11:00.0", true};
  EXPECT_THAT(examine(),
              ElementsAre(Is(Severity::kNote, "adaptive-retransmission-off", "whole timeout"),
                          Is(Severity::kWarning, "adaptive-retransmission-differs",
                             "mlx5_0 on, mlx5_1 off")));
}

TEST_F(DeviceChecks, OldCountersAreNotesAndGrowingOnesWarnings) {
  WritePort("hw_counters/out_of_sequence", "7\n");
  PortCounters before = CountersOf(*net::ReadRdmaDevices(root_.path()));
  EXPECT_THAT(Examine(), Contains(Is(Severity::kNote, "counter-loss", "out_of_sequence is 7")));
  EXPECT_THAT(Ills(Examine()), IsEmpty());
  WritePort("hw_counters/out_of_sequence", "9\n");
  Findings findings;
  CheckGrowth(before, CountersOf(*net::ReadRdmaDevices(root_.path())), absl::Seconds(10), findings);
  EXPECT_THAT(findings,
              ElementsAre(Is(Severity::kWarning, "counter-loss-grows", "grew by 2 in 10s")));
}

TEST(LimitChecks, WhatIsTooSmallIsSaidWithItsSize) {
  Node node;
  node.devices.emplace_back();
  node.limits.locked_memory = KiB(64);
  node.limits.shared_memory = MiB(64);
  node.limits.shared_memory_free = MiB(63);
  Findings findings;
  CheckLimits(node, findings);
  EXPECT_THAT(findings, ElementsAre(Is(Severity::kError, "memlock", "64 KiB"),
                                    Is(Severity::kWarning, "shm", "63 MiB free of 64 MiB")));
  node.limits = Limits();
  node.limits.shared_memory = node.limits.shared_memory_free = GiB(8);
  findings.clear();
  CheckLimits(node, findings);
  EXPECT_THAT(findings, IsEmpty());
}

TEST(SoftwareChecks, APluginThatWasAskedForAndDoesNotLoadIsAnError) {
  Node node;
  node.plugin_wish = "weft";
  node.plugins = {{"weft", "", {}, "no such file"},
                  {"libnccl-net-weft.so", "", {}, "no such file"}};
  Findings findings;
  CheckSoftware(node, findings);
  EXPECT_THAT(findings, ElementsAre(Is(Severity::kError, "plugin-missing", "no such file")));
  node.plugins[1].path = "/opt/libnccl-net-weft.so";
  findings.clear();
  CheckSoftware(node, findings);
  EXPECT_THAT(findings, ElementsAre(Is(Severity::kError, "plugin-empty", "exports no")));
  node.plugins[1].tables = {"v12", "v11"};
  findings.clear();
  CheckSoftware(node, findings);
  EXPECT_THAT(findings, ElementsAre(Is(Severity::kNote, "plugin", "v12, v11")));
  // NCCL passes over a library of its list that has no table.
  node.plugins.insert(node.plugins.begin(), {"libempty.so", "/opt/libempty.so", {}, ""});
  findings.clear();
  CheckSoftware(node, findings);
  EXPECT_THAT(findings, ElementsAre(Is(Severity::kNote, "plugin", "/opt/libnccl-net-weft.so")));
}

TEST(SoftwareChecks, GpuMemoryThatNoNicCanReach) {
  Node node;
  node.devices.emplace_back();
  node.gpu_direct.driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54";
  Findings findings;
  CheckPlaces(node, findings);
  EXPECT_THAT(findings, ElementsAre(Is(Severity::kWarning, "gpudirect", "535.54")));
  node.gpu_direct.peer_memory = "nvidia_peermem";
  findings.clear();
  CheckPlaces(node, findings);
  EXPECT_THAT(Ills(findings), IsEmpty());
}

TEST(NetPlugins, AreNamedAsNcclNamesThem) {
  EXPECT_THAT(NetPluginNames(""), ElementsAre("libnccl-net.so"));
  EXPECT_THAT(NetPluginNames("NONE"), IsEmpty());
  EXPECT_THAT(NetPluginNames("weft, other"),
              ElementsAre("weft", "libnccl-net-weft.so", "other", "libnccl-net-other.so"));
  EXPECT_THAT(NetPluginNames("libmine.so,/opt/x.so"), ElementsAre("libmine.so", "/opt/x.so"));
}

TEST(NetPlugins, OneThatEndsTheProcessEndsOnlyAChild) {
  auto found = FindNetPlugins(WEFT_ABORTING_PLUGIN);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].path, "");
  EXPECT_THAT(found[0].error, HasSubstr("ended the process: Aborted"));
  setenv("ABORTING_PLUGIN_EXITS", "7", 1);
  found = FindNetPlugins(WEFT_ABORTING_PLUGIN);
  unsetenv("ABORTING_PLUGIN_EXITS");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].path, "");
  EXPECT_EQ(found[0].error, "loading it ended the process with exit status 7");
}

}  // namespace
}  // namespace weft::doctor
