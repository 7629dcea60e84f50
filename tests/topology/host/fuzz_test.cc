// The readers of XML against mutated files: whatever they are given, they answer within their
// bounds, with a machine that holds together or with an error that names a line. WEFT_FUZZ_SECONDS
// and WEFT_FUZZ_SEED: see fuzz_budget.h; the seconds are for each of the tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "base/random.h"
#include "tests/fuzz_budget.h"
#include "tests/topology/host/machines.h"
#include "topology/host/findings.h"
#include "topology/host/hwloc_xml.h"
#include "topology/host/nccl_machine.h"
#include "topology/host/nccl_xml.h"
#include "topology/host/render.h"

namespace weft::topology {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kValues[] = {"",
                                   "0",
                                   "-1",
                                   "99999999999999999999",
                                   "0xffffffff,0xffffffff",
                                   "0xf...f",
                                   "Machine",
                                   "NUMANode",
                                   "PU",
                                   "Bridge",
                                   "PCIDev",
                                   "0000:19:00.0",
                                   "1e308",
                                   "nan",
                                   "4",
                                   "0x030200",
                                   "2147483648"};

// One to four of: a byte, a stretch gone, a stretch twice, a value, an element somewhere else.
std::string Mutated(std::string text, Random& random) {
  for (uint64_t i = 0, count = 1 + random.Below(4); i < count && !text.empty(); ++i) {
    const size_t at = random.Below(text.size());
    const size_t length = random.Below(80);
    switch (random.Below(5)) {
      case 0:
        text[at] = static_cast<char>(random.Below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(random.Below(text.size()), text.substr(at, length));
        break;
      case 3: {
        const size_t begin = text.find("=\"", at);
        if (begin == std::string::npos) break;
        const size_t end = text.find('"', begin + 2);
        if (end == std::string::npos) break;
        text.replace(begin + 2, end - begin - 2, kValues[random.Below(std::size(kValues))]);
        break;
      }
      case 4: {
        const size_t begin = text.find("\n<", at);
        const size_t end = text.find('\n', begin == std::string::npos ? begin : begin + 1);
        const size_t to = text.find("\n<", random.Below(text.size()));
        if (begin == std::string::npos || end == std::string::npos || to == std::string::npos)
          break;
        text.insert(to, text.substr(begin, end - begin));
        break;
      }
    }
  }
  return text;
}

// Everything that is made of a machine.
void UseAll(const Machine& machine) {
  Distances distances(machine);
  std::vector<GpuNics> nics = NicsOfGpus(machine, distances);
  std::vector<ProcessBinding> bindings;
  if (machine.host().has_value()) bindings = *PlanBindings(machine, distances, 3);
  std::vector<Finding> findings = FindingsOf(machine, distances, nics);
  EXPECT_FALSE(TreeText(machine).empty());
  EXPECT_FALSE(MachineSvg({machine, distances, nics, bindings, findings}).empty());
  XmlElement system = NcclFromMachine(machine);
  if (absl::StatusOr<std::string> text = NcclXmlText(system); text.ok()) {
    absl::StatusOr<XmlElement> again = ParseNcclXml(*text);
    ASSERT_TRUE(again.ok()) << again.status() << *text;
    EXPECT_TRUE(SameXml(*again, system)) << *text;
  }
}

// Mutations of the two files through `read`, until the budget is spent.
template <typename Read>
void FuzzReader(const std::pair<std::string, std::string>& files, uint64_t stream, Read read) {
  FuzzBudget budget(2000);
  int good = 0;
  while (std::optional<uint64_t> seed = budget.Next()) {
    Random random(*seed, stream);
    const std::string xml = Mutated(*seed % 2 == 0 ? files.first : files.second, random);
    absl::StatusOr<Machine> machine = read(xml);
    if (machine.ok()) {
      ++good;
      UseAll(*machine);
    } else {
      EXPECT_THAT(std::string(machine.status().message()), HasSubstr("line ")) << xml;
      EXPECT_LT(machine.status().message().size(), 4000u);
    }
    if (::testing::Test::HasFailure()) FAIL() << budget.Repeat() << ":\n" << xml;
  }
  budget.Report();
  EXPECT_GT(good, 0) << "mutations that leave nothing to read test little";
  EXPECT_LT(FuzzBudget::MemoryKiB(), 2 << 20) << "KiB";
}

TEST(Fuzz, NoHwlocFileBreaksItsReader) {
  FuzzReader({DualSocket().ToXml(), CloudVm().ToXml()}, 0,
             [](const std::string& xml) { return MachineFromHwlocXml(xml); });
}

TEST(Fuzz, NoNcclFileBreaksItsReader) {
  FuzzReader({*NcclXmlText(NcclFromMachine(Load(DualSocket()))),
              *NcclXmlText(NcclFromMachine(Load(AmdFourNodes())))},
             1, [](const std::string& xml) -> absl::StatusOr<Machine> {
               absl::StatusOr<XmlElement> system = ParseNcclXml(xml);
               if (!system.ok()) return system.status();
               return MachineFromNccl(*system);
             });
}

}  // namespace
}  // namespace weft::topology
