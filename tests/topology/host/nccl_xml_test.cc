#include "topology/host/nccl_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/topology/host/machines.h"
#include "topology/host/distance.h"
#include "topology/host/nccl_machine.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// As NCCL 2.28 dumps a node of two GPUs and two NICs; with an attribute and an element of tomorrow.
constexpr char kDump[] = R"(<system version="1">
  <cpu host_hash="0x9f2f40a1b2c3d4e5" numaid="0" affinity="00000000,000000ff,00000000,000000ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:43:00.0" class="0x060400" vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0x2004" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:45:00.0" class="0x030200" vendor="0x10de" device="0x20b0" subsystem_vendor="0x10de" subsystem_device="0x134f" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:c6:00.0" count="2" tclass="0x068000"/>
          <nvlink target="0000:c7:00.0" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:47:00.0" class="0x020700" vendor="0x15b3" device="0x101b" subsystem_vendor="0x15b3" subsystem_device="0x0007" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" latency="0" speed="200000" port="1" guid="0x5c8a9f0003b0ea0c" maxconn="131072" gdr="1" net="1" tomorrow="x"/>
        </nic>
      </pci>
      <future kind="1"/>
    </pci>
  </cpu>
  <cpu host_hash="0x9f2f40a1b2c3d4e5" numaid="1" affinity="000000ff,00000000,000000ff,00000000" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:c1:00.0" class="0x030200" vendor="0x10de" device="0x20b0" subsystem_vendor="0x10de" subsystem_device="0x134f" link_speed="" link_width="0">
      <gpu dev="1" sm="80" rank="1" gdr="1">
        <nvlink target="0000:c6:00.0" count="4" tclass="0x068000"/>
      </gpu>
    </pci>
    <nic>
      <net name="eth0" dev="1" latency="0" speed="-1" port="0" guid="0x1" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
)";

XmlElement Parsed(absl::string_view text) {
  absl::StatusOr<XmlElement> system = ParseNcclXml(text);
  EXPECT_TRUE(system.ok()) << system.status();
  return *std::move(system);
}

std::string ErrorOf(absl::string_view text) {
  absl::StatusOr<XmlElement> system = ParseNcclXml(text);
  absl::Status status = system.ok() ? MachineFromNccl(*system).status() : system.status();
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

std::string InSystem(absl::string_view inner) {
  return absl::StrCat("<system version=\"1\">\n<cpu numaid=\"0\">\n", inner, "\n</cpu></system>");
}

TEST(NcclXml, WhatIsWrittenIsByteForByteWhatWasRead) {
  absl::StatusOr<std::string> text = NcclXmlText(Parsed(kDump));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, kDump);
}

TEST(NcclXml, WhatWasWrittenReadsAsTheSame) {
  XmlElement system = Parsed(kDump);
  EXPECT_TRUE(SameXml(Parsed(*NcclXmlText(system)), system));
  XmlElement other = system;
  other.children[0].Set("numaid", "3");
  EXPECT_FALSE(SameXml(other, system));
}

TEST(NcclXml, CommentsAndADeclarationArePassedOver) {
  EXPECT_THAT(Parsed("<?xml version=\"1.0\"?>\n<!-- by hand -->\n<system version=\"1\"/>").children,
              IsEmpty());
}

TEST(NcclXml, ErrorsNameLineElementAndReason) {
  EXPECT_THAT(ErrorOf("<system version=\"2\"/>"), HasSubstr("line 1: <system> version 2"));
  EXPECT_THAT(ErrorOf("<topology version=\"2.0\"/>"), HasSubstr("hwloc's format"));
  EXPECT_THAT(ErrorOf(InSystem("<pci class=\"0x03\"/>")),
              AllOf(StartsWith("line 3: <pci> has no busid"), HasSubstr("0000:3b:00.0")));
  EXPECT_THAT(ErrorOf(InSystem("<pci busid=\"12\"/>")), HasSubstr("busid '12'"));
  EXPECT_THAT(ErrorOf(InSystem("<gpu dev=\"0\"/>")),
              HasSubstr("<gpu> stands in <cpu>, where NCCL passes over it; its place is in <pci>"));
  EXPECT_THAT(ErrorOf(InSystem("<nic><net dev=\"0\"/></nic>")), HasSubstr("<net> has no name"));
  EXPECT_THAT(ErrorOf(InSystem("<nic><net name=\"a\" speed=\"fast\"/></nic>")),
              HasSubstr("speed 'fast' is not a whole number"));
  EXPECT_THAT(ErrorOf("<system version=\"1\"><cpu numaid=\"0\" affinity=\"xyz\"/></system>"),
              HasSubstr("affinity 'xyz'"));
  EXPECT_THAT(ErrorOf("<system version=\"1\">\n<cpu numaid=\"0\">\n</system>"),
              HasSubstr("line 3"));
}

TEST(NcclXml, ErrorsOfWhatIsWellFormedButCannotBe) {
  EXPECT_THAT(ErrorOf(InSystem("<pci busid=\"01:00.0\"/>\n<pci busid=\"0000:01:00.0\"/>")),
              StartsWith("line 4: <pci> busid 0000:01:00.0 occurs twice"));
  EXPECT_THAT(ErrorOf("<system version=\"1\"><cpu numaid=\"0\"/><cpu numaid=\"0\"/></system>"),
              HasSubstr("second <cpu> with numaid 0"));
  EXPECT_THAT(ErrorOf("<system version=\"1\"><cpu numaid=\"0\" host_hash=\"0x1\"/>\n"
                      "<cpu numaid=\"0\" host_hash=\"0x2\"/></system>"),
              StartsWith("line 2: <cpu> host_hash 0x2 is another host"));
  EXPECT_THAT(ErrorOf(InSystem("<pci busid=\"01:00.0\"><gpu dev=\"0\"/><pci busid=\"02:00.0\"/>"
                               "</pci>")),
              HasSubstr("has a <gpu> and a <pci>"));
}

TEST(NcclXml, DoesNotWriteWhatNcclsReaderMisreads) {
  XmlElement system = Parsed(kDump);
  system.children[0].Set("vendor", "a\"b");
  EXPECT_THAT(std::string(NcclXmlText(system).status().message()), HasSubstr("<cpu>"));
  system = Parsed(kDump);
  system.children[0].Set("vendor", std::string(300, 'x'));
  EXPECT_THAT(std::string(NcclXmlText(system).status().message()), HasSubstr("300 bytes"));
  system = Parsed(kDump);
  while (system.children[0].children.size() <= 128) {
    system.children[0].children.push_back({"pci"});
  }
  EXPECT_THAT(std::string(NcclXmlText(system).status().message()), HasSubstr("129 children"));
}

TEST(NcclMachine, HasTheDevicesOfTheFile) {
  absl::StatusOr<Machine> machine = MachineFromNccl(Parsed(kDump));
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_THAT(machine->gpus(), SizeIs(2));
  EXPECT_THAT(machine->nics(), SizeIs(2));
  ASSERT_THAT(machine->numa_nodes(), SizeIs(2));
  EXPECT_EQ(weft::ToString(machine->numa_nodes()[0].cpus), "0-7,64-71");
  EXPECT_EQ(machine->Describe(), "2 NUMA nodes, 32 CPUs (0-7,32-39,64-71,96-103), 2 GPUs, 2 NICs");
  EXPECT_EQ(machine->cpu().family, 25) << "0xAF is 25 in NCCL's old numbering";
  const Device& gpu = machine->device(*machine->Find("gpu0"));
  EXPECT_EQ(gpu.compute_capability, 80);
  EXPECT_THAT(gpu.nvlinks, SizeIs(2));
  const Device& nic = machine->device(*machine->Find("mlx5_0"));
  EXPECT_EQ(nic.ports[0].bandwidth, Bandwidth::GigabitsPerSecond(200));
  EXPECT_EQ(nic.numa, 0);
  const Device& socket = machine->device(*machine->Find("eth0"));
  EXPECT_FALSE(socket.address.has_value());
  EXPECT_EQ(socket.numa, 1);
  EXPECT_EQ(LineRate(socket), Bandwidth()) << "speed -1 is not known";
}

TEST(NcclMachine, GpusAreNamedByTheirNumberNotByTheirPlace) {
  Machine machine =
      *MachineFromNccl(Parsed(InSystem("<pci busid=\"01:00.0\"><gpu dev=\"3\"/></pci>"
                                       "<pci busid=\"02:00.0\"><gpu dev=\"1\"/></pci>")));
  EXPECT_EQ(ToString(*machine.device(*machine.Find("gpu3")).address), "0000:01:00.0");
  EXPECT_EQ(machine.device(machine.gpus()[0]).name, "gpu1");
}

TEST(NcclMachine, ByClassAloneAFileNamesItsGpusAndNics) {
  // As cloud providers' files have it: no <gpu>, no <nic>; NCCL finds those itself.
  Machine machine = *MachineFromNccl(Parsed(InSystem(
      "<pci busid=\"0000:10:00.0\" class=\"0x060400\">"
      "<pci busid=\"0000:10:1c.0\" class=\"0x030000\" link_speed=\"8 GT/s\" link_width=\"16\"/>"
      "<pci busid=\"0000:10:1d.0\" class=\"0x02\" link_speed=\"8 GT/s\" "
      "link_width=\"16\"/></pci>")));
  ASSERT_THAT(machine.gpus(), SizeIs(1));
  ASSERT_THAT(machine.nics(), SizeIs(1));
  EXPECT_EQ(Distances(machine).Between(machine.gpus()[0], machine.nics()[0]).type, PathType::kPix);
}

// As Microsoft's file for NDv4 machines has it.
TEST(NcclMachine, CpusThatSeveralNodesHaveCountOnce) {
  std::string text = "<system version=\"1\">";
  for (int node = 0; node < 4; ++node) {
    absl::StrAppend(&text, "<cpu numaid=\"", node,
                    "\" affinity=\"0000ffff,0000ffff\"><pci busid=\"0", node, ":00.0\"><gpu dev=\"",
                    node, "\"/></pci></cpu>");
  }
  Machine machine = *MachineFromNccl(Parsed(text + "</system>"));
  EXPECT_EQ(weft::ToString(machine.host()->cpus()), "0-15,32-47");
  EXPECT_THAT(machine.host()->cpus(), SizeIs(32));
  EXPECT_EQ(weft::ToString(machine.numa_nodes()[3].cpus), "0-15,32-47");
}

TEST(NcclMachine, WithoutALocalityThereIsNoNumaNode) {
  Machine machine = *MachineFromNccl(
      Parsed("<system version=\"1\"><cpu numaid=\"-1\"><pci busid=\"01:00.0\"><gpu dev=\"0\"/>"
             "</pci></cpu></system>"));
  EXPECT_THAT(machine.numa_nodes(), IsEmpty());
  EXPECT_EQ(machine.device(machine.gpus()[0]).numa, -1);
}

// What hwloc told survives the way through NCCL's file, as far as that file can tell it.
TEST(NcclMachine, ThereAndBackKeepsDevicesAndDistances) {
  for (const TestMachine& description : {DgxLike(), DualSocket(), CloudVm(), AmdFourNodes()}) {
    Machine before = Load(description);
    absl::StatusOr<std::string> text = NcclXmlText(NcclFromMachine(before));
    ASSERT_TRUE(text.ok()) << text.status();
    absl::StatusOr<Machine> after = MachineFromNccl(Parsed(*text));
    ASSERT_TRUE(after.ok()) << after.status() << *text;
    Distances was(before);
    Distances is(*after);
    for (const std::vector<int>* list : {&before.gpus(), &before.nics()}) {
      for (int a : *list) {
        const Device& one = before.device(a);
        const int same = *after->Find(ToString(*one.address));
        EXPECT_EQ(after->device(same).name, one.name);
        EXPECT_EQ(after->device(same).identity, one.identity);
        EXPECT_EQ(after->device(same).link, one.link);
        for (int b : before.nics()) {
          const int other = *after->Find(ToString(*before.device(b).address));
          EXPECT_EQ(is.Between(same, other).type, was.Between(a, b).type);
          EXPECT_EQ(is.Between(same, other).bandwidth, was.Between(a, b).bandwidth);
        }
      }
    }
    EXPECT_TRUE(SameXml(NcclFromMachine(*after).children[0], NcclFromMachine(before).children[0]));
  }
}

}  // namespace
}  // namespace weft::topology
