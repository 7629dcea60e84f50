#include "topology/host/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "absl/strings/str_split.h"
#include "tests/topology/host/machines.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Worked {
  explicit Worked(const TestMachine& description)
      : machine(Load(description)),
        distances(machine),
        nics(NicsOfGpus(machine, distances)),
        bindings(*PlanBindings(machine, distances, 2)),
        findings(FindingsOf(machine, distances, nics)) {}
  MachineReport report() const { return {machine, distances, nics, bindings, findings}; }

  Machine machine;
  Distances distances;
  std::vector<GpuNics> nics;
  std::vector<ProcessBinding> bindings;
  std::vector<Finding> findings;
};

std::vector<std::string> Words(absl::string_view line) {
  return absl::StrSplit(line, ' ', absl::SkipEmpty());
}

TEST(TreeText, HasEveryDeviceUnderItsSwitchAndNode) {
  std::string tree = TreeText(Load(DualSocket()));
  EXPECT_THAT(tree, HasSubstr("NUMA node 0: 4 cores, 8 of 8 CPUs (0-7), L3 32 MiB, 256 GiB"));
  EXPECT_THAT(tree, HasSubstr("\n      switch0 "));
  EXPECT_THAT(tree, HasSubstr("\n        nic0 "));
  EXPECT_THAT(tree, HasSubstr("\n      nic1 "));
  EXPECT_THAT(tree, HasSubstr("mlx5_0, ens1  PCI 16 GT/s x16"));
  EXPECT_LT(tree.find("gpu1"), tree.find("NUMA node 1"));
}

TEST(MatrixText, ReadsAsNvidiaSmis) {
  Machine machine = Load(DualSocket());
  std::vector<std::string> lines = absl::StrSplit(MatrixText(machine, Distances(machine)), '\n');
  EXPECT_THAT(Words(lines[0]), ElementsAre("GPU0", "GPU1", "NIC0", "NIC1", "NUMA", "CPUs"));
  EXPECT_THAT(Words(lines[1]), ElementsAre("GPU0", "X", "PIX", "PIX", "SYS", "0", "0-7"));
  EXPECT_THAT(Words(lines[4]), ElementsAre("NIC1", "SYS", "SYS", "SYS", "X", "1", "8-15"));
  EXPECT_THAT(MatrixText(machine, Distances(machine)),
              AllOf(HasSubstr("PIX   at most one PCI switch"), Not(HasSubstr("PXB"))))
      << "only what occurs is explained";
}

TEST(MatrixText, MarksGuesses) {
  Machine machine = Load(CloudVm());
  EXPECT_THAT(MatrixText(machine, Distances(machine)),
              AllOf(HasSubstr("PHB?"), HasSubstr("a guess")));
}

TEST(FindingsText, SaysThatThereAreNone) {
  EXPECT_EQ(FindingsText({}), "nothing odd was found\n");
  EXPECT_THAT(FindingsText(Worked(DualSocket()).findings),
              HasSubstr("warning: nic1 (mlx5_1) is SYS from every GPU"));
}

TEST(ReportJson, HasTheKeysThatTheDocumentationNames) {
  nlohmann::ordered_json json = ReportJson(Worked(DgxLike()).report());
  EXPECT_EQ(json["distances"]["gpu0"]["nic0"]["type"], "PIX");
  EXPECT_EQ(json["distances"]["gpu0"]["nic0"]["gigabytes_per_second"], 24.0);
  EXPECT_EQ(json["gpus"][3]["assigned_nics"][0], "nic3");
  EXPECT_EQ(json["bindings"][1]["cpus"], "8-15");
  EXPECT_EQ(json["devices"].size(), 24u) << "4 switches, 8 GPUs, 8 NICs, 4 of storage";
  EXPECT_EQ(json["numa_nodes"][1]["memory_bytes"], int64_t{1} << 38);
  EXPECT_TRUE(json["findings"].empty());
}

TEST(MachineSvg, IsWellFormedAndHasEveryDevice) {
  for (const TestMachine& description : {DgxLike(), DualSocket(), CloudVm(), AmdFourNodes()}) {
    Worked worked(description);
    std::string svg = MachineSvg(worked.report());
    pugi::xml_document document;
    ASSERT_TRUE(document.load_string(svg.c_str())) << svg;
    for (const Device& device : worked.machine.devices()) {
      EXPECT_THAT(svg, HasSubstr(">" + device.name));
    }
    for (const Finding& finding : worked.findings) EXPECT_THAT(svg, HasSubstr(finding.subject));
  }
}

TEST(MachineSvg, NamesWithMarkupStayText) {
  TestMachine description = DualSocket();
  description.pci[1].second[0].children[0] = NicPart("0000:81:00.0", "&lt;script&gt;&amp;", "ens2");
  pugi::xml_document document;
  std::string svg = MachineSvg(Worked(description).report());
  EXPECT_TRUE(document.load_string(svg.c_str()));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
}

}  // namespace
}  // namespace weft::topology
