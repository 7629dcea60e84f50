// The readers of XML against mutated files: whatever they are given, they answer within their
// bounds, with a machine that holds together or with an error that names a line.
//
// WEFT_FUZZ_FILES: how many files each reader gets (default 2,000); WEFT_FUZZ_SEED.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "base/random.h"
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

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

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

TEST(Fuzz, NoHwlocFileBreaksItsReader) {
  Random random(FromEnvironment("WEFT_FUZZ_SEED", 1));
  const std::string files[] = {DualSocket().ToXml(), CloudVm().ToXml()};
  int good = 0;
  for (uint64_t i = 0, count = FromEnvironment("WEFT_FUZZ_FILES", 2000); i < count; ++i) {
    std::string xml = Mutated(files[i % 2], random);
    absl::StatusOr<Machine> machine = MachineFromHwlocXml(xml);
    if (machine.ok()) {
      ++good;
      UseAll(*machine);
    } else {
      EXPECT_THAT(std::string(machine.status().message()), HasSubstr("line ")) << xml;
    }
    if (HasFailure()) FAIL() << "file " << i << ":\n" << xml;
  }
  EXPECT_GT(good, 0) << "mutations that leave nothing to read test little";
}

TEST(Fuzz, NoNcclFileBreaksItsReader) {
  Random random(FromEnvironment("WEFT_FUZZ_SEED", 1), 1);
  const std::string files[] = {*NcclXmlText(NcclFromMachine(Load(DualSocket()))),
                               *NcclXmlText(NcclFromMachine(Load(AmdFourNodes())))};
  int good = 0;
  for (uint64_t i = 0, count = FromEnvironment("WEFT_FUZZ_FILES", 2000); i < count; ++i) {
    std::string xml = Mutated(files[i % 2], random);
    absl::StatusOr<XmlElement> system = ParseNcclXml(xml);
    absl::StatusOr<Machine> machine =
        system.ok() ? MachineFromNccl(*system) : absl::StatusOr<Machine>(system.status());
    if (machine.ok()) {
      ++good;
      UseAll(*machine);
    } else {
      EXPECT_THAT(std::string(machine.status().message()), HasSubstr("line ")) << xml;
    }
    if (HasFailure()) FAIL() << "file " << i << ":\n" << xml;
  }
  EXPECT_GT(good, 0) << "mutations that leave nothing to read test little";
}

}  // namespace
}  // namespace weft::topology
