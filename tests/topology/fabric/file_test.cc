#include "topology/fabric/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "base/random.h"
#include "topology/fabric/faults.h"
#include "topology/fabric/generator.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

Fabric Read(const std::string& text) {
  absl::StatusOr<Fabric> fabric = ReadFabric(text, "test.toml");
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

std::string ErrorOf(const std::string& text) {
  absl::StatusOr<Fabric> fabric = ReadFabric(text, "test.toml");
  EXPECT_FALSE(fabric.ok()) << text;
  return std::string(fabric.status().message());
}

constexpr char kSmall[] = R"(
[defaults]
bandwidth = "100Gbps"
delay = "1us"
buffer = "1MiB"
latency = "600ns"
switch_buffer = "16MiB"

[[nodes]]
hosts = "h[0-3]"

[[nodes]]
switches = "leaf[0-1]"

[[nodes]]
switches = "spine0"
tier = 2
latency = "800ns"
buffer = "64MiB"

[[cables]]
pairs = [["h[0-1]", "leaf0"], ["h[2-3]", "leaf1"]]

[[cables]]
bandwidth = "400Gbps"
delay = "2us"
buffer = 0
count = 2
pairs = [["leaf[0-1]", "spine0"]]
)";

TEST(FabricFile, ReadsNodesCablesAndDefaults) {
  Fabric fabric = Read(kSmall);
  EXPECT_THAT(fabric.hosts(), SizeIs(4));
  EXPECT_THAT(fabric.switches(), SizeIs(3));
  EXPECT_EQ(fabric.links(), 2 * (4 + 4));
  EXPECT_EQ(fabric.node(*fabric.Find("leaf1")).latency, absl::Nanoseconds(600));
  EXPECT_EQ(fabric.node(*fabric.Find("leaf1")).buffer, MiB(16));
  EXPECT_EQ(fabric.node(*fabric.Find("spine0")).buffer, MiB(64));
  const FabricLink& host = fabric.link(LinkId(0));
  EXPECT_EQ(host.bandwidth, Bandwidth::GigabitsPerSecond(100));
  EXPECT_EQ(host.delay, absl::Microseconds(1));
  EXPECT_EQ(host.buffer, MiB(1));
  EXPECT_EQ(host.nic, 0);
  const FabricLink& up = fabric.link(LinkId(8));
  EXPECT_EQ(fabric.Name(LinkId(10)), "leaf0>spine0#1");
  EXPECT_EQ(up.bandwidth, Bandwidth::GigabitsPerSecond(400));
  EXPECT_EQ(up.buffer, Bytes(0));
}

TEST(FabricFile, GeneratesInOneLine) {
  Fabric fabric =
      Read("generate = { type = \"leaf-spine\", leaves = 3, hosts_per_leaf = 2, spines = 4 }\n");
  EXPECT_TRUE(SameFabric(fabric, *GenerateFabric("leaf-spine:leaves=3,hosts_per_leaf=2,spines=4")));
}

TEST(FabricFile, AddsToWhatItGeneratesAndBreaksIt) {
  Fabric fabric = Read(R"(
defaults = { delay = "300ns" }
generate = { type = "leaf-spine", leaves = 2, hosts_per_leaf = 2, spines = 2, delay = "1us" }
[[nodes]]
hosts = "storage"
[[cables]]
pairs = [["storage", "spine[0-1]"], ["h0", "leaf1"]]
[faults]
down = ["leaf0>spine1", "h3"]
[faults.degraded]
"leaf[0-1]>spine0" = "100Gbps"
)");
  NodeId storage = *fabric.Find("storage");
  EXPECT_EQ(fabric.nics(storage), 2);
  EXPECT_EQ(fabric.nics(NodeId(0)), 2);
  EXPECT_EQ(fabric.link(LinkId(0)).delay, absl::Microseconds(1));
  EXPECT_EQ(fabric.link(fabric.LinksFrom(storage)[0]).delay, absl::Nanoseconds(300));
  auto link = [&](const char* name) { return fabric.link(CablesNamed(name, fabric)->at(0)); };
  EXPECT_FALSE(link("leaf0>spine1").up);
  EXPECT_FALSE(link("h3").up);
  EXPECT_TRUE(link("leaf1>spine1").up);
  EXPECT_EQ(link("leaf1>spine0").bandwidth, Bandwidth::GigabitsPerSecond(100));
  EXPECT_EQ(link("leaf1>spine0").nominal, Bandwidth::GigabitsPerSecond(400));
}

TEST(FabricFile, NumbersNicsAsTheyComeOrAsItSays) {
  Fabric fabric = Read(R"(
nodes = [ { hosts = "h[0-1]" }, { switches = "a,b,c" } ]
[[cables]]
pairs = [["h0", "a,b,c"], ["h1", "a,b", 0], ["h1", "c,c", "1-2"]]
)");
  EXPECT_EQ(fabric.nics(NodeId(0)), 3);
  EXPECT_EQ(fabric.nics(NodeId(1)), 3);
  EXPECT_THAT(fabric.Ports({NodeId(1), 0}), SizeIs(2));
  EXPECT_THAT(fabric.Ports({NodeId(1), 2}), SizeIs(1));
}

TEST(FabricFile, EveryErrorNamesFileLineAndReason) {
  auto expect = [](const std::string& text, const std::string& where, const std::string& reason) {
    std::string error = ErrorOf(text);
    EXPECT_THAT(error, StartsWith(where)) << text;
    EXPECT_THAT(error, HasSubstr(reason)) << text;
  };
  expect("\nnode = []\n", "test.toml:2: ", "no key \"node\"; nearest: nodes");
  expect("a = \n", "test.toml:1: ", "not valid TOML");
  expect("[[nodes]]\nhosts = \"h0\"\ntyer = 1\n", "test.toml:3: ", "nearest: tier");
  expect("[[nodes]]\nhosts = \"h0\"\ntier = 1\n", "test.toml:3: ", "tier is of switches");
  expect("[[nodes]]\ntier = 1\n", "test.toml:", "either hosts or switches");
  expect("[[nodes]]\nhosts = \"h[0-\"\n", "test.toml:2: ", "[ without ]");
  expect("[[nodes]]\nhosts = \"h[3-1]\"\n", "test.toml:2: ", "runs backwards");
  expect("[[nodes]]\nhosts = \"h[0-999999999]\"\n", "test.toml:2: ", "more than 262144");
  expect("[[nodes]]\nhosts = \"a b\"\n", "test.toml:2: ", "only letters, digits");
  expect("[[nodes]]\nhosts = \"h0,h0\"\n", "test.toml:2: ", "two nodes \"h0\"");
  expect("[[nodes]]\nhosts = \"h0\"\n", "test.toml: ", "h0 has no cable");
  expect("generate = { type = \"leafspine\" }\n", "test.toml:1: ", "nearest: leaf-spine");
  expect("[generate]\ntype = \"leaf-spine\"\nleaves = 0\n", "test.toml:3: ", "leaves = 0");
  expect("[generate]\nleaves = 2\n", "test.toml:", "with a type");
  expect("[defaults]\nbandwidth = 400\n", "test.toml:2: ", "\"400Gbps\"");
  expect("[defaults]\ndelay = \"fast\"\n", "test.toml:2: ", "must be a time");
  const std::string nodes = "nodes = [ { hosts = \"h[0-1]\" }, { switches = \"leaf0\" } ]\n";
  expect(nodes + "[[cables]]\n\n", "test.toml:", "needs pairs");
  expect(nodes + "[[cables]]\npairs = [\n[\"h0\", \"leef0\"]]\n",
         "test.toml:4: ", "nearest: leaf0");
  expect(nodes + "[[cables]]\npairs = [\n\n[\"h0\", \"h1\"]]\n",
         "test.toml:5: ", "both ends are hosts");
  expect(nodes + "[[cables]]\npairs = [[\"h0\"]]\n", "test.toml:3: ", "a pair must be");
  expect(nodes + "[[cables]]\npairs = [[\"h0\", \"leaf0\", 300]]\n",
         "test.toml:3: ", "a NIC must be");
  expect(nodes + "[[cables]]\npairs = [[\"h0\", \"leaf0\", \"0-1\"]]\n",
         "test.toml:3: ", "2 NICs for 1 cables");
  expect(nodes + "[[cables]]\nbandwidth = \"0Gbps\"\npairs = []\n",
         "test.toml:3: ", "must be above 0");
  const std::string whole = nodes + "[[cables]]\npairs = [[\"h[0-1]\", \"leaf0\"]]\n[faults]\n";
  expect(whole + "down = [\"h0>leaf1\"]\n", "test.toml:5: ", "nearest: leaf0");
  expect(whole + "down = [\"h0>leaf0#1\"]\n", "test.toml:5: ", "no #1");
  expect(whole + "degraded = { \"h0\" = \"1Gbps\", \"h0>leaf0\" = \"2Gbps\" }\n",
         "test.toml:5: ", "twice");
}

TEST(FabricFile, NestingThatWouldOverflowTheStackIsRefused) {
  EXPECT_THAT(ErrorOf("a = " + std::string(100'000, '[')), HasSubstr("nested too deeply"));
  std::string dots = "a";
  for (int i = 0; i < 100'000; ++i) dots += ".a";
  EXPECT_THAT(ErrorOf(dots + " = 1"), HasSubstr("nested too deeply"));
  // Brackets in texts and comments do not nest.
  Read("# " + std::string(100, '[') + "\ngenerate = { type = 'leaf-spine' } # \"[[[[\n");
}

TEST(FabricFile, EveryExampleOfItsPageIsReadAsIs) {
  std::ifstream page(std::string(std::getenv("WEFT_SOURCE")) + "/docs/fabric-format.md");
  std::string text((std::istreambuf_iterator<char>(page)), {});
  int examples = 0;
  for (size_t at = 0; (at = text.find("```toml\n", at)) != std::string::npos; ++examples) {
    size_t end = text.find("```\n", at += 8);
    Read(text.substr(at, end - at));
  }
  EXPECT_EQ(examples, 3);
}

TEST(FabricFile, WhatIsWrittenIsReadBackTheSame) {
  for (const char* generator :
       {"leaf-spine:leaves=3,hosts_per_leaf=3,spines=2,nics=2,buffer=100000,delay=1.25ns",
        "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=2,spines_per_pod=2,cores=4,core_cables="
        "3",
        "rail-optimised:groups=2,hosts_per_group=2,rails=4,spines=2,bandwidth=33.3333Gbps",
        "dual-plane:groups=2,hosts_per_group=2,rails=2,spines=2,latency=601.5ns,switch_buffer=1MiB",
        "dual-tor:groups=2,hosts_per_group=2,rails=2,spines=2", "megascale:hosts=70"}) {
    Fabric fabric = *GenerateFabric(generator);
    EXPECT_TRUE(SameFabric(fabric, Read(WriteFabric(fabric)))) << generator;
  }
}

TEST(FabricFile, IsShortForARegularFabric) {
  EXPECT_LT(WriteFabric(*GenerateFabric("leaf-spine:leaves=32,hosts_per_leaf=32")).size(), 2000u);
}

// Whatever order, orientation, numbers and faults.
TEST(FabricFile, RandomFabricsAreReadBackTheSame) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    FabricBuilder builder;
    int nodes = 3 + static_cast<int>(random.Below(12));
    auto number = [&](std::initializer_list<int64_t> values) {
      return *(values.begin() + random.Below(values.size()));
    };
    std::vector<int> next_nic(static_cast<size_t>(nodes), 0);
    for (int i = 0; i < nodes; ++i) {
      FabricNode node;
      node.kind = i > 1 && random.Below(2) == 0 ? NodeKind::kHost : NodeKind::kSwitch;
      node.name = (random.Below(2) == 0 ? "n" : "x0") + std::to_string(i);
      node.tier = node.kind == NodeKind::kHost ? 0 : static_cast<int>(random.Below(4));
      node.pod = static_cast<int>(number({-1, -1, 0, 3}));
      node.plane = static_cast<int>(number({-1, -1, 1}));
      node.latency = absl::Nanoseconds(number({0, 0, 333}));
      node.buffer = Bytes(number({0, 0, 1 << 20, 12345}));
      ASSERT_TRUE(builder.Add(node).ok());
    }
    auto connect = [&](int a, int b) {
      FabricBuilder::Cable cable{
          Bandwidth::BytesPerSecond(static_cast<double>(number({1, 12500000000, 7777777777}))),
          absl::Nanoseconds(number({0, 1, 1000})) / static_cast<double>(number({1, 4})),
          Bytes(number({0, 4096}))};
      if (random.Below(3) == 0) cable.reverse_buffer = Bytes(number({0, 8192}));
      for (int end : {a, b}) {
        if (builder.node(NodeId(end)).kind != NodeKind::kHost) continue;
        int& next = next_nic[static_cast<size_t>(end)];
        cable.nic = static_cast<int>(random.Below(static_cast<uint64_t>(next) + 1));
        next = std::max(next, cable.nic + 1);
      }
      (void)builder.Connect(NodeId(a), NodeId(b), cable);
    };
    connect(0, 1);
    for (int i = 2; i < nodes; ++i) {
      int other = static_cast<int>(random.Below(2));
      random.Below(2) == 0 ? connect(i, other) : connect(other, i);
    }
    for (uint64_t i = 0, more = random.Below(40); i < more; ++i) {
      int a = static_cast<int>(random.Below(nodes));
      int b = static_cast<int>(random.Below(nodes));
      for (uint64_t copy = 0, copies = 1 + random.Below(3); copy < copies; ++copy) connect(a, b);
    }
    absl::StatusOr<Fabric> fabric = std::move(builder).Build();
    if (!fabric.ok()) continue;  // no host among the nodes, or a gap from a cable that was refused
    for (uint64_t i = 0, faults = random.Below(4); i < faults; ++i) {
      LinkId link(static_cast<int>(random.Below(fabric->links())));
      random.Below(2) == 0 ? fabric->SetUp(link, false)
                           : fabric->SetBandwidth(link, Bandwidth::BytesPerSecond(333));
    }
    std::string text = WriteFabric(*fabric);
    absl::StatusOr<Fabric> again = ReadFabric(text, "again.toml");
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status() << "\n" << text;
    ASSERT_TRUE(SameFabric(*fabric, *again)) << "seed " << seed << "\n" << text;
  }
}

TEST(Names, ExpandAndCompressAsInSlurm) {
  EXPECT_THAT(*ExpandNames("h[0-2,7],leaf0", 100), ElementsAre("h0", "h1", "h2", "h7", "leaf0"));
  EXPECT_THAT(*ExpandNames("n[08-11]-ib", 100),
              ElementsAre("n08-ib", "n09-ib", "n10-ib", "n11-ib"));
  EXPECT_THAT(*ExpandNames("r[0-1]n[0-1]", 100), ElementsAre("r0n0", "r0n1", "r1n0", "r1n1"));
  EXPECT_EQ(CompressNames({"h0", "h1", "h2", "h7", "leaf0"}), "h[0-2,7],leaf0");
  EXPECT_EQ(CompressNames({"n08-ib", "n09-ib", "n10-ib"}), "n[08-10]-ib");
  EXPECT_EQ(CompressNames({"h9", "h10", "h010"}), "h[9-10,010]");
  for (const char* bad : {"", "h[", "h]", "h[a]", "h[1-]", "h[-1]", "a,,b", "h[2-1]", "h[]"}) {
    EXPECT_FALSE(ExpandNames(bad, 100).ok()) << bad;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(ExpandNames("h[0-100]", 100).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(ExpandNames("h[0-9][0-9][0-9]", 100).status()));
}

}  // namespace
}  // namespace weft::topology
