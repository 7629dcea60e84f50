// Every form that launchers take, read back to the same order; some by the programs themselves.
#include "topology/order/rank_files.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/run_program.h"
#include "topology/fabric/clos.h"
#include "topology/host/nccl_machine.h"
#include "topology/host/nccl_xml.h"
#include "topology/job/mesh_text.h"
#include "topology/order/nccl_files.h"
#include "topology/order/slot_grid.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Fabric SomeFabric() {
  ClosSpec spec;
  spec.hosts_per_group = 4;
  spec.groups = 2;
  spec.spines = 2;
  return *BuildClos(spec);
}

RankOrder SomeOrder(bool consecutive) {
  Mesh mesh = *ParseMesh("tp4,dp3");
  BlockShape shape = {4, 1, 1, 1, 1};
  if (!consecutive) shape = {2, 1, 1, 3, 1};
  RankOrder order{BlocksOf(mesh, shape), {}};
  for (int host : {5, 2, 7}) {
    if (static_cast<int>(order.host_of_slot.size()) < order.blocks.slots) {
      order.host_of_slot.emplace_back(host);
    }
  }
  return order;
}

TEST(RankFiles, EveryFormGivesTheSameOrderBack) {
  Fabric fabric = SomeFabric();
  for (bool consecutive : {true, false}) {
    RankTable table = TableOf(SomeOrder(consecutive), fabric);
    EXPECT_EQ(*ParseRankFile(RankFileText(table), "f"), table);
    EXPECT_EQ(*ParseOpenMpiRankfile(OpenMpiRankfileText(table, 4), "f", 4), table);
    EXPECT_EQ(*ParseOpenMpiRankfile(OpenMpiRankfileText(table, 1), "f", 1), table);
    EXPECT_EQ(*ParseSlurmHostfile(*SlurmHostfileText(table), "f"), table);
    EXPECT_EQ(TableOf(*OrderFromTable(table, fabric), fabric), table);
    if (consecutive) {
      EXPECT_EQ(*ParseTorchrun(*TorchrunText(table), "f"), table);
    } else {
      EXPECT_THAT(TorchrunText(table).status().ToString(), HasSubstr("consecutive ranks"));
    }
  }
}

TEST(RankFiles, ReadAsTheirUsersKnowThem) {
  RankTable table = {{"h5", 0}, {"h5", 1}, {"h2", 0}, {"h2", 1}};
  EXPECT_EQ(RankFileText(table), "# rank host gpu\n0 h5 0\n1 h5 1\n2 h2 0\n3 h2 1\n");
  EXPECT_EQ(*SlurmHostfileText(table), "h5\nh5\nh2\nh2\n");
  EXPECT_EQ(OpenMpiRankfileText(table, 2),
            "rank 0=h5 slot=0-1\nrank 1=h5 slot=2-3\nrank 2=h2 slot=0-1\nrank 3=h2 slot=2-3\n");
}

TEST(RankFiles, WhatAFormCannotExpressIsRefused) {
  RankTable swapped = {{"h5", 1}, {"h5", 0}};
  EXPECT_THAT(SlurmHostfileText(swapped).status().ToString(), HasSubstr("GPUs must rise"));
  EXPECT_THAT(TorchrunText(swapped).status().ToString(), HasSubstr("h5 has rank 0 on GPU 1"));
}

TEST(RankFiles, ErrorsNameTheLine) {
  EXPECT_THAT(ParseRankFile("0 h1 0\n1 h1\n", "r").status().ToString(), HasSubstr("r:2: expected"));
  EXPECT_THAT(ParseRankFile("0 h1 0\n0 h1 1\n", "r").status().ToString(),
              HasSubstr("r:2: rank 0 occurs twice"));
  EXPECT_THAT(ParseRankFile("1 h1 0\n", "r").status().ToString(), HasSubstr("rank 0 is missing"));
  EXPECT_THAT(ParseRankFile("9999999 h1 0\n", "r").status().ToString(), HasSubstr("out of range"));
  EXPECT_THAT(ParseOpenMpiRankfile("rank 0=h1\n", "r", 1).status().ToString(),
              HasSubstr("r:1: expected 'rank N=HOST"));
  Fabric fabric = SomeFabric();
  EXPECT_THAT(OrderFromTable({{"h1", 0}, {"h1", 0}}, fabric).status().ToString(),
              HasSubstr("both on GPU 0 of h1"));
  EXPECT_THAT(OrderFromTable({{"h1", 0}, {"h1", 1}, {"h2", 0}}, fabric).status().ToString(),
              HasSubstr("host h2 has 1 ranks, h1 has 2"));
  EXPECT_THAT(OrderFromTable({{"h99", 0}}, fabric).status().ToString(), HasSubstr("h99"));
}

TEST(RankFiles, TheTorchrunScriptStartsEachHostWithItsNodeRank) {
  std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "weft_order_torchrun";
  std::filesystem::create_directories(folder);
  Fabric fabric = SomeFabric();
  std::ofstream(folder / "torchrun.sh") << *TorchrunText(TableOf(SomeOrder(true), fabric));
  std::ofstream(folder / "torchrun") << "#!/bin/sh\necho \"$@\"\n";
  std::filesystem::permissions(folder / "torchrun", std::filesystem::perms::owner_all);
  std::string run = "PATH=" + folder.string() + ":$PATH ";
  Outcome second = Shell(run + "WEFT_NODE=h2 sh " + (folder / "torchrun.sh").string() + " a.py -x");
  EXPECT_EQ(second.status, 0) << second.output;
  EXPECT_EQ(second.output,
            "--nnodes=3 --nproc-per-node=4 --node-rank=1 --master-addr=h5 --master-port=29500 "
            "a.py -x\n");
  Outcome unknown = Shell(run + "WEFT_NODE=h3 sh " + (folder / "torchrun.sh").string());
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.output, HasSubstr("h3 is no host of this job"));
  std::filesystem::remove_all(folder);
}

TEST(NcclFiles, TheTopologyIsWhatTheHostHas) {
  NcclHost host;
  host.nic = Bandwidth::GigabitsPerSecond(200);
  host.nvlink = Bandwidth::BytesPerSecond(300e9);
  for (auto [gpus, nics] :
       std::vector<std::pair<int, int>>{{8, 8}, {8, 4}, {4, 8}, {1, 1}, {2, 3}}) {
    host.gpus = gpus;
    host.nics = nics;
    absl::StatusOr<std::string> text = NcclTopologyText(host);
    ASSERT_TRUE(text.ok()) << text.status();
    absl::StatusOr<XmlElement> system = ParseNcclXml(*text);
    ASSERT_TRUE(system.ok()) << system.status() << *text;
    absl::StatusOr<Machine> machine = MachineFromNccl(*system);
    ASSERT_TRUE(machine.ok()) << machine.status() << *text;
    EXPECT_EQ(static_cast<int>(machine->gpus().size()), gpus);
    EXPECT_EQ(static_cast<int>(machine->nics().size()), nics);
    EXPECT_EQ(LineRate(machine->device(machine->nics()[0])), host.nic);
  }
  host.gpus = 64;
  EXPECT_THAT(NcclTopologyText(host).status().ToString(), HasSubstr("1 to 16"));
}

TEST(NcclFiles, EveryChannelKeepsToItsRail) {
  NcclHost host;
  host.nic = Bandwidth::GigabitsPerSecond(200);
  host.nvlink = Bandwidth::BytesPerSecond(300e9);
  std::vector<NcclChannel> channels = *ParseNcclGraph(*NcclGraphText(host));
  ASSERT_EQ(channels.size(), 16U);  // 8 of rings, 8 of trees
  for (size_t i = 0; i < channels.size(); ++i) {
    int rail = static_cast<int>(i % 8);
    EXPECT_EQ(channels[i].net_in, rail);
    EXPECT_EQ(channels[i].net_out, rail);
    EXPECT_EQ(channels[i].gpus[0], rail);
    EXPECT_EQ(std::set<int>(channels[i].gpus.begin(), channels[i].gpus.end()).size(), 8U);
  }
  EXPECT_FALSE(ParseNcclGraph("<graphs><graph id=\"0\" nchannels=\"2\"/></graphs>").ok());
}

}  // namespace
}  // namespace weft::topology
