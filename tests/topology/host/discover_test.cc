#include "topology/host/discover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scratch_folder.h"
#include "tests/topology/host/machines.h"
#include "topology/host/cpu_mask.h"
#include "topology/host/hwloc_xml.h"
#include "topology/host/nccl_machine.h"
#include "topology/host/nccl_xml.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Device& Find(const MachineParts& parts, const std::string& port) {
  for (const Device& device : parts.devices) {
    if (!device.ports.empty() && device.ports[0].name == port) return device;
  }
  ADD_FAILURE() << "no port " << port;
  return parts.devices[0];
}

TEST(DiscoverMachine, SeesTheCoresThatWeMayUse) {
  absl::StatusOr<Machine> machine = DiscoverMachine();
  ASSERT_TRUE(machine.ok()) << machine.status();
  ASSERT_TRUE(machine->host().has_value());
  EXPECT_EQ(machine->host()->cpus(), Host::Discover()->cpus());
  EXPECT_GE(machine->numa_nodes().size(), 1u);
}

TEST(MachineFromSynthetic, IsWhatTheDescriptionSays) {
  Machine machine = *MachineFromSynthetic("pack:2 numa:2 core:2 pu:2");
  EXPECT_EQ(machine.numa_nodes().size(), 4u);
  EXPECT_EQ(machine.host()->Describe(), "2 packages, 4 NUMA nodes, 8 cores, 16 CPUs (0-15)");
  EXPECT_THAT(machine.devices(), IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(MachineFromSynthetic("two packages").status()));
}

TEST(AddFromSys, LinksAsTheyAreAndAsBothEndsCouldBe) {
  ScratchFolder sys;
  const std::string port = "devices/pci0000:80/0000:80:01.0/";
  sys.Write(port + "max_link_speed", "32.0 GT/s PCIe\n");
  sys.Write(port + "max_link_width", "8\n");
  sys.Write(port + "0000:81:00.0/current_link_speed", "8.0 GT/s PCIe\n");
  sys.Write(port + "0000:81:00.0/current_link_width", "4\n");
  sys.Write(port + "0000:81:00.0/max_link_speed", "16.0 GT/s PCIe\n");
  sys.Write(port + "0000:81:00.0/max_link_width", "16\n");
  sys.Link("bus/pci/devices/0000:81:00.0", port + "0000:81:00.0");
  MachineParts parts = *PartsFromHwlocXml(DualSocket().ToXml());
  internal::AddFromSys(sys.path(), parts);
  const Device& nic = Find(parts, "mlx5_1");
  EXPECT_EQ(nic.link, (PciLink{8, 4}));
  EXPECT_EQ(nic.link_max, (PciLink{16, 8})) << "the lesser of the two ends";
  EXPECT_EQ(Find(parts, "mlx5_0").link, (PciLink{16, 16})) << "what is not there stays";
}

TEST(AddFromSys, RateStateAndGuidOfRdmaPorts) {
  ScratchFolder sys;
  sys.Write("class/infiniband/mlx5_1/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  sys.Write("class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  sys.Write("class/infiniband/mlx5_1/node_guid", "5c8a:9f00:03b0:ea0c\n");
  MachineParts parts = *PartsFromHwlocXml(DualSocket().ToXml());
  internal::AddFromSys(sys.path(), parts);
  const NicPort& port = Find(parts, "mlx5_1").ports[0];
  EXPECT_EQ(port.bandwidth, Bandwidth::GigabitsPerSecond(400));
  EXPECT_EQ(port.up, false);
  EXPECT_EQ(port.guid, "0x5c8a9f0003b0ea0c");
}

TEST(AddFromSys, SpeedOfInterfacesUnlessTheDriverDoesNotKnowIt) {
  ScratchFolder sys;
  sys.Write("class/net/eth0/speed", "-1\n");
  sys.Write("class/net/eth0/operstate", "up\n");
  MachineParts parts = *PartsFromHwlocXml(CloudVm().ToXml());
  internal::AddFromSys(sys.path(), parts);
  EXPECT_EQ(Find(parts, "eth0").ports[0].bandwidth, Bandwidth());
  EXPECT_EQ(Find(parts, "eth0").ports[0].up, true);
  sys.Write("class/net/eth0/speed", "25000\n");
  internal::AddFromSys(sys.path(), parts);
  EXPECT_EQ(Find(parts, "eth0").ports[0].bandwidth, Bandwidth::GigabitsPerSecond(25));
}

TEST(ReadFile, ErrorsNameTheFileAndTheLine) {
  ScratchFolder folder;
  EXPECT_THAT(std::string(ReadHwlocFile(folder / "none.xml").status().message()),
              HasSubstr("none.xml"));
  folder.Write("bad.xml", "<topology version=\"2.0\">\n<object/>\n</topology>\n");
  EXPECT_THAT(std::string(ReadHwlocFile(folder / "bad.xml").status().message()),
              AllOf(HasSubstr("bad.xml: "), HasSubstr("Machine")));
  folder.Write("nccl.xml", "<system version=\"1\">\n<cpu/>\n</system>\n");
  EXPECT_THAT(std::string(ReadNcclFile(folder / "nccl.xml").status().message()),
              HasSubstr("nccl.xml: line 2: <cpu> has no numaid"));
  EXPECT_FALSE(ReadNcclFile(folder.path()).ok()) << "a folder";
}

TEST(ReadFile, ReadsWhatWasWritten) {
  ScratchFolder folder;
  folder.Write("hwloc.xml", DgxLike().ToXml());
  absl::StatusOr<Machine> machine = ReadHwlocFile(folder / "hwloc.xml");
  ASSERT_TRUE(machine.ok()) << machine.status();
  folder.Write("nccl.xml", *NcclXmlText(NcclFromMachine(*machine)));
  EXPECT_EQ(ReadNcclFile(folder / "nccl.xml")->nics().size(), 8u);
}

TEST(PciAddress, ReadsTheFormsThatAreInUse) {
  const PciAddress address{0, 0x3b, 0, 1};
  EXPECT_EQ(ParsePciAddress("0000:3b:00.1"), address);
  EXPECT_EQ(ParsePciAddress("3B:00.1"), address);
  EXPECT_EQ(ParsePciAddress("00000000:3B:00.1"), address) << "NVML's";
  EXPECT_EQ(ToString(address), "0000:3b:00.1");
  EXPECT_EQ(ToString(*ParsePciAddress("10000:e1:00.0")), "10000:e1:00.0") << "VMD's";
  for (const char* bad : {"", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "g:00.0", "a:b:c:d.0",
                          "fffffff:ffff:ff", "0000:3b:00.0 "}) {
    EXPECT_FALSE(ParsePciAddress(bad).has_value()) << bad;
  }
}

TEST(PciLink, BandwidthIsAfterLineCoding) {
  EXPECT_NEAR((PciLink{2.5, 1}).bandwidth().bytes_per_second(), 0.25e9, 1e3);
  EXPECT_NEAR((PciLink{16, 16}).bandwidth().bytes_per_second(), 31.5e9, 0.01e9);
  EXPECT_NEAR((PciLink{32, 16}).bandwidth().bytes_per_second(), 63.0e9, 0.02e9);
  EXPECT_EQ((PciLink{17, 16}).bandwidth(), Bandwidth());
  EXPECT_EQ(LinkOfBandwidth((PciLink{32, 16}).bandwidth()), (PciLink{32, 16}));
  EXPECT_EQ(LinkOfBandwidth(Bandwidth::BytesPerSecond(4e9)), (PciLink{2.5, 16}))
      << "the widest of those that give 4 GB/s";
  EXPECT_EQ(LinkOfBandwidth((PciLink{8, 4}).bandwidth()), (PciLink{8, 4})) << "a little less";
  EXPECT_EQ(LinkOfBandwidth((PciLink{16, 4}).bandwidth(), 4), (PciLink{16, 4}));
}

TEST(CpuMask, ReadsHwlocsAndNcclsForms) {
  EXPECT_THAT(*ParseCpuMask("0x00000003"), ElementsAre(0, 1));
  EXPECT_THAT(*ParseCpuMask("00000001,80000000"), ElementsAre(31, 32));
  EXPECT_THAT(*ParseCpuMask("0x1,,0x1"), ElementsAre(0, 64)) << "hwloc leaves words of zero out";
  EXPECT_THAT(*ParseCpuMask("0"), IsEmpty());
  for (const char* bad : {"", "0xf...f", "123456789", "0x", "1;2", "-1"}) {
    EXPECT_FALSE(ParseCpuMask(bad).has_value()) << bad;
  }
  EXPECT_FALSE(ParseCpuMask(std::string(3000, ',')).has_value());
}

TEST(CpuMask, WritesWhatItReads) {
  for (const CpuSet& cpus : {CpuSet{}, CpuSet{0}, CpuSet{31, 32}, CpuSet{5, 200, 8191}}) {
    EXPECT_EQ(ParseCpuMask(CpuMaskText(cpus)), cpus);
  }
  EXPECT_EQ(CpuMaskText({32}), "00000001,00000000");
}

}  // namespace
}  // namespace weft::topology
