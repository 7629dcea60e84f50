#include "topology/fabric/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "topology/fabric/faults.h"
#include "topology/fabric/file.h"
#include "topology/fabric/load.h"
#include "topology/fabric/routes.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

Fabric Parse(const std::string& text, const LoadOptions& options = {}) {
  absl::StatusOr<Fabric> fabric = ParseFabric(text, "test", options);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

std::string ErrorOf(const std::string& text, const LoadOptions& options = {}) {
  absl::StatusOr<Fabric> fabric = ParseFabric(text, "test", options);
  EXPECT_FALSE(fabric.ok()) << text;
  return std::string(fabric.status().message());
}

std::vector<std::string> Names(const Fabric& fabric, absl::Span<const NodeId> nodes) {
  std::vector<std::string> names;
  for (NodeId node : nodes) names.push_back(fabric.node(node).name);
  return names;
}

std::vector<std::string> NeighborsOf(const Fabric& fabric, const char* name) {
  std::vector<std::string> names;
  for (LinkId link : fabric.LinksFrom(*fabric.Find(name))) {
    names.push_back(fabric.node(fabric.link(link).target).name);
  }
  return names;
}

double GigabitsOf(const Fabric& fabric, const char* cable) {
  absl::StatusOr<std::vector<LinkId>> links = CablesNamed(cable, fabric);
  EXPECT_TRUE(links.ok()) << links.status();
  return fabric.link(links->front()).bandwidth.gigabits_per_second();
}

// --- htsim

constexpr char kHtsim[] = R"(# three tiers, two to one at the ToRs
Nodes 32
Tiers 3
Podsize 8

Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 2
Queue_Up 20000
Queue_Down 30000
Downlink_Latency_ns 1000
Oversubscribed 2
Switch_Latency_ns 300

Tier 1
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Queue_Down 40000
Downlink_Latency_ns 1500

tier 2
DOWNLINK_SPEED_GBPS 50
Radix_Down 8
Downlink_Latency_ns 2000
Bundle 2
)";

TEST(Htsim, GivesItsOwnNumbersToHostsAndSwitches) {
  std::string text = kHtsim;
  // Half the speed above: twice the uplinks.
  text.replace(text.find("Radix_Up 2\nQueue_Down 40000"), 10, "Radix_Up 4");
  Fabric fabric = Parse(text);
  EXPECT_THAT(fabric.hosts(), SizeIs(32));
  EXPECT_EQ(fabric.node(NodeId(31)).name, "h31");
  EXPECT_EQ(fabric.links() / 2, 32 + 8 * 2 + 8 * 4);
  // Aggregation switch 1 of a pod of two goes to the odd cores, twice to each.
  EXPECT_THAT(NeighborsOf(fabric, "spine3"),
              ElementsAre("leaf2", "leaf3", "core1", "core1", "core3", "core3"));
  EXPECT_THAT(NeighborsOf(fabric, "leaf5"),
              ElementsAre("h20", "h21", "h22", "h23", "spine4", "spine5"));
  EXPECT_EQ(GigabitsOf(fabric, "h0"), 100);
  EXPECT_EQ(GigabitsOf(fabric, "leaf0>spine0"), 100);
  EXPECT_EQ(GigabitsOf(fabric, "spine0>core0"), 50);
  LinkId up = *fabric.FindLink(*fabric.Find("leaf0"), *fabric.Find("spine1"));
  EXPECT_EQ(fabric.link(up).delay, absl::Nanoseconds(1500));
  EXPECT_EQ(fabric.link(up).buffer, Bytes(20000));
  EXPECT_EQ(fabric.link(fabric.link(up).reverse).buffer, Bytes(40000));
  EXPECT_EQ(fabric.node(*fabric.Find("leaf0")).latency, absl::Nanoseconds(300));
  EXPECT_EQ(fabric.node(*fabric.Find("spine0")).latency, absl::ZeroDuration());
  EXPECT_EQ(Routes(fabric).Paths({NodeId(0), 0}, {NodeId(31), 0}), 4 * 2 * 2);
}

TEST(Htsim, IsAsStrictAsHtsimAndNamesTheLine) {
  auto replaced = [](const std::string& from, const std::string& to) {
    std::string text = kHtsim;
    text.replace(text.find(from), from.size(), to);
    return ErrorOf(text);
  };
  EXPECT_THAT(ErrorOf(kHtsim),
              AllOf(StartsWith("test:19: "), HasSubstr("Radix_Up of Tier 1 is 2")));
  EXPECT_THAT(ErrorOf("Nodes -1\nTiers 2\n"),
              StartsWith("test:1: Nodes = -1: must be a whole number from 1"))
      << "and no host Nodes below a switch -1";
  EXPECT_THAT(replaced("Podsize 8", "Podsize 6"),
              AllOf(StartsWith("test:4: "), HasSubstr("32 / 6")));
  EXPECT_THAT(replaced("Oversubscribed 2", "Oversubscribed 4"),
              AllOf(StartsWith("test:9: "), HasSubstr("Oversubscribed says 4")));
  EXPECT_THAT(replaced("Radix_Down 4", "Radix_Dwn 4"),
              AllOf(StartsWith("test:8: "), HasSubstr("nearest: radix_down")));
  EXPECT_THAT(replaced("Radix_Down 4", "Radix_Down many"), StartsWith("test:8: "));
  EXPECT_THAT(replaced("Queue_Up 20000", "Radix_Up 2"),
              AllOf(StartsWith("test:10: "), HasSubstr("already, in line 9")));
  EXPECT_THAT(replaced("Tiers 3", "Tiers 4"),
              AllOf(StartsWith("test:3: "), HasSubstr("from 2 to 3")));
  EXPECT_THAT(replaced("Podsize 8\n", "\n"), HasSubstr("Podsize is missing"));
  EXPECT_THAT(replaced("Bundle 2", "Radix_Up 2"), HasSubstr("nothing is above Tier 2"));
  EXPECT_THAT(ErrorOf("Nodes 8\nTiers 2\nPodsize 4\n" + std::string(kHtsim).substr(70)),
              Not(testing::IsEmpty()));
}

// --- Slurm

constexpr char kSlurm[] = R"(# two leaves and what joins them
SwitchName=leaf0 Nodes=gpu[00-07]   # first rack
switchname=leaf1 nodes=gpu[08-15] LinkSpeed=100
SwitchName=spine Switches=leaf[0-1]
)";

TEST(Slurm, IsATreeWithTheBandwidthThatPassesThroughIt) {
  LoadOptions options;
  options.defaults.bandwidth = Bandwidth::GigabitsPerSecond(100);
  Fabric fabric = Parse(kSlurm, options);
  EXPECT_THAT(fabric.hosts(), SizeIs(16));
  EXPECT_EQ(fabric.node(fabric.hosts()[8]).name, "gpu08");
  EXPECT_THAT(Names(fabric, fabric.switches()), ElementsAre("leaf0", "leaf1", "spine"));
  EXPECT_EQ(fabric.node(*fabric.Find("spine")).tier, 2);
  EXPECT_EQ(GigabitsOf(fabric, "gpu00"), 100);
  EXPECT_EQ(GigabitsOf(fabric, "leaf0>spine"), 800);
  options.defaults.oversubscription = 4;
  EXPECT_EQ(GigabitsOf(Parse(kSlurm, options), "leaf0>spine"), 200);
}

TEST(Slurm, ContinuesLinesAndSeveralRootsStaySeparate) {
  Fabric fabric = Parse("SwitchName=a \\\n Nodes=n0,n1\nSwitchName=b Nodes=n2\n");
  EXPECT_EQ(Routes(fabric).Hops({NodeId(0), 0}, {NodeId(1), 0}), 2);
  EXPECT_EQ(Routes(fabric).Hops({NodeId(0), 0}, {NodeId(2), 0}), -1);
}

TEST(Slurm, ContinuesAListBehindACommaAndTheLastLine) {
  Fabric fabric = Parse("SwitchName=a Nodes=n0,\\\n  n1\nSwitchName=b Nodes=n2 \\");
  EXPECT_THAT(Names(fabric, fabric.hosts()), ElementsAre("n0", "n1", "n2"));
}

TEST(Slurm, NamesTheLineAndTheReason) {
  const std::string head = "SwitchName=a Nodes=n[0-3]\n";
  auto expect = [&](const std::string& more, const std::string& where, const std::string& reason) {
    EXPECT_THAT(ErrorOf(head + more), AllOf(StartsWith(where), HasSubstr(reason))) << more;
  };
  expect("Nodes=n4\n", "test:2: ", "without SwitchName=");
  expect("SwitchName=b\n", "test:2: ", "neither Nodes= nor Switches=");
  expect("SwitchName=b Node=n4\n", "test:2: ", "\"Node\" is none of");
  expect("SwitchName=b Nodes=\n", "test:2: ", "not of the form key=value");
  expect("SwitchName=b Nodes=n[4-\n", "test:2: ", "a [ without ]");
  expect("SwitchName=a Nodes=n4\n", "test:2: ", "described twice");
  expect("SwitchName=b Switches=c\nSwitchName=c Switches=b\n", "test:2: ", "above itself");
  expect("SwitchName=b Switches=b\n", "test:2: ", "below itself");
  expect("SwitchName=b Nodes=n4,n4\n", "test:2: ", "already, in line 2");
  expect("SwitchName=b Nodes=n[0-9999999]\n", "test:2: ", "more than 262144");
  expect("SwitchName=c Nodes=a\n", "test: ", "a is a node and a switch");
  expect("BlockName=b Nodes=n4\n", "test:2: ", "topology/block");
}

// --- hosts -> switch

TEST(HostList, DescribesLeavesSpinesAndSeveralNics) {
  Fabric fabric = Parse(
      "h[0-3] -> leaf[0-1]   # two NICs each\n"
      "leaf[0-1],leaf2 -> spine[0-3]\n"
      "h4,h5 leaf2\n");
  EXPECT_THAT(fabric.hosts(), SizeIs(6));
  EXPECT_EQ(fabric.nics(NodeId(0)), 2);
  EXPECT_THAT(NeighborsOf(fabric, "h4"), ElementsAre("leaf2"));
  EXPECT_EQ(GigabitsOf(fabric, "leaf0>spine3"), 400);
  EXPECT_EQ(Routes(fabric).Paths({NodeId(0), 0}, {NodeId(4), 0}), 4);
  EXPECT_TRUE(SameFabric(Parse("a x\nb x\n"), Parse("b,x\n\na,x\n")));
}

TEST(HostList, NamesTheLineAndTheReason) {
  LoadOptions options;
  options.format = FabricFormat::kHosts;
  EXPECT_THAT(ErrorOf("h0 leaf0\nh1\n", options), StartsWith("test:2: \"h1\" is not of the form"));
  EXPECT_THAT(ErrorOf("h0 leaf0\nh0 leaf0\n", options), HasSubstr("already, in line 1"));
  EXPECT_THAT(ErrorOf("h0 leaf0 leaf1\n", options), HasSubstr("not of the form"));
  EXPECT_THAT(ErrorOf("\n", options), HasSubstr("without a host"));
}

// --- LLDP

std::string Neighbor(const std::string& interface, const std::string& chassis,
                     const std::string& port, bool bridge, const std::string& speed = "") {
  std::string text = "{\"" + interface + "\": {\"via\": \"LLDP\", \"chassis\": {\"" + chassis +
                     "\": {\"id\": {\"type\": \"mac\", \"value\": \"aa:bb\"}, \"capability\": [" +
                     "{\"type\": \"Bridge\", \"enabled\": " + (bridge ? "true" : "false") +
                     "}, {\"type\": \"Station\", \"enabled\": true}]}}, \"port\": {\"id\": " +
                     "{\"type\": \"ifname\", \"value\": \"" + port + "\"}";
  if (!speed.empty()) {
    text += ", \"auto-negotiation\": {\"supported\": true, \"current\": \"" + speed + "\"}";
  }
  return text + "}}}";
}

std::string Output(const std::vector<std::string>& neighbors) {
  std::string list;
  for (const std::string& neighbor : neighbors) list += (list.empty() ? "" : ", ") + neighbor;
  if (neighbors.size() != 1) list = "[" + list + "]";
  return "{\"lldp\": {\"interface\": " + list + "}}";
}

// Two hosts that ran lldpctl, one that did not, and one of the two leaves.
std::string Machines() {
  return "# gpu1\n" +
         Output(
             {Neighbor("eth3", "leaf/b", "Ethernet1/1", true),
              Neighbor("eth2", "leaf/a", "Ethernet1/1", true, "100GbaseCR4 - 100G over copper")}) +
         "\n# gpu0\n" + Output({Neighbor("eth2", "leaf/a", "Ethernet1/2", true)}) + "\n# leaf/a\n" +
         Output({Neighbor("Ethernet1/1", "gpu1", "eth2", false),
                 Neighbor("Ethernet1/2", "gpu0", "eth2", false),
                 Neighbor("Ethernet1/3", "gpu2", "eth9", false),
                 Neighbor("Ethernet1/31", "spine", "1", true),
                 Neighbor("Ethernet1/32", "spine", "2", true)});
}

TEST(Lldp, CountsACableOnceWhoeverReportsIt) {
  Fabric fabric = Parse(Machines());
  EXPECT_THAT(Names(fabric, fabric.hosts()), ElementsAre("gpu0", "gpu1", "gpu2"));
  EXPECT_THAT(Names(fabric, fabric.switches()), ElementsAre("leaf-a", "leaf-b", "spine"));
  EXPECT_THAT(NeighborsOf(fabric, "gpu1"), ElementsAre("leaf-a", "leaf-b"));
  EXPECT_EQ(fabric.nics(*fabric.Find("gpu1")), 2);
  EXPECT_THAT(NeighborsOf(fabric, "spine"), ElementsAre("leaf-a", "leaf-a"));
  EXPECT_EQ(fabric.node(*fabric.Find("spine")).tier, 2);
  EXPECT_EQ(GigabitsOf(fabric, "gpu1>leaf-a"), 100);
  EXPECT_EQ(GigabitsOf(fabric, "gpu1>leaf-b"), 400);
}

TEST(Lldp, NamesTheSwitchAtEachInterfaceOfOneMachine) {
  auto switches = LldpSwitches(Output({Neighbor("eth2", "leaf/a", "Ethernet1/1", true),
                                       Neighbor("eth3", "phone", "1", false)}),
                               "gpu0");
  ASSERT_TRUE(switches.ok()) << switches.status();
  EXPECT_THAT(*switches, ElementsAre(Pair("eth2", "leaf-a")));
  EXPECT_THAT(LldpSwitches("{\"lldp\": {}}", "gpu0")->size(), 0);
  EXPECT_THAT(LldpSwitches("lldpctl: no lldpd", "gpu0").status().message(),
              HasSubstr("lldpctl of gpu0:2: not valid JSON"));
}

TEST(Lldp, LeavesOutWhatIsToBeIgnoredAndTakesForHostsWhatItIsTold) {
  LoadOptions options;
  options.defaults.ignore = "leaf/b";
  EXPECT_EQ(Parse(Machines(), options).nics(NodeId(1)), 1);
  // Hosts with containers announce bridging.
  std::string text = "# n0\n" + Output({Neighbor("eth0", "leaf", "1", true)}) + "\n# leaf\n" +
                     Output({Neighbor("1", "n0", "eth0", true)});
  EXPECT_THAT(ErrorOf(text), HasSubstr("without a host"));
  options.defaults.hosts = "n*";
  EXPECT_THAT(Parse(text, options).hosts(), SizeIs(1));
}

TEST(Lldp, ReadsOneObjectOfMachinesAndJson0) {
  Fabric fabric = Parse("{\"n0\": " + Output({Neighbor("eth0", "leaf", "1", true)}) + "}");
  EXPECT_THAT(NeighborsOf(fabric, "leaf"), ElementsAre("n0"));
  const std::string json0 = R"({"n0": {"lldp": [{"interface": [{"name": "eth0", "via": "LLDP",
    "chassis": [{"id": [{"type": "mac", "value": "aa"}], "name": [{"value": "leaf"}],
                 "capability": [{"type": "Bridge", "enabled": true}]}],
    "port": [{"id": [{"type": "ifname", "value": "swp1"}],
              "auto-negotiation": [{"current": [{"value": "1000BaseTFD"}]}]}]}]}]}})";
  fabric = Parse(json0);
  EXPECT_THAT(NeighborsOf(fabric, "leaf"), ElementsAre("n0"));
  EXPECT_EQ(GigabitsOf(fabric, "n0"), 1);
  for (const auto& [text, gigabits] : {std::pair("10GigBaseSR - R fiber over 850 nm optics", 10),
                                       std::pair("100GbaseCR4 - over copper", 100)}) {
    EXPECT_EQ(GigabitsOf(Parse(absl::StrReplaceAll(json0, {{"1000BaseTFD", text}})), "n0"),
              gigabits);
  }
}

TEST(Lldp, NamesTheLineAndTheReason) {
  EXPECT_THAT(ErrorOf("\n" + Output({})), AllOf(StartsWith("test:2: "), HasSubstr("# <machine>")));
  EXPECT_THAT(ErrorOf("# n0\n{\n\"lldp\": }\n"), StartsWith("test:3: not valid JSON"));
  EXPECT_THAT(ErrorOf("# n0\n{\"lldp\": 1e400}\n"), StartsWith("test:2: not valid JSON"));
  EXPECT_THAT(ErrorOf("# n0\n{\"lldp\": {\"interface\": {\"eth0\": {\"via\": \"LLDP\"}}}}"),
              StartsWith("test:2: n0 interface eth0: a neighbour without chassis"));
  EXPECT_THAT(ErrorOf("{\"n0\": 1}"), HasSubstr("\"n0\" holds no output"));
  EXPECT_THAT(ErrorOf("{\"n0\": " + std::string(1000, '[') + std::string(1000, ']') + "}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(ErrorOf("# n0\n" + Output({Neighbor("eth0", "n0", "eth1", false)})),
              HasSubstr("n0 is its own neighbour"));
  EXPECT_THAT(ErrorOf("# n0\n" + Output({Neighbor("eth0", "n1", "eth1", false)})),
              HasSubstr("both are taken for hosts"));
}

// --- ibnetdiscover

constexpr char kSubnet[] = R"(#
# Topology file: generated on Mon Mar  4 10:00:00 2024
#
# Initiated from node 0c42a10300aa0001 port 0c42a10300aa0001

vendid=0x2c9
devid=0xd2f0
switchguid=0xb8599f0300cc0001(b8599f0300cc0001)
Switch	41 "S-b8599f0300cc0001"		# "MF0;leaf-a:MQM8700/U1" enhanced port 0 lid 2 lmc 0
[1]	"H-0c42a10300aa0001"[1](c42a10300aa0001) 		# "gpu1 mlx5_0" lid 4 4xHDR
[2]	"H-0c42a10300aa0002"[1](c42a10300aa0002) 		# "gpu1 mlx5_1" lid 5 4xHDR
[3]	"H-0c42a10300aa0003"[1](c42a10300aa0003) 		# "gpu0 mlx5_0" lid 6 4xEDR
[39][ext 39]	"S-b8599f0300cc0002"[1]		# "Quantum" lid 3 4xHDR
[40]	"S-b8599f0300cc0002"[2]		# "Quantum" lid 3 2xHDR
[41]	"H-b8599f0300cc000a"[1](b8599f0300cc000a) 		# "Mellanox Technologies Aggregation Node" lid 9 4xHDR

switchguid=0xb8599f0300cc0002(b8599f0300cc0002)
Switch	41 "S-b8599f0300cc0002"		# "Quantum" base port 0 lid 3 lmc 0
[1]	"S-b8599f0300cc0001"[39]		# "MF0;leaf-a:MQM8700/U1" lid 2 4xHDR
[2]	"S-b8599f0300cc0001"[40]		# "MF0;leaf-a:MQM8700/U1" lid 2 2xHDR

caguid=0xb8599f0300cc000a
Ca	1 "H-b8599f0300cc000a"		# "Mellanox Technologies Aggregation Node"
[1](b8599f0300cc000a) 	"S-b8599f0300cc0001"[41]		# lid 9 lmc 0 "leaf-a" lid 2 4xHDR

caguid=0xc42a10300aa0003
Ca	1 "H-0c42a10300aa0003"		# "gpu0 mlx5_0"
[1](c42a10300aa0003) 	"S-b8599f0300cc0001"[3]		# lid 6 lmc 0 "MF0;leaf-a:MQM8700/U1" lid 2 4xEDR

caguid=0xc42a10300aa0002
Ca	1 "H-0c42a10300aa0002"		# "gpu1 mlx5_1"
[1](c42a10300aa0002) 	"S-b8599f0300cc0001"[2]		# lid 5 lmc 0 "MF0;leaf-a:MQM8700/U1" lid 2 4xHDR

caguid=0xc42a10300aa0001
Ca	1 "H-0c42a10300aa0001"		# "gpu1 mlx5_0"
[1](c42a10300aa0001) 	"S-b8599f0300cc0001"[1]		# lid 4 lmc 0 "MF0;leaf-a:MQM8700/U1" lid 2 4xHDR
)";

TEST(Ibnetdiscover, ReadsHostsAdaptersSwitchesAndSpeeds) {
  Fabric fabric = Parse(kSubnet);
  EXPECT_THAT(Names(fabric, fabric.hosts()), ElementsAre("gpu0", "gpu1"));
  EXPECT_THAT(Names(fabric, fabric.switches()), ElementsAre("leaf-a:MQM8700-U1", "Quantum"));
  EXPECT_EQ(fabric.nics(NodeId(1)), 2);
  EXPECT_EQ(fabric.links() / 2, 5);
  EXPECT_EQ(GigabitsOf(fabric, "gpu0"), 100);
  EXPECT_EQ(GigabitsOf(fabric, "gpu1"), 200);
  EXPECT_EQ(GigabitsOf(fabric, "leaf-a:MQM8700-U1>Quantum#0"), 200);
  EXPECT_EQ(GigabitsOf(fabric, "leaf-a:MQM8700-U1>Quantum#1"), 100);
  EXPECT_EQ(fabric.node(*fabric.Find("Quantum")).tier, 2);
}

TEST(Ibnetdiscover, NodesThatWereNeverNamedAreNamedByGuid) {
  std::string text = kSubnet;
  for (size_t at = 0; (at = text.find("\"gpu0 mlx5_0\"", at)) != std::string::npos;) {
    text.replace(at, 13, "\"MT4123 ConnectX6   Mellanox Technologies\"");
  }
  EXPECT_THAT(Names(Parse(text), Parse(text).hosts()), ElementsAre("H-0c42a10300aa0003", "gpu1"));
  // Hosts that all have the name of a fresh installation.
  text = kSubnet;
  for (size_t at = 0; (at = text.find("\"gpu", at)) != std::string::npos;) {
    text.replace(at, 13, "\"localhost mlx5_0\"");
  }
  EXPECT_THAT(Names(Parse(text), Parse(text).hosts()),
              ElementsAre("H-0c42a10300aa0001", "H-0c42a10300aa0002", "H-0c42a10300aa0003"));
}

TEST(Ibnetdiscover, NamesTheLineAndTheReason) {
  auto replaced = [](const std::string& from, const std::string& to) {
    std::string text = kSubnet;
    text.replace(text.find(from), from.size(), to);
    return ErrorOf(text);
  };
  EXPECT_THAT(replaced("[1]	\"H-0c42a10300aa0001\"[1]", "[1]	\"H-0c42a10300aa0001\""),
              AllOf(StartsWith("test:10: "), HasSubstr("not of the form")));
  EXPECT_THAT(replaced("[1]	\"H-0c42a10300aa0001\"", "[1]	\"H-0c42a10300aa000f\""),
              AllOf(StartsWith("test:10: "), HasSubstr("H-0c42a10300aa000f has no block")));
  EXPECT_THAT(replaced("Switch	41", "Swich	41"),
              AllOf(StartsWith("test:9: "), HasSubstr("Swich")));
  EXPECT_THAT(replaced("Switch	41 \"S-b8599f0300cc0002\"", "Switch	41 \"S-b8599f0300cc0001\""),
              HasSubstr("has two blocks"));
}

// --- which format

TEST(Formats, AreToldApartByTheirContent) {
  EXPECT_EQ(DetectFormat(kHtsim), FabricFormat::kHtsim);
  EXPECT_EQ(DetectFormat(kSlurm), FabricFormat::kSlurm);
  EXPECT_EQ(DetectFormat("# c\n\nh0 -> leaf0\n"), FabricFormat::kHosts);
  EXPECT_EQ(DetectFormat("h0,leaf0\n"), FabricFormat::kHosts);
  EXPECT_EQ(DetectFormat("h0 leaf0\n"), FabricFormat::kHosts);
  EXPECT_EQ(DetectFormat(Machines()), FabricFormat::kLldp);
  EXPECT_EQ(DetectFormat(kSubnet), FabricFormat::kIbnetdiscover);
  EXPECT_EQ(DetectFormat("# f\n[[nodes]]\n"), FabricFormat::kToml);
  EXPECT_EQ(DetectFormat("generate = { type = 'leaf-spine' }\n"), FabricFormat::kToml);
  EXPECT_EQ(DetectFormat(""), FabricFormat::kAuto);
  EXPECT_EQ(DetectFormat("\n\nwhat is this\n"), FabricFormat::kAuto);
  for (const std::string& name : FabricFormatNames()) {
    EXPECT_EQ(NameOf(*ParseFabricFormat(name)), name);
  }
  EXPECT_THAT(ErrorOf("\n"), HasSubstr("in none of the formats"));
}

TEST(Formats, WhateverIsImportedIsSavedAndReadBackTheSame) {
  for (const std::string& text : {std::string(kSlurm), Machines(), std::string(kSubnet),
                                  std::string("h[0-3] -> l[0-1]\nl[0-1] -> s\n")}) {
    Fabric fabric = Parse(text);
    EXPECT_TRUE(SameFabric(fabric, Parse(WriteFabric(fabric)))) << text;
  }
}

TEST(Load, AFileThatIsNotThereIsAnErrorThatKnowsGenerators) {
  EXPECT_TRUE(LoadFabric("leaf-spine:leaves=2,hosts_per_leaf=1").ok());
  absl::Status status = LoadFabric("leaf-spin").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("nearest generator: leaf-spine"));
  EXPECT_THAT(std::string(LoadFabric("/").status().message()), HasSubstr("is a folder"));
}

}  // namespace
}  // namespace weft::topology
