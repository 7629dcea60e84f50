// weft-plan as its users run it.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/run_program.h"
#include "topology/fabric/load.h"
#include "topology/order/nccl_files.h"
#include "topology/order/rank_files.h"
#include "topology/plan/connection_plan.h"

namespace weft::topology {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

Outcome Plan(const std::string& arguments, const std::string& streams = "2>&1") {
  return RunProgram("weft-plan " + arguments, streams);
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class WeftPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              absl::StrCat("weft_plan_", getpid(), "_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string File(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
  // 16 hosts of 8 on two rail-optimised pods; the job gets them mixed.
  const std::string job_ =
      "--fabric rail-optimised:pods=2,groups=2,hosts_per_group=4,spines=4,cores=4 "
      "--layout tp=8,dp=4,pp=4 --model gpt-13b,global_batch=64 --hosts "
      "h0,h8,h4,h12,h1,h9,h5,h13,h2,h10,h6,h14,h3,h11,h7,h15 ";
};

TEST_F(WeftPlan, OrderComparesExplainsAndWritesFilesThatAgree) {
  Outcome outcome = Plan("order " + job_ + "--cores-per-rank 4 --out " + File("plan") + " --json " +
                         File("plan.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* text : {"as-allocated", "random", "block", "planned", "bound",
                           "flows leave their leaf", "fullest cuts", "6 files in"}) {
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  std::filesystem::path plan = folder_ / "plan";
  RankTable table = *ParseRankFile(Read(plan / "ranks.txt"), "ranks.txt");
  EXPECT_EQ(table.size(), 128U);
  EXPECT_EQ(*ParseSlurmHostfile(Read(plan / "slurm.hosts"), ""), table);
  EXPECT_EQ(*ParseOpenMpiRankfile(Read(plan / "openmpi.rankfile"), "", 4), table);
  EXPECT_EQ(*ParseTorchrun(Read(plan / "torchrun.sh"), ""), table);
  EXPECT_EQ(ParseNcclGraph(Read(plan / "nccl-graph.xml"))->size(), 16U);

  json result = json::parse(Read(folder_ / "plan.json"));
  double planned = result["orders"].back()["exposed_ms"];
  for (const json& order : result["orders"]) {
    EXPECT_GE(order["exposed_ms"].get<double>(), planned);
    EXPECT_GE(planned, order["bound_ms"].get<double>() * (1 - 1e-9));
  }
  EXPECT_LT(planned, result["orders"][0]["exposed_ms"].get<double>());
}

TEST_F(WeftPlan, PredictGivesWhatOrderPromised) {
  ASSERT_EQ(Plan("order " + job_ + "--out " + File("plan") + " --json " + File("a.json")).status,
            0);
  Outcome outcome = Plan("predict " + job_ + "--order " + File("plan/ranks.txt") + " --svg " +
                         File("loads.svg") + " --json " + File("b.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  json planned = json::parse(Read(folder_ / "a.json"))["orders"].back();
  json predicted = json::parse(Read(folder_ / "b.json"));
  EXPECT_EQ(planned["exposed_ms"], predicted["order"]["exposed_ms"]);
  EXPECT_EQ(planned["traffic"], predicted["order"]["traffic"]);
  EXPECT_FALSE(predicted["fullest_links"].empty());
  EXPECT_THAT(Read(folder_ / "loads.svg"), HasSubstr("<svg"));
}

TEST_F(WeftPlan, CompareShowsTwoOrdersOnOneScale) {
  Outcome outcome = Plan("compare random planned " + job_ + "--svg " + File("x.svg") + " --json " +
                         File("c.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("in B"));
  json result = json::parse(Read(folder_ / "c.json"));
  EXPECT_GT(result["a_over_b"].get<double>(), 1);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "x.a.svg"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "x.b.svg"));

  EXPECT_THAT(outcome.output, HasSubstr("cut by cut"));
  EXPECT_THAT(outcome.output, HasSubstr("gradients: 34 cuts carry some; above their bound: 34 in "
                                        "A, 0 in B"));
  int64_t random = 0, planned = 0;
  for (const json& cut : result["cuts"]) {
    for (const char* key : {"flows", "bytes", "time_ms"}) {
      EXPECT_GE(cut["a"][key], cut["bound"][key]) << cut;
      EXPECT_GE(cut["b"][key], cut["bound"][key]) << cut;
    }
    random += cut["a"]["bytes"].get<int64_t>();
    planned += cut["b"]["bytes"].get<int64_t>();
  }
  EXPECT_EQ(result["cuts"].size(), 3 * 34U);
  EXPECT_GT(random, 10 * planned);

  outcome = Plan("compare random planned " + job_ + "--svg " + File("none/x.svg"));
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("write " + File("none/x.a.svg")));
  EXPECT_THAT(outcome.output, Not(HasSubstr("in B")));  // before the work
}

// As weft-topo discover and learn-hash write it of 1,536 hosts: each NIC's address, each switch's
// hash, and the name by which it answers.
// How long that takes, tests/bench/paths.py measures.
TEST_F(WeftPlan, PathsOfTwelveThousandGpusTakeLittleMemory) {
  const std::string spec = "rail-optimised:pods=12,groups=4,hosts_per_group=32,spines=16,cores=64";
  const Fabric fabric = *LoadFabric(spec);
  ASSERT_EQ(fabric.endpoints(), 12'288);
  std::ofstream hashes(folder_ / "hashes.txt");
  hashes << "weft-hashes 1\n";
  for (Endpoint nic : fabric.Endpoints()) {
    const int number = fabric.IndexOf(nic);
    hashes << "address " << fabric.node(nic.host).name << " " << nic.nic << " 10." << number / 65536
           << "." << number / 256 % 256 << "." << number % 256 << "\n";
  }
  for (NodeId at : fabric.switches()) {
    hashes << "hash " << fabric.node(at).name << " linux:seed=" << 77'000 + at.value() << "\n"
           << "router r" << at.value() << " " << fabric.node(at).name << "\n";
  }
  hashes.close();
  const Outcome outcome =
      Plan("paths --fabric " + spec + " --hash " + File("hashes.txt") +
           " --layout tp=8,dp=192,pp=8 --model gpt-175b,global_batch=1536 --order block --out " +
           File("plan"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  // "36864 ports, each checked against the hashes of all switches on its way; 5.3 s, 120 MiB at
  // most"
  const size_t at = outcome.output.find(" ports, each checked against the hashes");
  ASSERT_NE(at, std::string::npos) << outcome.output;
  const size_t semicolon = outcome.output.find("; ", at);
  double seconds = 0, mebibytes = 0;
  ASSERT_EQ(
      std::sscanf(outcome.output.c_str() + semicolon, "; %lf s, %lf MiB", &seconds, &mebibytes), 2)
      << outcome.output;
  EXPECT_LT(mebibytes, 1024);
}

// A ring over 16 hosts under 4 leaves.
std::string RingOverFourLeaves(const std::string& hashes) {
  return absl::StrCat(
      "paths --fabric leaf-spine:leaves=4,hosts_per_leaf=4,spines=4 --layout dp=16 --node gpus=1 "
      "--order random --traffic name=ring,axes=dp,collective=all_reduce,bytes=64MiB --hash ",
      hashes, " ");
}

TEST_F(WeftPlan, BlackBoxesThatNothingExplainsArePlannedByTables) {
  std::ofstream(folder_ / "hashes")
      << "weft-hashes 1\nhash * crc32:seed=7\nhash leaf1 mix:seed=1\n";
  const Outcome outcome =
      Plan(RingOverFourLeaves(File("hashes")) + "--black-box --json " + File("p.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("learned 4 of 4 switches with a choice"));
  EXPECT_THAT(outcome.output, HasSubstr("3 by the form of their hash, 0 by a linear map, 1 by "
                                        "tables of flows; 0 are unknown"));
  const json result = json::parse(Read(folder_ / "p.json"));
  EXPECT_EQ(result["open"], 0);
  EXPECT_GE(result["bound_ms"].get<double>(), 0.95 * result["after_ms"].get<double>());
}

TEST_F(WeftPlan, FlowsOverUnknownSwitchesAreSaidToHavePortsThatNobodyChose) {
  std::string text = "weft-hashes 1\nhash * crc32:seed=7\nunknown leaf1\n";
  for (int host = 0; host < 16; ++host) {
    absl::StrAppend(&text, "address h", host, " 0 10.1.", host / 4, ".", host % 4 + 1, "\n");
  }
  std::ofstream(folder_ / "hashes") << text;
  Outcome outcome = Plan(RingOverFourLeaves(File("hashes")) + "--out " + File("plan") + " --json " +
                         File("p.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const int open = json::parse(Read(folder_ / "p.json"))["open"];
  EXPECT_GT(open, 0);
  EXPECT_THAT(outcome.output,
              HasSubstr(absl::StrCat(open,
                                     " of 16 subflows have ports that nobody chose, as a "
                                     "switch on their way is not known (leaf1)")));
  int without_way = 0;
  const auto plan = *ParseConnectionPlan(Read(folder_ / "plan/paths.txt"), "paths.txt");
  for (const ConnectionPlanFlow& flow : plan.flows) {
    const auto leaf = [](const std::string& host) { return std::stoi(host.substr(1)) / 4; };
    const bool crosses = leaf(flow.source) != leaf(flow.target);
    EXPECT_EQ(flow.way.choices.empty(), !crosses || leaf(flow.source) == 1);
    without_way += crosses && flow.way.choices.empty() ? 1 : 0;
  }
  EXPECT_EQ(without_way, open);
  for (int leaf : {0, 2, 3}) absl::StrAppend(&text, "unknown leaf", leaf, "\n");
  std::ofstream(folder_ / "none") << text;
  outcome = Plan(RingOverFourLeaves(File("none")));
  EXPECT_NE(outcome.status, 0);
  // The flows under one leaf need no plan.
  EXPECT_THAT(outcome.output, HasSubstr("nothing can be planned: every flow that passes a switch "
                                        "with a choice passes one that is not known"));
}

// As the file is that weft-topo discover writes, before weft-topo learn-hash.
TEST_F(WeftPlan, AFileThatSaysNotWhatASwitchHashesIsNoneToPlanBy) {
  std::string text = "weft-hashes 1\nhash leaf0 crc32:seed=7\nhash leaf2 crc32:seed=7\n";
  for (int host = 0; host < 16; ++host) {
    absl::StrAppend(&text, "address h", host, " 0 10.1.", host / 4, ".", host % 4 + 1, "\n");
  }
  std::ofstream(folder_ / "hashes") << text;
  const std::string command = RingOverFourLeaves(File("hashes")) + "--out " + File("plan");
  Outcome outcome = Plan(command);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr(File("hashes") + " does not say what leaf1, leaf3 hash"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "plan"));
  std::ofstream(folder_ / "hashes") << text << "hash leaf1 crc32:seed=7\nunknown leaf3\n";
  outcome = Plan(command);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

// Results are tried before the work, when that folder is not there yet.
TEST_F(WeftPlan, ResultsMayLieInTheFolderThatIsMadeForThePlan) {
  std::ofstream(folder_ / "hashes") << "weft-hashes 1\nhash * crc32:seed=7\n";
  const std::string paths = RingOverFourLeaves(File("hashes")) + "--out ";
  Outcome outcome = Plan(paths + File("made/plan") + " --ports " + File("made/plan/ports.txt") +
                         " --json " + File("made/result.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "made/plan/ports.txt"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "made/result.json"));
  outcome =
      Plan("order " + job_ + "--out " + File("order") + " --json " + File("order/result.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "order/result.json"));
  outcome = Plan(paths + File("other") + " --ports " + File("other/none/ports.txt"));
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("write " + File("other/none/ports.txt")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
}

TEST_F(WeftPlan, ADirectoryThatCannotBeWrittenWholeHasNoPathsOfAnEarlierPlan) {
  std::ofstream(folder_ / "hashes") << "weft-hashes 1\nhash * crc32:seed=7\n";
  const std::string command = RingOverFourLeaves(File("hashes")) + "--out " + File("plan");
  Outcome outcome = Plan(command);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  ASSERT_TRUE(std::filesystem::exists(folder_ / "plan/paths.txt"));
  std::ofstream(folder_ / "plan/controller.txt") << "swift\n";  // as weft-cc tune --plan
  outcome = Plan(command);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("removed " + File("plan/controller.txt")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "plan/controller.txt"));
  std::filesystem::remove(folder_ / "plan/hashes.txt");
  std::filesystem::create_directory(folder_ / "plan/hashes.txt");  // in the way of the file
  outcome = Plan(command);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("write " + File("plan/hashes.txt")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "plan/paths.txt"));
}

TEST_F(WeftPlan, PathsNeverLoadALinkMoreThanBefore) {
  Outcome outcome = Plan("paths " + job_ + "--order random --ports " + File("ports") + " --json " +
                         File("p.json"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  json result = json::parse(Read(folder_ / "p.json"));
  EXPECT_LT(result["after_ms"].get<double>(), result["before_ms"].get<double>());
  EXPECT_GE(result["after_ms"].get<double>(), result["bound_ms"].get<double>() * (1 - 1e-9));
  std::string ports = Read(folder_ / "ports");
  // Rings of gradients and pipelines: every rank sends to several.
  EXPECT_GT(std::count(ports.begin(), ports.end(), '\n'), 128);
  EXPECT_THAT(Plan("paths " + job_ + "--only gradient").output, HasSubstr("it has "));
}

// Tensor groups and data groups of hosts with one GPU: their flows share the uplinks.
TEST_F(WeftPlan, PathsOfTrafficThatRunsAtOnceShareTheLinks) {
  const std::string job =
      "paths --fabric leaf-spine:leaves=4,spines=2,hosts_per_leaf=2 --node gpus=1 --layout "
      "tp=2,dp=4 --traffic name=a,axes=tp,collective=all_reduce,bytes=1MiB --traffic "
      "name=b,axes=dp,collective=all_reduce,bytes=1MiB --order random ";
  const auto planned = [&](const std::string& more) {
    const Outcome outcome = Plan(job + more + "--json " + File("p.json"));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return json::parse(Read(folder_ / "p.json"));
  };
  const json apart = planned(""), at_once = planned("--at-once ");
  EXPECT_EQ(apart["phases"].size(), 2U);
  ASSERT_EQ(at_once["phases"].size(), 1U);
  EXPECT_EQ(at_once["phases"][0]["traffic"], "all at once");
  EXPECT_EQ(at_once["phases"][0]["flows"].get<int>(),
            apart["phases"][0]["flows"].get<int>() + apart["phases"][1]["flows"].get<int>());
  // Where a link has room for both, they take less than one after the other.
  EXPECT_LE(at_once["after_ms"].get<double>(), apart["after_ms"].get<double>() * (1 + 1e-9));
  EXPECT_GE(at_once["after_ms"].get<double>(), at_once["bound_ms"].get<double>() * (1 - 1e-9));
}

// Transports take the rates to limit what planned connections have in flight.
TEST_F(WeftPlan, AnAllToAllLoadsCablesAlikeAndSaysWhatEachOfItsFlowsGets) {
  const std::string job =
      "paths --fabric leaf-spine:leaves=4,spines=2,hosts_per_leaf=2,bandwidth=100Gbps,"
      "spine_bandwidth=10Gbps --node gpus=1 --layout dp=8 --traffic "
      "name=a,axes=dp,collective=all_to_all,bytes=8MiB --transport tcp --order random ";
  for (const char* more : {"--seed 1 ", "--seed 2 ", "--seed 3 --at-once "}) {
    const Outcome outcome =
        Plan(absl::StrCat(job, more, "--json ", File("p.json"), " --out ", File("plan")));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const json row = json::parse(Read(folder_ / "p.json"))["phases"][0];
    EXPECT_EQ(row["flows"], 56);
    EXPECT_NEAR(row["after_ms"].get<double>(), row["bound_ms"].get<double>(), 1e-9);
    const auto plan = ParseConnectionPlan(Read(folder_ / "plan/paths.txt"), "paths.txt");
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::map<std::string, std::string> leaf_of;
    for (const ConnectionPlanHost& host : plan->hosts) leaf_of[host.name] = host.leaves[0];
    std::map<std::string, int> of_cable;
    for (const ConnectionPlanFlow& flow : plan->flows) {
      if (flow.way.choices.empty()) continue;  // under one leaf
      const std::string& spine = flow.way.choices[0].to;
      ++of_cable[absl::StrCat(leaf_of[flow.source], ">", spine)];
      ++of_cable[absl::StrCat(spine, ">", leaf_of[flow.target])];
      EXPECT_NEAR(flow.way.rate * row["after_ms"].get<double>() / 1e3, 1 << 20, 1);
    }
    EXPECT_EQ(of_cable.size(), 16u);
    for (const auto& [cable, count] : of_cable) EXPECT_EQ(count, 6) << cable;
  }
}

TEST_F(WeftPlan, TheSameSeedPrintsTheSameBytes) {
  std::string words = "order " + job_ + "--seed 7 --json - --effort 0.1";
  auto without_time = [](const std::string& text) {
    json result = json::parse(text);
    for (json& order : result["orders"]) order.erase("planning_seconds");
    return result.dump();
  };
  EXPECT_EQ(without_time(Plan(words, "").output), without_time(Plan(words, "").output));
}

TEST_F(WeftPlan, BadInputIsOneLineThatSaysWhatIsWrong) {
  struct Case {
    std::string arguments;
    int status;
    const char* message;
  };
  std::ofstream(File("job.toml")) << "[layout]\ndata = 4\npipelin = 2\n";
  std::ofstream(File("ranks.txt")) << "0 h0 0\n1 h0\n";
  for (const Case& one : std::vector<Case>{
           {"order --fabric nosuch:x=1 --layout dp=2 --model gpt-13b", 1, "nosuch"},
           {"order --fabric leaf-spine --hosts h[0 --layout dp=2 --model gpt-13b", 2,
            "character 4: expected ']'"},
           {"order --fabric leaf-spine --hosts h0,h999 --layout dp=2 --model gpt-13b", 1, "h999"},
           {"order --fabric leaf-spine --layout dp=2", 2, "no traffic"},
           {"order --fabric leaf-spine --job " + File("job.toml"), 2,
            "job.toml:3: [layout] has no key 'pipelin'; nearest: pipeline"},
           {"order --fabric leaf-spine --layout dp=2000 --model gpt-13b,global_batch=2000", 2,
            "needs 2000 hosts; the allocation has 128"},
           {"predict " + job_ + "--order " + File("ranks.txt"), 2, "ranks.txt:2: expected"},
           {"predict " + job_ + "--order nosuch", 1, "neither a rank file nor"},
           {"compare random " + job_, 2, "B is required"},
           {"order --effort nan " + job_, 2, "'nan' is no number from 0.001 to 1000"},
           {"order --balance luck " + job_, 2, "'luck' is no way of balancing"},
           {"paths --only nosuch " + job_, 2, "--only nosuch: the job has no such traffic"},
           {"verify " + File(".") + " --limit inf", 2, "--limit inf is no duration"}}) {
    Outcome outcome = Plan(one.arguments);
    EXPECT_NE(outcome.status, 0) << one.arguments << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(one.message)) << one.arguments;
    EXPECT_THAT(outcome.output, Not(HasSubstr("terminate")));
  }
  Outcome help = Plan("order --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, HasSubstr("SLURM_HOSTFILE"));
}

TEST_F(WeftPlan, CollectiveNamesItsChoiceWithRunnersUpAndDrawsIt) {
  const std::string group =
      "collective all_reduce --hosts 4 --ranks-per-host 8 --cores 64 --transport verbs ";
  const Outcome one = Plan(group + "--size 1KiB --size 64MiB --count 3");
  ASSERT_EQ(one.status, 0) << one.output;
  for (const char* text :
       {"32 ranks on 4 hosts", "64 cores each with a cache of ", "all_reduce of 1 KiB",
        "all_reduce of 64 MiB", "busbw", "; then ", "\n* "}) {
    EXPECT_THAT(one.output, HasSubstr(text));
  }
  const Outcome table =
      Plan(group + "--svg " + File("picture.svg") + " --json " + File("plan.json"));
  ASSERT_EQ(table.status, 0) << table.output;
  const json result = json::parse(Read(folder_ / "plan.json"));
  EXPECT_EQ(result["ranks"], 32);
  EXPECT_GT(result["cache_bytes"], 0);
  ASSERT_EQ(result["sizes"].size(), 10U);
  for (const json& size : result["sizes"]) {
    const json& plans = size["plans"];
    EXPECT_GE(plans.size(), 6U);
    const double best = plans[0]["time_us"], chosen = size["choice"]["time_us"];
    EXPECT_LE(chosen, best * 1.05 + 0.001);
    EXPECT_THAT(table.output, HasSubstr(size["choice"]["algorithm"].get<std::string>()));
  }
  const std::string picture = Read(folder_ / "picture.svg");
  for (const json& plan : result["sizes"][0]["plans"]) {
    EXPECT_THAT(picture, HasSubstr(">" + plan["algorithm"].get<std::string>() + "</text>"));
  }
  size_t rings = 0;
  for (size_t at = 0; (at = picture.find("planner's choice", at)) != std::string::npos; ++at) {
    ++rings;
  }
  EXPECT_EQ(rings, 10U);
}

// The network of a fabric replaces what was measured between hosts, and the settings force.
TEST_F(WeftPlan, CollectiveKnowsTheFabricAndTheSettingsThatForce) {
  auto time_us = [&](const std::string& arguments) {
    const Outcome outcome = Plan(
        "collective all_reduce --size 64MiB --cores 64 --transport verbs "
        "--json - " +
            arguments,
        "");
    EXPECT_EQ(outcome.status, 0) << arguments << outcome.output;
    return json::parse(outcome.output)["sizes"][0]["choice"];
  };
  const std::string fabric = "--fabric leaf-spine:leaves=2,spines=2,hosts_per_leaf=4,bandwidth=";
  const json slow = time_us(fabric + "10Gbps"), fast = time_us(fabric + "100Gbps");
  const double bound_us = 2 * 7 / 8.0 * (64 << 20) / 1.25e3;  // of a ring over NICs of 1.25 GB/s
  EXPECT_GE(slow["time_us"].get<double>(), bound_us * 0.999);
  EXPECT_LE(slow["time_us"].get<double>(), bound_us * 1.2);
  EXPECT_LT(fast["time_us"].get<double>(), slow["time_us"].get<double>() / 5);
  EXPECT_EQ(time_us("--hosts 8 --group dp1 --set "
                    "collective.algorithm_by_kind=all_reduce:1MiB..@dp*=tree")["algorithm"],
            "tree");
}

// Both levels of simulation put the algorithms in the same order, and the planner's choice is near
// the best of it.
TEST_F(WeftPlan, CollectiveSimulatesItsPlansOnTheFabric) {
  const std::string group =
      "collective all_reduce --cores 64 --transport verbs --size 64KiB --size 8MiB --fabric "
      "leaf-spine:leaves=2,spines=2,hosts_per_leaf=4,bandwidth=100Gbps ";
  auto simulated = [&](const std::string& level) {
    const Outcome outcome = Plan(group + "--json - --simulate " + level, "");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return json::parse(outcome.output)["sizes"];
  };
  const json flows = simulated("flow"), packets = simulated("packet");
  const double bound_us = 2 * 7 / 8.0 * (8 << 20) / 12.5e3;  // of a ring over NICs of 12.5 GB/s
  for (const json& plan : flows[1]["plans"]) {
    EXPECT_GE(plan["simulated_us"].get<double>(), bound_us) << plan;
  }
  size_t told_apart = 0;
  for (size_t size = 0; size < flows.size(); ++size) {
    EXPECT_LE(flows[size]["regret"].get<double>(), 0.5) << flows[size];
    std::map<std::string, double> by_packets;
    for (const json& plan : packets[size]["plans"]) {
      by_packets[plan["algorithm"]] = plan["simulated_us"];
    }
    for (const json& a : flows[size]["plans"]) {
      for (const json& b : flows[size]["plans"]) {
        if (a["simulated_us"].get<double>() * 1.25 > b["simulated_us"].get<double>()) continue;
        EXPECT_LT(by_packets[a["algorithm"]], by_packets[b["algorithm"]]) << a << b;
        ++told_apart;
      }
    }
  }
  EXPECT_GT(told_apart, 20U);
}

TEST_F(WeftPlan, CollectiveDrawsAndSumsUpWhatItSimulates) {
  const Outcome outcome = Plan(
      "collective all_gather --transport verbs --sizes 64KiB..1MiB --simulate flow --fabric "
      "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2 --ranks-per-host 2 --svg " +
      File("picture.svg"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("simulated (us)"));
  EXPECT_THAT(outcome.output, HasSubstr("on average over 3 sizes"));
  EXPECT_THAT(Read(folder_ / "picture.svg"), HasSubstr("simulated bus bandwidth"));
  const Outcome none = Plan(
      "collective all_gather --transport verbs --size 1MiB --simulate flow --steps 10 --fabric "
      "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2");
  EXPECT_THAT(none.output, HasSubstr("no choice was simulated: the schedules have too many steps"));
}

// A panel for each fabric, on axes in common, and one legend for all.
TEST_F(WeftPlan, CollectiveDrawsAPanelForEachFabric) {
  const std::string switch8 = "leaf-spine:leaves=1,spines=1,hosts_per_leaf=8";
  const std::string rails = "rail-optimised:groups=2,hosts_per_group=2,rails=4,spines=4";
  const Outcome outcome =
      Plan(absl::StrCat("collective --fabric ", switch8, " --fabric ", rails,
                        " all_reduce --transport verbs --sizes 64KiB..1MiB --svg ",
                        File("panels.svg"), " --json ", File("panels.json")));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("8 ranks on 8 hosts of " + switch8));
  EXPECT_THAT(outcome.output, HasSubstr("16 ranks on 4 hosts"));
  const json results = json::parse(Read(folder_ / "panels.json"))["fabrics"];
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0]["ranks"], 8);
  EXPECT_EQ(results[1]["fabric"], rails);
  const std::string svg = Read(folder_ / "panels.svg");
  EXPECT_THAT(svg, HasSubstr("all_reduce: predicted bus bandwidth, GB/s, by size"));
  EXPECT_THAT(svg, HasSubstr(">" + switch8 + "<"));
  EXPECT_THAT(svg, HasSubstr(">" + rails + "<"));
  auto count = [&](const std::string& text) {
    size_t found = 0;
    for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count(">ring</text>"), 1U);  // in the legend
  size_t lines = 0;
  for (const json& result : results) lines += result["sizes"][0]["plans"].size();
  EXPECT_EQ(count("<polyline"), lines);
  EXPECT_EQ(count("<circle"), 2 * results[0]["sizes"].size());
}

// Eight data groups leave each host at once; a tensor group is alone there.
TEST_F(WeftPlan, CollectivePlansAllGroupsOfAJobAtOnce) {
  const std::string job =
      "collective all_reduce --mesh tp8,dp4 --hosts 4 --ranks-per-host 8 --cores 64 --transport "
      "verbs --size 16KiB --size 64MiB ";
  const Outcome outcome = Plan(job + "--json -", "");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json axes = json::parse(outcome.output)["axes"];
  ASSERT_EQ(axes.size(), 2U);
  EXPECT_EQ(axes[0]["axis"], "tensor");
  EXPECT_EQ(axes[0]["groups_at_once"], 1);
  EXPECT_EQ(axes[0]["sizes"][1]["choice"], axes[0]["sizes"][1]["alone"]);
  EXPECT_EQ(axes[1]["groups_at_once"], 8);
  for (const json& size : axes[1]["sizes"]) {
    const double shared = size["choice"]["time_us"], unaware = size["unaware_us"];
    EXPECT_LE(shared, unaware * 1.05) << size;
    EXPECT_GT(shared, size["alone"]["time_us"].get<double>() * 2) << size;
  }
  const Outcome table = Plan(job);
  EXPECT_THAT(table.output, HasSubstr("data: groups of 4 ranks on 4 hosts, 8 at once on a host\n"));
  // Pipelines beside them, where the job says that both run at once.
  const Outcome both = Plan(
      "collective all_reduce --mesh dp4,pp2 --hosts 8 --cores 64 --transport verbs --size 64MiB "
      "--set collective.axes_at_once=all");
  EXPECT_THAT(both.output, HasSubstr("data: groups of 4 ranks on 4 hosts, 1 at once on a host, and "
                                     "1 along other axes at its NICs\n"));
}

// Counts per rank are planned as a call whose ranks all know the average, of the size given.
TEST_F(WeftPlan, CollectiveHonoursTheSizeOfCountsPerRank) {
  for (const char* kind : {"all_to_all_v", "all_gather_v"}) {
    const auto times = [&](const std::string& what) {
      const Outcome outcome = Plan(absl::StrCat(
          "collective ", what,
          " --hosts 8 --transport verbs --cores 64 --size 1KiB --size 64MiB --json -"));
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      const json result = json::parse(outcome.output);
      return std::pair<double, double>(result["sizes"][0]["choice"]["time_us"],
                                       result["sizes"][1]["choice"]["time_us"]);
    };
    const auto counted = times(kind);
    EXPECT_GT(counted.second, counted.first * 100) << kind;
    if (kind == std::string("all_to_all_v")) {
      EXPECT_EQ(counted, times("all_to_all"));
    }
  }
}

// As weft-bw measures it: 35 elements of each of 7 ranks, or none at all.
TEST_F(WeftPlan, CollectiveNamesTheSizeThatWholeElementsOfEveryRankTakeUp) {
  for (const char* kind : {"all_gather", "all_gather_v", "all_to_all_v", "reduce_scatter"}) {
    const Outcome outcome =
        Plan(absl::StrCat("collective ", kind, " --hosts 7 --size 1000 --size 27 --json -"), "");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const json sizes = json::parse(outcome.output)["sizes"];
    EXPECT_EQ(sizes[0]["bytes"], 980) << kind;
    EXPECT_EQ(sizes[1]["bytes"], 0) << kind;
    EXPECT_EQ(sizes[1]["choice"]["busbw_gbytes_per_s"], 0) << kind;
  }
  const Outcome whole = Plan("collective all_reduce --hosts 7 --size 1001 --json -", "");
  ASSERT_EQ(whole.status, 0) << whole.output;
  EXPECT_EQ(json::parse(whole.output)["sizes"][0]["bytes"], 1000);
}

// What the tuner asks NCCL for: flags for small sizes, and the whole bandwidth for large ones.
TEST_F(WeftPlan, CollectivePredictsNcclsOwnAlgorithms) {
  const std::string ask =
      "collective all_reduce --nccl --ranks-per-host 8 --size 1KiB --size 256MiB --fabric "
      "leaf-spine:leaves=4,hosts_per_leaf=4,nics=8,bandwidth=400Gbps ";
  const Outcome outcome = Plan(ask + "--json -", "");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json result = json::parse(outcome.output);
  EXPECT_EQ(result["ranks"], 128);
  EXPECT_EQ(result["sizes"][0]["times"].size(), 6U);
  EXPECT_EQ(result["sizes"][0]["times"][0]["name"], "Tree/LL");
  EXPECT_THAT(std::string(result["sizes"][1]["times"][0]["name"]), testing::EndsWith("/Simple"));
  EXPECT_THAT(Plan(ask).output,
              HasSubstr("all_reduce by NCCL: 128 ranks on 16 hosts of leaf-spine"));
}

TEST_F(WeftPlan, CollectiveNamesWhatIsWrong) {
  const std::pair<const char*, const char*> wrongs[] = {
      {"all_redcue", "there are all_reduce"},
      {"all_reduce --sizes 1MiB", "\"1MiB\" is no range"},
      {"all_reduce --sizes 0..1MiB", "must rise"},
      {"all_reduce --hosts h0", "names of hosts need --fabric"},
      {"all_reduce --fabric leaf-spine:leaves=2,spines=1,hosts_per_leaf=2 --hosts 5", "1 to 4"},
      {"all_reduce --fabric leaf-spine:leaves=2,spines=1,hosts_per_leaf=2 --hosts h7", "h7"},
      {"all_reduce --hosts 4 --simulate flow", "--fabric"},
      {"all_reduce --simulate fluid", "fluid"},
      {"all_reduce --set collective.axes_at_once=rows", "collective.axes_at_once \"rows\""},
      {"all_reduce --hosts 4 --nccl", "--nccl needs the fabric"},
      {"all_to_all --nccl --fabric leaf-spine:leaves=2,spines=1,hosts_per_leaf=2",
       "NCCL chooses nothing for all_to_all"},
      {"all_reduce --mesh tp8,dp4 --hosts 4", "--mesh tp8,dp4 are 32 ranks; 4 hosts of 1 are 4"},
      {"all_reduce --mesh tp1", "no group of more than one rank"},
      {"all_reduce --mesh tp2 --fabric a --fabric b", "a second --fabric"},
      {"all_reduce --mesh tp2 --hosts 2 --nccl", "without --nccl"},
      {"all_reduce --hosts 2 --size 2000TB", "--size 2000TB is above 1 PiB"},
      {"all_reduce --hosts 2 --size 1X", "--size: \"1X\" is not a size"},
      {"all_reduce --hosts 2 --sizes 1KiB..much", "--sizes: \"much\" is not a size"},
      {"all_reduce --hosts 2 --size 1MiB --sizes 1KiB..1MiB", "--size excludes --sizes"},
      {"all_reduce --hosts 2 --count 3", "--count requires --size"},
      {"all_reduce --hosts 2 --steps 10", "--steps requires --simulate"},
      {"all_reduce --hosts 2 --load-balance ecmp", "--load-balance requires --simulate"},
      {"all_reduce --hosts 2000000", "--hosts 2000000: a group has at most 1048576 ranks"},
      {"all_reduce --hosts 2048 --ranks-per-host 1024",
       "2048 hosts with --ranks-per-host 1024 are 2097152 ranks; a group has at most 1048576"},
      {"broadcast --mesh tp2,dp3 --hosts 6 --root 2", "--root 2 of 2 ranks along tensor"},
      {"broadcast --hosts 2 --root 3", "--root 3 of a group of 2 ranks"},
      {"all_reduce", "at least two ranks"},
      {"all_reduce --hosts 4 --set collective.algorithm=bruck",
       "collective.algorithm=bruck: all_reduce has auto, multicast, oneshot, ring"},
      {"all_reduce --set collective.algorithm_by_kind=all_reduce=bruck", "all_reduce lacks"},
      {"all_reduce --set collective.costs=/nowhere/costs", "/nowhere/costs"}};
  for (const auto& [arguments, text] : wrongs) {
    const Outcome outcome = Plan(absl::StrCat("collective ", arguments));
    EXPECT_NE(outcome.status, 0) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(text)) << arguments;
  }
}

}  // namespace
}  // namespace weft::topology
