#include "topology/host/distance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/topology/host/machines.h"
#include "topology/host/nccl_machine.h"
#include "topology/host/nccl_xml.h"

namespace weft::topology {
namespace {

// "gpu0 nic0" -> "PIX".
std::string Between(const Machine& machine, const std::string& a, const std::string& b) {
  return ToString(Distances(machine).Between(*machine.Find(a), *machine.Find(b)).type);
}

Machine FromNccl(const std::string& text) {
  absl::StatusOr<XmlElement> system = ParseNcclXml(text);
  EXPECT_TRUE(system.ok()) << system.status();
  absl::StatusOr<Machine> machine = MachineFromNccl(*system);
  EXPECT_TRUE(machine.ok()) << machine.status();
  return *std::move(machine);
}

TEST(Distance, OneSwitchBetweenIsPix) {
  Machine machine = Load(DgxLike());
  EXPECT_EQ(Between(machine, "gpu0", "nic0"), "PIX");
  EXPECT_EQ(Between(machine, "gpu0", "gpu1"), "PIX");
  EXPECT_EQ(Distances(machine).Route(*machine.Find("gpu0"), *machine.Find("nic1")), "switch0");
}

TEST(Distance, TheSameDeviceIsLoc) { EXPECT_EQ(Between(Load(DgxLike()), "gpu3", "gpu3"), "LOC"); }

TEST(Distance, TwoSwitchesOfOneNumaNodeArePhb) {
  Machine machine = Load(DgxLike());
  EXPECT_EQ(Between(machine, "gpu0", "nic2"), "PHB");
  EXPECT_EQ(Distances(machine).Route(*machine.Find("gpu0"), *machine.Find("nic2")),
            "switch0, NUMA node 0, switch1");
}

TEST(Distance, FromNumaNodeToNumaNodeIsSys) {
  Machine machine = Load(DgxLike());
  EXPECT_EQ(Between(machine, "gpu0", "nic7"), "SYS");
  EXPECT_EQ(Between(machine, "gpu0", "gpu4"), "SYS");
}

TEST(Distance, NumaNodesOfOnePackageAreSysForNccl) {
  Machine machine = Load(AmdFourNodes());
  EXPECT_EQ(Between(machine, "gpu0", "nic1"), "SYS");
  EXPECT_EQ(Between(machine, "gpu0", "nic0"), "PHB") << "two root ports of one node";
}

TEST(Distance, SeveralSwitchesWithoutACpuArePxb) {
  TestMachine nested;
  nested.pci.push_back(
      {0,
       {RootPort("0000:16:01.0",
                 SwitchPart("0000:17:00.0", "18",
                            {SwitchPart("0000:19:00.0", "1a", {GpuPart("0000:1b:00.0")}),
                             SwitchPart("0000:1c:00.0", "1d",
                                        {NicPart("0000:1e:00.0", "mlx5_0", "")})}))}});
  Machine machine = Load(nested);
  EXPECT_EQ(Between(machine, "gpu0", "nic0"), "PXB");
  EXPECT_EQ(Distances(machine).Route(*machine.Find("gpu0"), *machine.Find("nic0")),
            "switch1, switch0, switch2");
}

TEST(Distance, ABroadcomSwitchOfTwoLevelsCountsAsOne) {
  auto broadcom = [](PciPart part, const char* type) {
    part.type = type;
    return part;
  };
  const char* upper = "0604 [1000:c030] [1000:0004] b0";
  const char* lower = "0604 [1000:c030] [1000:1004] b0";
  TestMachine nested;
  nested.pci.push_back(
      {0,
       {RootPort("0000:16:01.0",
                 broadcom(SwitchPart(
                              "0000:17:00.0", "18",
                              {broadcom(SwitchPart("0000:19:00.0", "1a", {GpuPart("0000:1b:00.0")}),
                                        lower),
                               broadcom(SwitchPart("0000:1c:00.0", "1d",
                                                   {NicPart("0000:1e:00.0", "mlx5_0", "")}),
                                        lower)}),
                          upper))}});
  EXPECT_EQ(Between(Load(nested), "gpu0", "nic0"), "PIX");
}

TEST(Distance, TwoFunctionsOfOneCardArePix) {
  TestMachine dual;
  dual.pci.push_back({0,
                      {RootPort("0000:16:01.0", NicPart("0000:17:00.0", "mlx5_0", "")),
                       RootPort("0000:16:02.0", NicPart("0000:17:00.1", "mlx5_1", ""))}});
  EXPECT_EQ(Between(Load(dual), "nic0", "nic1"), "PIX");
}

TEST(Distance, WithoutLocalityIsPhbAndSaysThatItIsAGuess) {
  Machine machine = Load(CloudVm());
  Distances distances(machine);
  const Distance distance = distances.Between(*machine.Find("gpu0"), *machine.Find("eth0"));
  EXPECT_EQ(distance.type, PathType::kPhb);
  EXPECT_FALSE(distance.known);
}

TEST(Distance, AHostOfOneNumaNodeNeedsToTellNoLocality) {
  TestMachine one = CloudVm();
  one.packages = 1;
  Machine machine = Load(one);
  const Distance distance =
      Distances(machine).Between(*machine.Find("gpu0"), *machine.Find("eth0"));
  EXPECT_EQ(distance.type, PathType::kPhb);
  EXPECT_TRUE(distance.known);
}

// Two GPUs with NVLink to each other, one to the second only, one with none.
constexpr char kNvLinks[] = R"(<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64">
<pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="80"><nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>
<nvlink target="0000:03:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:03:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="2" sm="80"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:04:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="3" sm="80"/></pci>
<pci busid="0000:05:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
<nic><net name="mlx5_0" dev="0" speed="200000"/></nic></pci>
</cpu></system>)";

TEST(Distance, NvLinkIsNvlAndOverAnotherGpuNvb) {
  Machine machine = FromNccl(kNvLinks);
  EXPECT_EQ(Between(machine, "gpu0", "gpu1"), "NVL");
  EXPECT_EQ(Between(machine, "gpu0", "gpu2"), "NVB");
  EXPECT_EQ(Between(machine, "gpu0", "gpu3"), "PHB");
  EXPECT_EQ(Distances(machine).Between(*machine.Find("gpu0"), *machine.Find("gpu1")).bandwidth,
            Bandwidth::BytesPerSecond(80e9))
      << "four links of 20 GB/s";
}

TEST(Distance, NoPathLeadsThroughAGpuToANic) {
  Machine machine = FromNccl(kNvLinks);
  EXPECT_EQ(Between(machine, "gpu0", "nic0"), "PHB");
  EXPECT_EQ(Distances(machine).Route(*machine.Find("gpu0"), *machine.Find("nic0")), "NUMA node 0");
}

TEST(Distance, AnNvSwitchJoinsAllItsGpus) {
  Machine machine = FromNccl(R"(<system version="1"><cpu numaid="0" arch="x86_64">
<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90">
<nvlink target="0000:c3:00.0" count="18" tclass="0x068000"/></gpu></pci></cpu>
<cpu numaid="1" arch="x86_64"><pci busid="0000:81:00.0" class="0x030200"><gpu dev="1" sm="90">
<nvlink target="0000:c4:00.0" count="18" tclass="0x068000"/></gpu></pci></cpu></system>)");
  EXPECT_EQ(Between(machine, "gpu0", "gpu1"), "NVL");
}

TEST(Distance, OverTheCpusOwnLinkToItsGpuIsC2cAndToANicP2c) {
  Machine machine = FromNccl(R"(<system version="1"><cpu numaid="0" arch="arm64">
<pci busid="0009:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="90"><c2c bw="44712" count="10"/></gpu></pci>
<pci busid="0000:01:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
<nic><net name="mlx5_0" dev="0" speed="400000"/></nic></pci></cpu></system>)");
  Distances distances(machine);
  EXPECT_EQ(distances.ToNuma(*machine.Find("gpu0"), 0).type, PathType::kC2c);
  EXPECT_EQ(Between(machine, "gpu0", "nic0"), "P2C");
}

TEST(Distance, IsTheSameThereAndBack) {
  for (const TestMachine& description : {DgxLike(), DualSocket(), CloudVm(), AmdFourNodes()}) {
    Machine machine = Load(description);
    Distances distances(machine);
    std::vector<int> all = machine.gpus();
    all.insert(all.end(), machine.nics().begin(), machine.nics().end());
    for (int a : all) {
      for (int b : all) {
        EXPECT_EQ(distances.Between(a, b).type, distances.Between(b, a).type) << a << " " << b;
        EXPECT_EQ(distances.Between(a, b).hops, distances.Between(b, a).hops) << a << " " << b;
      }
    }
  }
}

TEST(Distance, BandwidthIsThatOfTheNarrowestLinkByNcclsFigures) {
  Machine machine = Load(DgxLike());
  Distances distances(machine);
  // 16 GT/s x16 counts as 16 * 120 / 80 GB/s; Sapphire Rapids' links as 22 GB/s.
  EXPECT_EQ(distances.Between(*machine.Find("gpu0"), *machine.Find("nic0")).bandwidth,
            Bandwidth::BytesPerSecond(24e9));
  EXPECT_EQ(distances.Between(*machine.Find("gpu0"), *machine.Find("nic7")).bandwidth,
            Bandwidth::BytesPerSecond(22e9));
}

TEST(NcclBandwidth, OfWhatIsNotKnownIsThatOfGenerationThree) {
  EXPECT_EQ(NcclBandwidth({0, 0}), Bandwidth::BytesPerSecond(12e9));
  EXPECT_EQ(NcclBandwidth({32, 8}), Bandwidth::BytesPerSecond(24e9));
}

}  // namespace
}  // namespace weft::topology
