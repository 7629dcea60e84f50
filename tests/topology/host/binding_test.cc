#include "topology/host/binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/topology/host/machines.h"
#include "topology/host/discover.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> Assigned(const Machine& machine, const GpuNics& one) {
  std::vector<std::string> names;
  for (int nic : one.assigned) names.push_back(machine.device(nic).name);
  return names;
}

std::vector<ProcessBinding> Plan(const Machine& machine, int count) {
  auto plan = PlanBindings(machine, Distances(machine), count);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(NicsOfGpus, TwoGpusAndTwoNicsOfASwitchAreOneEach) {
  Machine machine = Load(DgxLike());
  std::vector<GpuNics> all = NicsOfGpus(machine, Distances(machine));
  ASSERT_THAT(all, SizeIs(8));
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(Assigned(machine, all[i]), ElementsAre("nic" + std::to_string(i)));
    EXPECT_THAT(all[i].nearest, SizeIs(2));
    EXPECT_THAT(all[i].by_distance, SizeIs(8));
  }
  EXPECT_THAT(all[0].reason, AllOf(HasSubstr("PIX over switch0"), HasSubstr("24.0 GB/s"),
                                   HasSubstr("; as near: nic1")));
}

TEST(NicsOfGpus, WhoHasToShareIsTold) {
  Machine machine = Load(DualSocket());
  std::vector<GpuNics> all = NicsOfGpus(machine, Distances(machine));
  EXPECT_THAT(Assigned(machine, all[0]), ElementsAre("nic0"));
  EXPECT_THAT(Assigned(machine, all[1]), ElementsAre("nic0"));
  EXPECT_THAT(all[1].reason, HasSubstr("shared with gpu0"));
}

TEST(NicsOfGpus, MoreNicsThanGpusAreDividedAmongThem) {
  TestMachine description;
  description.pci.push_back(
      {0,
       {RootPort("0000:16:01.0",
                 SwitchPart("0000:17:00.0", "18",
                            {GpuPart("0000:19:00.0"), NicPart("0000:1a:00.0", "mlx5_0", ""),
                             NicPart("0000:1b:00.0", "mlx5_1", ""), GpuPart("0000:1c:00.0"),
                             NicPart("0000:1d:00.0", "mlx5_2", ""),
                             NicPart("0000:1e:00.0", "mlx5_3", "")}))}});
  Machine machine = Load(description);
  std::vector<GpuNics> all = NicsOfGpus(machine, Distances(machine));
  EXPECT_THAT(Assigned(machine, all[0]), ElementsAre("nic0", "nic1"));
  EXPECT_THAT(Assigned(machine, all[1]), ElementsAre("nic2", "nic3"));
}

TEST(NicsOfGpus, ANicWithoutALinkIsAssignedToNobodyWhileThereIsAnother) {
  TestMachine description = DgxLike();
  std::string& down = description.pci[0].second[0].children[0].children[1].children[0].os_devices;
  down.replace(down.find("value=\"4\""), 9, "value=\"1\"");
  Machine machine = Load(description);
  std::vector<GpuNics> all = NicsOfGpus(machine, Distances(machine));
  EXPECT_THAT(Assigned(machine, all[0]), ElementsAre("nic1"));
  EXPECT_THAT(Assigned(machine, all[1]), ElementsAre("nic1"));
}

TEST(NicsOfGpus, WithoutNicsThereIsNoneToAssign) {
  TestMachine description;
  description.pci.push_back({0, {RootPort("0000:16:01.0", GpuPart("0000:17:00.0"))}});
  Machine machine = Load(description);
  std::vector<GpuNics> all = NicsOfGpus(machine, Distances(machine));
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_THAT(all[0].assigned, IsEmpty());
  EXPECT_EQ(all[0].reason, "there is no NIC");
}

TEST(CpusNear, AreThoseOfTheDevicesNumaNode) {
  Machine machine = Load(DgxLike());
  Distances distances(machine);
  EXPECT_EQ(weft::ToString(CpusNear(machine, distances, *machine.Find("gpu5"))), "8-15");
}

TEST(CpusNear, AreAllWhereNothingIsTold) {
  Machine machine = Load(CloudVm());
  EXPECT_EQ(weft::ToString(CpusNear(machine, Distances(machine), *machine.Find("gpu0"))), "0-15");
}

TEST(CpusNear, OfANodeWithoutUsableCpusAreThoseOfANodeOfItsPackage) {
  // Only CPUs of node 1 and of the other package may be used; the GPU is at node 0.
  MachineParts parts;
  parts.packages.resize(2);
  for (int numa = 0; numa < 4; ++numa) {
    parts.numa_nodes.push_back({numa, numa / 2, {numa}, GiB(1)});
    if (numa != 0) parts.cores.push_back({numa / 2, numa, {numa}});
  }
  Device gpu;
  gpu.kind = DeviceKind::kGpu;
  gpu.numa = 0;
  parts.devices.push_back(gpu);
  Machine machine = *Machine::Create(parts);
  EXPECT_THAT(CpusNear(machine, Distances(machine), 0), ElementsAre(1));
}

TEST(ProgressCpus, AreThoseOfTheProcessThatAreNearTheNic) {
  Machine machine = Load(DgxLike());
  Distances distances(machine);
  CpuSet process = {6, 7, 8, 9};
  EXPECT_THAT(ProgressCpus(machine, distances, *machine.Find("nic0"), process), ElementsAre(6, 7));
  EXPECT_THAT(ProgressCpus(machine, distances, *machine.Find("nic4"), process), ElementsAre(8, 9));
}

TEST(ProgressCpus, LeaveTheProcessWhereItIsFarFromTheNic) {
  Machine machine = Load(DgxLike());
  EXPECT_EQ(
      weft::ToString(ProgressCpus(machine, Distances(machine), *machine.Find("nic7"), {0, 1})),
      "8-15");
}

TEST(PlanBindings, EachGpusProcessGetsItsShareOfTheCoresNearIt) {
  Machine machine = Load(DgxLike());
  std::vector<ProcessBinding> plan = Plan(machine, 8);
  std::map<int, int> uses;
  for (const ProcessBinding& one : plan) {
    EXPECT_EQ(machine.device(one.gpu).name, "gpu" + std::to_string(one.process));
    for (int cpu : one.cpus) {
      EXPECT_EQ(cpu / 8, one.process / 4) << "process " << one.process << " is away from its GPU";
      ++uses[cpu];
    }
    EXPECT_EQ(one.progress, one.cpus);
  }
  EXPECT_THAT(uses, SizeIs(16));
  EXPECT_THAT(uses, Each(::testing::Pair(::testing::_, 1)));
}

TEST(PlanBindings, FewerProcessesThanGpusAreSpreadOverThem) {
  Machine machine = Load(DgxLike());
  std::vector<ProcessBinding> plan = Plan(machine, 2);
  EXPECT_EQ(machine.device(plan[0].gpu).name, "gpu0");
  EXPECT_EQ(machine.device(plan[1].gpu).name, "gpu4");
  EXPECT_EQ(weft::ToString(plan[0].cpus), "0-7");
  EXPECT_EQ(weft::ToString(plan[1].cpus), "8-15");
}

TEST(PlanBindings, WithoutGpusProcessesShareAllCores) {
  Machine machine = *MachineFromSynthetic("pack:2 numa:1 core:4 pu:2");
  std::vector<ProcessBinding> plan = Plan(machine, 4);
  EXPECT_EQ(plan[3].gpu, -1);
  EXPECT_EQ(weft::ToString(plan[3].cpus), "12-15");
}

TEST(PlanBindings, AFarNicTakesItsProgressThreadAlong) {
  TestMachine description;
  description.pci.push_back({0, {RootPort("0000:16:01.0", GpuPart("0000:17:00.0"))}});
  description.pci.push_back({1, {RootPort("0000:80:01.0", NicPart("0000:81:00.0", "mlx5_0", ""))}});
  ProcessBinding one = Plan(Load(description), 1)[0];
  EXPECT_EQ(weft::ToString(one.cpus), "0-7");
  EXPECT_EQ(weft::ToString(one.progress), "8-15");
  EXPECT_THAT(one.reason, HasSubstr("its NIC is elsewhere"));
}

TEST(PlanBindings, RefusesNoProcess) {
  Machine machine = Load(DgxLike());
  EXPECT_TRUE(absl::IsInvalidArgument(PlanBindings(machine, Distances(machine), 0).status()));
}

}  // namespace
}  // namespace weft::topology
