#include "topology/host/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/topology/host/machines.h"
#include "topology/host/hwloc_xml.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<Finding> Findings(const Machine& machine) {
  Distances distances(machine);
  return FindingsOf(machine, distances, NicsOfGpus(machine, distances));
}

std::vector<Finding> OfKind(const Machine& machine, FindingKind kind) {
  std::vector<Finding> found;
  for (const Finding& finding : Findings(machine)) {
    if (finding.kind == kind) found.push_back(finding);
  }
  return found;
}

// DgxLike with its first NIC altered.
Machine WithNic(void (*alter)(Device& nic)) {
  MachineParts parts = *PartsFromHwlocXml(DgxLike().ToXml());
  for (Device& device : parts.devices) {
    if (device.kind != DeviceKind::kNic) continue;
    alter(device);
    break;
  }
  return *Machine::Create(std::move(parts));
}

TEST(Findings, AWellBuiltHostHasNone) { EXPECT_THAT(Findings(Load(DgxLike())), IsEmpty()); }

TEST(Findings, ANicFarFromEveryGpu) {
  auto found = OfKind(Load(DualSocket()), FindingKind::kNicFarFromGpus);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].subject, "nic1 (mlx5_1)");
  EXPECT_THAT(found[0].sentence, HasSubstr("NUMA node 1"));
}

TEST(Findings, AGpuWithoutANearNic) {
  TestMachine description = DualSocket();
  description.pci[1].second.push_back(RootPort("0000:90:01.0", GpuPart("0000:91:00.0")));
  description.pci[1].second.erase(description.pci[1].second.begin());
  auto found = OfKind(Load(description), FindingKind::kGpuWithoutNic);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].subject, "gpu2");
}

TEST(Findings, APciLinkNarrowerThanTheNicsLine) {
  Machine machine = WithNic([](Device& nic) {
    nic.link = {16, 8};
    nic.ports[0].bandwidth = Bandwidth::GigabitsPerSecond(200);
  });
  auto found = OfKind(machine, FindingKind::kLinkBelowLine);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].sentence,
              AllOf(HasSubstr("200 Gbps (25.0 GB/s)"), HasSubstr("16 GT/s x8 (15.8 GB/s)")));
}

TEST(Findings, ALinkThatCarriesTheLineIsWideEnough) {
  Machine machine = WithNic([](Device& nic) {
    nic.link = {16, 16};
    nic.ports[0].bandwidth = Bandwidth::GigabitsPerSecond(200);
  });
  EXPECT_THAT(OfKind(machine, FindingKind::kLinkBelowLine), IsEmpty());
}

TEST(Findings, ALinkTrainedBelowWhatBothEndsCan) {
  Machine machine = WithNic([](Device& nic) {
    nic.link = {8, 16};
    nic.link_max = {32, 16};
  });
  auto found = OfKind(machine, FindingKind::kLinkBelowItself);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].sentence, AllOf(HasSubstr("8 GT/s x16"), HasSubstr("32 GT/s x16")));
}

TEST(Findings, AnIdleGpusSlowLinkIsNothingOdd) {
  MachineParts parts = *PartsFromHwlocXml(DgxLike().ToXml());
  for (Device& device : parts.devices) {
    if (device.kind != DeviceKind::kGpu) continue;
    device.link = {2.5, 16};
    device.link_max = {32, 16};
  }
  EXPECT_THAT(OfKind(*Machine::Create(std::move(parts)), FindingKind::kLinkBelowItself), IsEmpty());
}

TEST(Findings, ANicThatServesMoreGpusThanAnother) {
  TestMachine description = DgxLike();
  // One switch has lost one of its NICs.
  auto& ports = description.pci[0].second[0].children[0].children;
  ports.erase(ports.begin() + 1);
  auto found = OfKind(Load(description), FindingKind::kUnevenNics);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].sentence, HasSubstr("serves 2 GPUs"));
}

TEST(Findings, APortWithoutALink) {
  Machine machine = WithNic([](Device& nic) { nic.ports[0].up = false; });
  auto found = OfKind(machine, FindingKind::kPortDown);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].subject, "nic0");
}

TEST(Findings, ANumaNodeWithCpusButNoMemory) {
  TestMachine description = DgxLike();
  description.memory_per_numa = 0;
  EXPECT_EQ(OfKind(Load(description), FindingKind::kNodeWithoutMemory).size(), 2u);
}

TEST(Findings, NoLocalityWhereThereAreSeveralNodes) {
  auto found = OfKind(Load(CloudVm()), FindingKind::kNoLocality);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].subject, "gpu0, nic0");
  TestMachine one = CloudVm();
  one.packages = 1;
  EXPECT_THAT(OfKind(Load(one), FindingKind::kNoLocality), IsEmpty());
}

TEST(Findings, NcclTakesAFartherNicWhosePathItDeemsWider) {
  // Near a NIC of 100 Gb/s; one of 400 Gb/s at the other package.
  MachineParts parts = *PartsFromHwlocXml(DualSocket().ToXml());
  for (Device& device : parts.devices) {
    if (device.kind != DeviceKind::kNic) continue;
    const bool near = device.ports[0].name == "mlx5_0";
    device.ports[0].bandwidth = Bandwidth::GigabitsPerSecond(near ? 100 : 400);
  }
  auto found = OfKind(*Machine::Create(std::move(parts)), FindingKind::kNcclChoosesOther);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0].sentence, AllOf(HasSubstr("nic0 (mlx5_0) (PIX)"),
                                       HasSubstr("nic1 (mlx5_1) (SYS)"), HasSubstr("22.0")));
}

}  // namespace
}  // namespace weft::topology
