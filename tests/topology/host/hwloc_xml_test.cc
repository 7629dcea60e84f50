#include "topology/host/hwloc_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tests/topology/host/machines.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string ErrorOf(const std::string& xml) {
  absl::StatusOr<Machine> machine = MachineFromHwlocXml(xml);
  EXPECT_FALSE(machine.ok());
  return std::string(machine.status().message());
}

// DualSocket's XML with one text replaced by another, which must be there.
std::string Altered(const std::string& from, const std::string& to) {
  std::string xml = DualSocket().ToXml();
  const size_t at = xml.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return xml.replace(at, from.size(), to);
}

TEST(HwlocXml, FindsPackagesNodesCachesAndCores) {
  Machine machine = Load(DgxLike());
  EXPECT_EQ(machine.name(), "node7");
  EXPECT_THAT(machine.packages(), SizeIs(2));
  ASSERT_THAT(machine.numa_nodes(), SizeIs(2));
  EXPECT_EQ(machine.numa_nodes()[1].package, 1);
  EXPECT_EQ(weft::ToString(machine.numa_nodes()[1].cpus), "8-15");
  EXPECT_EQ(machine.numa_nodes()[1].memory, GiB(256));
  ASSERT_THAT(machine.caches(), SizeIs(2));
  EXPECT_EQ(machine.caches()[0].size, MiB(32));
  EXPECT_EQ(machine.cpu().vendor, "GenuineIntel");
  EXPECT_EQ(machine.cpu().model, 143);
  EXPECT_EQ(machine.Describe(),
            "2 packages, 2 NUMA nodes, 8 cores, 16 CPUs (0-15), 8 GPUs, 8 NICs");
}

TEST(HwlocXml, ASwitchIsOneDeviceAndARootPortNone) {
  Machine machine = Load(DualSocket());
  const Device& gpu = machine.device(*machine.Find("gpu0"));
  ASSERT_GE(gpu.parent, 0);
  const Device& above = machine.device(gpu.parent);
  EXPECT_EQ(above.kind, DeviceKind::kSwitch);
  EXPECT_EQ(ToString(*above.address), "0000:17:00.0") << "its upstream port";
  EXPECT_EQ(above.parent, -1);
  EXPECT_EQ(machine.device(*machine.Find("mlx5_1")).parent, -1) << "behind a root port alone";
}

TEST(HwlocXml, DevicesAreAtTheNumaNodeThatTheirBusHangsOn) {
  Machine machine = Load(AmdFourNodes());
  EXPECT_EQ(machine.device(*machine.Find("gpu1")).numa, 2);
  EXPECT_EQ(machine.device(*machine.Find("mlx5_3")).numa, 6);
}

TEST(HwlocXml, WhatHangsOnTheMachineHasNoNumaNodeUnlessThereIsOnlyOne) {
  EXPECT_EQ(Load(CloudVm()).device(*Load(CloudVm()).Find("eth0")).numa, -1);
  TestMachine one = CloudVm();
  one.packages = 1;
  EXPECT_EQ(Load(one).device(*Load(one).Find("eth0")).numa, 0);
}

TEST(HwlocXml, RdmaPortsAreTheNicsPortsElseItsInterfacesAre) {
  Machine machine = Load(DualSocket());
  const Device& rdma = machine.device(*machine.Find("mlx5_0"));
  ASSERT_THAT(rdma.ports, SizeIs(1));
  EXPECT_TRUE(rdma.ports[0].rdma);
  EXPECT_EQ(rdma.ports[0].guid, "0x506b4b0300ab1234");
  EXPECT_EQ(rdma.ports[0].up, true);
  EXPECT_THAT(rdma.interfaces, ElementsAre("ens1"));
  Machine vm = Load(CloudVm());
  const Device& plain = vm.device(*vm.Find("nic0"));
  ASSERT_THAT(plain.ports, SizeIs(1));
  EXPECT_FALSE(plain.ports[0].rdma);
  EXPECT_EQ(plain.ports[0].name, "eth0");
}

TEST(HwlocXml, TheWidestLinkOfTheSpeedIsTaken) {
  Machine machine = Load(DualSocket());
  EXPECT_EQ(machine.device(*machine.Find("gpu0")).link, (PciLink{16, 16}));
  Machine vm = Load(CloudVm());
  EXPECT_FALSE(vm.device(*vm.Find("gpu0")).link.known());
}

TEST(HwlocXml, AManagementControllersDisplayIsNoGpu) {
  TestMachine machine = DualSocket();
  machine.pci.push_back({1, {{"0000:a0:00.0", "0300 [1a03:2000] [1a03:2000] 52"}}});
  EXPECT_THAT(Load(machine).gpus(), SizeIs(2));
}

TEST(HwlocXml, AnAcceleratorOfAmdIsAGpuByItsClass) {
  TestMachine machine = DualSocket();
  machine.pci.push_back({1, {{"0000:a0:00.0", "1200 [1002:74a1] [1002:74a1] 00"}}});
  EXPECT_THAT(Load(machine).gpus(), SizeIs(3));
}

TEST(HwlocXml, VirtualInterfacesAreNoNics) {
  std::string xml =
      Altered("<object type=\"Package\" os_index=\"0\"",
              "<object type=\"OSDev\" gp_index=\"7\" name=\"docker0\" osdev_type=\"2\"/>\n"
              "<object type=\"Package\" os_index=\"0\"");
  EXPECT_THAT(MachineFromHwlocXml(xml)->nics(), SizeIs(2));
}

TEST(HwlocXml, ASwitchWithNothingThatCountsIsLeftOut) {
  TestMachine machine;
  machine.pci.push_back(
      {0,
       {RootPort("0000:16:01.0",
                 SwitchPart("0000:17:00.0", "18",
                            {{"0000:19:00.0", "0880 [8086:0b00] [8086:0000] 00"}}))}});
  EXPECT_THAT(Load(machine).devices(), IsEmpty());
}

TEST(HwlocXml, NvLinksComeFromTheMatrixThatNvmlGave) {
  TestMachine description = DualSocket();
  std::string xml = description.ToXml();
  auto gp_of = [&](const std::string& busid) {
    const size_t at = xml.rfind("gp_index=\"", xml.find("pci_busid=\"" + busid));
    return xml.substr(at + 10, xml.find('"', at + 10) - at - 10);
  };
  const std::string matrix =
      "<distances2 type=\"PCIDev\" nbobjs=\"2\" kind=\"10\" name=\"NVLinkBandwidth\" "
      "indexing=\"gp\"><indexes length=\"9\">" +
      gp_of("0000:19:00.0") + " " + gp_of("0000:1a:00.0") +
      " </indexes><u64values length=\"28\">1000000 100000 100000 1000000 "
      "</u64values></distances2>\n</topology>";
  Machine machine = *MachineFromHwlocXml(absl::StrReplaceAll(xml, {{"</topology>", matrix}}));
  const Device& gpu = machine.device(machine.gpus()[0]);
  ASSERT_THAT(gpu.nvlinks, SizeIs(1));
  EXPECT_EQ(gpu.nvlinks[0].target, "0000:1a:00.0");
  EXPECT_EQ(gpu.nvlinks[0].count, 4) << "100 GB/s of 25 a link";
}

TEST(HwlocXml, ErrorsNameLineElementAndReason) {
  EXPECT_THAT(ErrorOf(Altered("pci_busid=\"0000:19:00.0\"", "pci_busid=\"19:zz.0\"")),
              AllOf(HasSubstr("line "), HasSubstr("<object> pci_busid '19:zz.0'"),
                    HasSubstr("0000:3b:00.0")));
  EXPECT_THAT(ErrorOf(Altered("0302 [10de:2330]", "0302 [10de]")), HasSubstr("pci_type"));
  EXPECT_THAT(ErrorOf(Altered("cpuset=\"0x000000ff", "cpuset=\"0xf...f")), HasSubstr("cpuset"));
  EXPECT_THAT(
      ErrorOf(Altered("os_index=\"1\" cpuset=\"0x0000ff00\" local", "cpuset=\"0x0\" local")),
      HasSubstr("<object> has no os_index"));
  EXPECT_THAT(ErrorOf(Altered("0000:1a:00.0", "0000:19:00.0")), HasSubstr("occurs twice"));
  EXPECT_THAT(ErrorOf(Altered("bridge_type=\"0-1\"", "bridge_type=\"2\"")),
              HasSubstr("bridge_type"));
}

TEST(HwlocXml, TheLineIsTheElements) {
  EXPECT_THAT(ErrorOf("<topology version=\"2.0\">\n<object type=\"Machine\" cpuset=\"0x1\">\n"
                      "<object type=\"Bridge\" bridge_type=\"0-1\">\n\n"
                      "<object type=\"PCIDev\"/>\n</object></object></topology>"),
              ::testing::StartsWith("line 5: <object> has no pci_busid"));
}

TEST(HwlocXml, RefusesWhatIsNoHwlocTwoFile) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("<system version=\"1\"/>"), HasSubstr("<system> is NCCL's format"));
  EXPECT_THAT(ErrorOf("<svg/>"), HasSubstr("is not hwloc 2's format"));
  EXPECT_THAT(ErrorOf("<topology><object type=\"Machine\"/></topology>"), HasSubstr("lstopo"));
  EXPECT_THAT(ErrorOf("<topology version=\"2.0\">\n<object"), HasSubstr("line 2"));
}

TEST(HwlocXml, RefusesMoreThanAHostCanHave) {
  TestMachine machine;
  for (int i = 0; i < 2100; ++i) {
    std::string busid = absl::StrFormat("%04x:%02x:%02x.0", i / 8192, i / 32, i % 32);
    machine.pci.push_back({0, {NicPart(busid, "", "")}});
  }
  EXPECT_THAT(ErrorOf(machine.ToXml()), HasSubstr("2100 devices; at most 2048"));
  std::string many;
  for (int i = 0; i < 8193; ++i) many += "<object type=\"Core\" cpuset=\"0x1\"/>\n";
  EXPECT_THAT(ErrorOf("<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x1\">\n" +
                      many + "</object></topology>"),
              ::testing::StartsWith("line 8194: <object> is Core 8193; at most 8192"));
}

TEST(HwlocXml, RefusesBottomlessNesting) {
  std::string xml = "<topology version=\"2.0\">";
  for (int i = 0; i < 100000; ++i) xml += "<object type=\"Group\">";
  EXPECT_FALSE(MachineFromHwlocXml(xml).ok());
  for (int i = 0; i < 100000; ++i) xml += "</object>";
  EXPECT_THAT(ErrorOf(xml + "</topology>"), HasSubstr("more than 64 elements deep"));
}

}  // namespace
}  // namespace weft::topology
