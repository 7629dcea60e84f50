// Whatever bytes a file holds, it is a fabric or an error that names it, in bounded time and
// memory. A fixed number of seeded mutations; WEFT_FUZZ_SECONDS=600 goes on for so long, and prints
// how many there were. WEFT_FUZZ_SEED begins elsewhere; a failure names the seed that repeats it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/fuzz_budget.h"
#include "topology/fabric/check.h"
#include "topology/fabric/draw.h"
#include "topology/fabric/file.h"
#include "topology/fabric/generator.h"
#include "topology/fabric/load.h"
#include "topology/fabric/routes.h"
#include "topology/fabric/summary.h"

namespace weft::topology {
namespace {

struct Seed {
  FabricFormat format;
  std::string text;
};

const std::vector<Seed>& Seeds() {
  static const auto& seeds = *new std::vector<Seed>{
      {FabricFormat::kToml,
       "generate = { type = \"leaf-spine\", leaves = 4, spines = 2, "
       "hosts_per_leaf = 4, bandwidth = \"400Gbps\", delay = \"1us\" }\n"
       "[faults]\ndown = [\"leaf0>spine1\", \"h[0-1]\"]\n"
       "[faults.degraded]\n\"leaf[1-2]>spine0#0\" = \"100Gbps\"\n"},
      {FabricFormat::kToml,
       "[defaults]\nbandwidth = \"100Gbps\"\nbuffer = 4096\n"
       "[[nodes]]\nhosts = \"h[0-3]\"\npod = 1\n"
       "[[nodes]]\nswitches = \"a,b[00-01]\"\ntier = 1\nlatency = '5ns'\n"
       "[[cables]]\ncount = 2\npairs = [[\"h[0-3]\", \"a\", \"0-3\"],"
       " [\"a\", \"b[00-01]\"], [\"h0\", \"b00\", 1]]\n"},
      {FabricFormat::kToml, WriteFabric(*GenerateFabric("dual-plane:groups=2,hosts_per_group=2,"
                                                        "rails=2,spines=2"))},
      {FabricFormat::kHtsim,
       "Nodes 16\nTiers 3\nPodsize 4\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 2\nRadix_Up 2\n"
       "Downlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\nRadix_Up 2\n"
       "Downlink_Latency_ns 1000\nTier 2\nDownlink_speed_Gbps 100\nRadix_Down 4\n"
       "Downlink_Latency_ns 1000\nBundle 1\n"},
      {FabricFormat::kSlurm,
       "SwitchName=s0 Nodes=n[0-3,7]\nSwitchName=s1 Nodes=n[10-12] \\\n"
       "LinkSpeed=9\nSwitchName=r Switches=s[0-1] # root\n"},
      {FabricFormat::kHosts, "h[0-7] -> l[0-1]\nl0,l1 -> s[0-2]\nx y\n"},
      {FabricFormat::kLldp,
       "# n0\n{\"lldp\": {\"interface\": [{\"eth0\": {\"via\": \"LLDP\", \"chassis\": {\"l0\": "
       "{\"id\": {\"type\": \"mac\", \"value\": \"a\"}, \"capability\": {\"type\": \"Bridge\", "
       "\"enabled\": true}}}, \"port\": {\"id\": {\"type\": \"ifname\", \"value\": \"1\"}, "
       "\"auto-negotiation\": {\"current\": \"25GbaseCR\"}}}}]}}\n# n1\n{\"lldp\": "
       "[{\"interface\": [{\"name\": \"eth1\", \"chassis\": [{\"id\": [{\"value\": \"b\"}], "
       "\"name\": [{\"value\": \"l0\"}]}], \"port\": [{\"descr\": [{\"value\": \"2\"}]}]}]}]}\n"},
      {FabricFormat::kIbnetdiscover,
       "switchguid=0x1(1)\nSwitch\t2 \"S-1\"\t# \"MF0;leaf:Q/U1\" port 0 lid 2\n"
       "[1]\t\"H-1\"[1](1)\t# \"n0 mlx5_0\" lid 4 4xHDR\n[2]\t\"H-2\"[1](2)\t# \"n1 x\" 4xNDR\n\n"
       "Ca\t1 \"H-1\"\t# \"n0 mlx5_0\"\n[1](1)\t\"S-1\"[1]\t# lid 4 4xHDR\n"
       "Ca\t1 \"H-2\"\t# \"n1 mlx5_0\"\n[1](1)\t\"S-1\"[2]\t# lid 4 4xHDR\n"},
  };
  return seeds;
}

const std::vector<std::string>& Tokens() {
  static const auto& tokens = *new std::vector<std::string>{"0",
                                                            "1",
                                                            "-1",
                                                            "2",
                                                            "255",
                                                            "256",
                                                            "4096",
                                                            "65535",
                                                            "262144",
                                                            "1048576",
                                                            "2147483648",
                                                            "9223372036854775807",
                                                            "99999999999999999999",
                                                            "1e400",
                                                            "nan",
                                                            "[",
                                                            "]",
                                                            "[[",
                                                            "]]",
                                                            "{",
                                                            "}",
                                                            "[0-9]",
                                                            "[0-99999]",
                                                            "[000-999][0-9]",
                                                            "[1-0]",
                                                            ",",
                                                            ",,",
                                                            ">",
                                                            "#0",
                                                            "#",
                                                            "->",
                                                            "=",
                                                            ".",
                                                            "\"",
                                                            "'",
                                                            "\"\"\"",
                                                            "\\",
                                                            "\\u0000",
                                                            "\n",
                                                            "\r\n",
                                                            "\t",
                                                            std::string(1, '\0'),
                                                            "\xff",
                                                            "[[nodes]]\n",
                                                            "[[cables]]\n",
                                                            "pairs = [[\"a\", \"b\"]]\n",
                                                            "tier = 1\n",
                                                            "megascale",
                                                            "fat-tree",
                                                            "radix = 64",
                                                            "oversubscription = 2",
                                                            "hosts = 100",
                                                            "Tier 1\n",
                                                            "Bundle 2\n",
                                                            "SwitchName=",
                                                            "Nodes=",
                                                            "Switches=",
                                                            "Switch\t",
                                                            "Ca\t",
                                                            "\"S-1\"[1]",
                                                            "null",
                                                            "true",
                                                            "400Gbps",
                                                            "0Gbps",
                                                            "1ns",
                                                            "-1s",
                                                            "inf"};
  return tokens;
}

std::string Mutate(std::string text, Random& random) {
  auto at = [&] { return random.Below(text.size() + 1); };
  for (uint64_t i = 0, edits = 1 + random.Below(4); i < edits; ++i) {
    switch (random.Below(7)) {
      case 0:
        if (!text.empty())
          text[random.Below(text.size())] ^= static_cast<char>(1 << random.Below(8));
        break;
      case 1:
        text.erase(at(), random.Below(16));
        break;
      case 2: {  // a piece once more, elsewhere
        std::string piece = text.substr(at(), random.Below(80));
        text.insert(at(), piece);
        break;
      }
      case 3:
        text.insert(at(), Tokens()[random.Below(Tokens().size())]);
        break;
      case 4: {  // another number
        size_t digit = text.find_first_of("0123456789", at());
        if (digit == std::string::npos) break;
        size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(digit, end - digit, Tokens()[random.Below(15)]);
        break;
      }
      case 5: {  // a piece of another
        const std::string& other = Seeds()[random.Below(Seeds().size())].text;
        text.insert(at(), other.substr(random.Below(other.size()), random.Below(200)));
        break;
      }
      default:
        text.resize(at());
    }
  }
  return text;
}

// All that a program does with a fabric, on those that are small.
void Use(const Fabric& fabric) {
  if (fabric.links() > 4000) return;
  absl::StatusOr<Fabric> again = ReadFabric(WriteFabric(fabric), "again");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << WriteFabric(fabric);
  ASSERT_TRUE(SameFabric(fabric, *again)) << WriteFabric(fabric);
  CheckFabric(fabric);
  Summarise(fabric);
  DrawSvg(fabric);
  if (fabric.links() > 1000 || !Routes::Feasible(fabric).ok()) return;
  Routes routes(fabric);
  std::vector<Endpoint> ends = fabric.Endpoints();
  int hops = routes.Hops(ends.front(), ends.back());
  int64_t paths = routes.Paths(ends.front(), ends.back());
  ASSERT_EQ(hops >= 0, paths > 0);
}

void TryOne(uint64_t seed) {
  Random random(seed);
  const Seed& start = Seeds()[random.Below(Seeds().size())];
  std::string text = Mutate(start.text, random);
  LoadOptions options;
  if (random.Below(4) != 0) options.format = start.format;
  absl::StatusOr<Fabric> fabric = ParseFabric(text, "fuzzed", options);
  if (fabric.ok()) {
    Use(*fabric);
  } else {
    ASSERT_THAT(std::string(fabric.status().message()), ::testing::StartsWith("fuzzed")) << text;
    ASSERT_LT(fabric.status().message().size(), 4000u);
  }
}

TEST(Fuzz, AnyBytesAreAFabricOrAnErrorThatNamesTheFile) {
  FuzzBudget budget(3000);
  while (std::optional<uint64_t> seed = budget.Next()) {
    TryOne(*seed);
    if (HasFatalFailure()) FAIL() << budget.Repeat();
  }
  budget.Report();
  EXPECT_LT(FuzzBudget::MemoryKiB(), 2 << 20) << "KiB";
}

TEST(Fuzz, GeneratorsOnTheCommandLineRefuseWhatTheyCannotBuild) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed, 2);
    std::vector<std::string> names = GeneratorNames();
    std::string text = names[random.Below(names.size())] + ":hosts=9,bandwidth=1Gbps,spines=2";
    absl::StatusOr<Fabric> fabric = GenerateFabric(Mutate(text, random));
    if (!fabric.ok()) {
      ASSERT_FALSE(fabric.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace weft::topology
