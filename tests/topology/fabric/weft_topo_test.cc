// weft-topo as its users run it, on fabrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.h"

namespace weft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Outcome Topo(const std::string& arguments) { return RunProgram("weft-topo " + arguments); }

class WeftTopo : public ::testing::Test {
 protected:
  WeftTopo() {
    std::string path = (std::filesystem::temp_directory_path() / "weft-topo-XXXXXX").string();
    folder_ = mkdtemp(path.data());
  }
  ~WeftTopo() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(WeftTopo, ShowsAFabricForPeopleAndMachines) {
  Outcome outcome = Topo("show leaf-spine:leaves=4,hosts_per_leaf=4,spines=2");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("2:1 oversubscribed"));
  EXPECT_THAT(outcome.output, HasSubstr("bisection  1600 Gbps (0.5 of full)"));
  outcome = Topo("show megascale --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  json result = json::parse(outcome.output);
  EXPECT_EQ(result["nics"], 12288);
  EXPECT_EQ(result["tiers"][2]["switches"], 128);
  outcome = RunProgram("weft-topo show leaf-spine --routes --json -", "2>/dev/null");
  EXPECT_FALSE(json::parse(outcome.output, nullptr, false).is_discarded()) << outcome.output;
  std::string svg = (folder_ / "f.svg").string();
  EXPECT_EQ(Topo("show fat-tree --routes --svg " + svg).status, 0);
  EXPECT_GT(std::filesystem::file_size(svg), 1000u);
}

TEST_F(WeftTopo, ChecksWithAnExitStatusForScripts) {
  EXPECT_EQ(Topo("check fat-tree").status, 0);
  Outcome outcome = Topo("check leaf-spine:leaves=2 --down 'leaf0>spine[0-15]' --json -");
  EXPECT_EQ(outcome.status, 1);
  json result = json::parse(outcome.output);
  EXPECT_EQ(result["ok"], false);
  EXPECT_EQ(result["findings"][0]["kind"], "unreachable");
}

TEST_F(WeftTopo, TellsTheDistanceOfHostsAndRanks) {
  Outcome outcome = Topo("distance megascale h0/3 h1535/3");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("6 hops, 8192 equal-cost paths"));
  outcome = Topo("distance rail-optimised 0 9 --json -");
  json result = json::parse(outcome.output);
  EXPECT_EQ(result["from"], "h0/0");
  EXPECT_EQ(result["to"], "h1/1");
  EXPECT_EQ(result["hops"], 4);
  EXPECT_EQ(json::parse(Topo("distance leaf-spine 0 9 --ranks-per-host 8 --json -").output)["to"],
            "h1");
  outcome = Topo("distance leaf-spine h0 h17 --down 'leaf1>spine[0-14]' --down leaf0");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("unreachable"));
  EXPECT_THAT(Topo("distance leaf-spine 0 128").output, HasSubstr("no rank 128: 128 ranks"));
  EXPECT_THAT(Topo("distance leaf-spine h0/1 h1").output, HasSubstr("has no NIC 1"));
}

TEST_F(WeftTopo, ConvertsWhatItReadsAndReadsWhatItWrites) {
  std::string slurm = Write("topology.conf",
                            "SwitchName=l0 Nodes=n[0-3]\nSwitchName=l1 Nodes=n[4-7]\n"
                            "SwitchName=s Switches=l[0-1]\n");
  std::string out = (folder_ / "fabric.toml").string();
  Outcome outcome = Topo("convert " + slurm + " " + out + " --bandwidth 200Gbps");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(Topo("show " + out).output, HasSubstr("8 hosts, 8 NICs"));
  EXPECT_EQ(Topo("convert " + out + " -").output,
            Topo("convert " + slurm + " - --bandwidth 200Gbps").output);
  EXPECT_THAT(Topo("convert - - --format hosts < " + Write("list", "h[0-1] -> l\n")).output,
              HasSubstr("pairs"));
}

TEST_F(WeftTopo, SaysInOneLineWhatIsWrong) {
  std::string bad = Write("bad.toml", "generate = { type = \"leaf-spine\",\n leavs = 4 }\n");
  for (const auto& [arguments, message] :
       {std::pair{"show " + bad, std::string("bad.toml:1: not valid TOML")},
        {"show " + Write("b.toml", "[generate]\ntype = \"leaf-spine\"\nleavs = 4\n"),
         "b.toml:3: generator leaf-spine has no \"leavs\"; nearest: leaves"},
        {"check nothing", "there is no such file"},
        {"check leaf-spine --down leaf99", "no node \"leaf99\""},
        {"show leaf-spine --svg /nowhere/x.svg", "write /nowhere/x.svg"}}) {
    Outcome outcome = Topo(arguments);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(message)) << arguments;
  }
  for (const auto& [arguments, message] :
       {std::pair{"show leaf-spine --bandwidth 5", "is not a bandwidth"},
        {"show leaf-spine --delay -1us", "is no time"},
        {"show leaf-spine --latency soon", "is no time"},
        {"show leaf-spine --buffer much", "much"},
        {"discover --timeout 0s", "is no time above 0"},
        {"discover --load-rate much", "is not a bandwidth"},
        {"discover --load-traffic much", "much"},
        {"discover --load-limit soon", "is no time above 0"},
        {"discover --switch-bandwidth spine1=much", "is not a bandwidth"},
        {"learn-hash folder --limit soon", "is no time above 0"}}) {
    const Outcome outcome = Topo(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(message)) << arguments;
  }
  EXPECT_EQ(Topo("show").status, 2);
  EXPECT_EQ(Topo("show leaf-spine --format nothing").status, 2);
  EXPECT_EQ(Topo("show --help").status, 0);
  EXPECT_THAT(Topo("show --help").output, HasSubstr("rail-optimised"));
}

}  // namespace
}  // namespace weft
