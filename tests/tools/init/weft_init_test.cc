// weft-init as its users run it, and its model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/tools/init/json_outcome.h"
#include "tools/init/model.h"
#include "tools/init/options.h"

namespace weft::init {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Outcome Init(const std::string& arguments) { return RunWithJson("weft-init", arguments); }

TEST(WeftInit, PhasesAddUpWithAndWithoutRelays) {
  for (const char* relay : {"", " --relay"}) {
    Outcome outcome = Init(std::string("phases --layout tp4,pp2,dp4 --hosts 8") + relay);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const json& result = outcome.result;
    EXPECT_EQ(result["ranks"], 32);
    EXPECT_EQ(result["hosts"], 8);
    EXPECT_EQ(result["store"], "weft");
    ExpectPhasesAddUp(result);
    EXPECT_THAT(outcome.output, HasSubstr("exchange"));
    // Flat: challenge, hello, verdict, and two requests with their replies, for each rank.
    if (*relay == '\0') {
      EXPECT_EQ(result["messages"], 32 * 7);
    }
    if (*relay != '\0') {
      EXPECT_LT(result["root_messages"], 32 * 7);
    }
  }
}

// 112 ranks on 14 hosts: a quarter of the hosts is no whole number.
TEST(Options, SmallerLayoutsForTheModelSpreadOverWholeHosts) {
  Options options;
  options.layout = "tp7,dp16";
  ASSERT_TRUE(Resolve(options).ok());
  for (int factor : {8, 4, 2}) {
    Options small = Shrink(options, factor);
    const absl::Status resolved = Resolve(small);
    EXPECT_TRUE(resolved.ok()) << resolved;
    EXPECT_EQ(small.ranks % small.hosts, 0);
  }
}

TEST(WeftInit, RecordsGrowWithTheRanksUnlessAllOfThemAreAskedFor) {
  auto run = [](const char* layout, int hosts, const char* more) {
    Outcome outcome = Init(std::string("phases --layout ") + layout + " --hosts " +
                           std::to_string(hosts) + " --relay " + more);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.result;
  };
  json small = run("tp4,pp2,dp8", 16, "");
  json large = run("tp4,pp2,dp16", 32, "");
  json all = run("tp4,pp2,dp16", 32, "--records all");
  EXPECT_EQ(small["records"], "wanted");
  // Eight ranks of other hosts and two roots' hosts, however many there are; ids go with the roots.
  EXPECT_LT(large["exchange_bytes"], 1.1 * small["exchange_bytes"].get<double>());
  EXPECT_LT(2 * large["exchange_bytes"].get<int64_t>(), all["exchange_bytes"].get<int64_t>());
  EXPECT_LT(large["root_sent_bytes"], all["root_sent_bytes"]);
  EXPECT_GE(all["root_sent_bytes"], 32 * all["exchange_bytes"].get<int64_t>());
  EXPECT_GE(large["root_sent_bytes"], 32 * large["exchange_bytes"].get<int64_t>());
}

TEST(WeftInit, ReplacementReachesThePeersAndNobodyElse) {
  for (const char* relay : {"", " --relay"}) {
    Outcome outcome =
        Init(std::string("phases --layout tp4,pp2,dp4 --hosts 8 --replace 4") + relay);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    // One host, which is one tp group, is new: each of its ranks has 1 peer along pp and 3 along
    // dp.
    EXPECT_EQ(outcome.result["replaced"], 4);
    EXPECT_THAT(outcome.output, HasSubstr("16 groups' survivors"));
    EXPECT_GT(outcome.result["replace_seconds"], 0);
  }
}

// All listen at a port that is drawn, at the addresses from which all dial. In a namespace with a
// hundred ports to draw from, what one run leaves is in the way of the next.
TEST(WeftInit, RunsAfterEachOtherDoNotRunOutOfPorts) {
  if (Shell("unshare -n true").status != 0) GTEST_SKIP() << "may not make network namespaces";
  const weft::Outcome outcome = Shell(
      "unshare -n sh -c 'ip link set lo up;"
      " echo 40000 40100 > /proc/sys/net/ipv4/ip_local_port_range;"
      " for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do"
      " $WEFT_BIN/weft-init phases --layout tp4,pp2,dp4 --hosts 8 || exit 1; done'");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(WeftInit, OpensEveryPlannedConnectionOnce) {
  // Rings: 8 of 4 have 4 edges each, 16 of 2 have one, 8 of 4 have 4.
  Outcome outcome = Init("phases --layout tp4,pp2,dp4 --hosts 8");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.result["connections"], 8 * 4 + 16 + 8 * 4);
  // One host's 4 ranks have the 4 edges of their own ring, and 1 and 2 peers of each elsewhere.
  outcome = Init("phases --layout tp4,pp2,dp4 --hosts 8 --connect-ranks 4");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.result["connections"], 4 + 4 * 3);
  EXPECT_THAT(outcome.output, HasSubstr("all of those of 4 ranks"));
  outcome = Init("phases --layout tp4,pp2,dp4 --hosts 8 --connect-ranks 0");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.result["connections"], 0);
}

TEST(WeftInit, OperationsAreCountedWithTheirMessages) {
  Outcome outcome = Init("operations --connections 1,4 --depths 1,8 --op-time 20ms");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json& rows = outcome.result["ops"];
  ASSERT_EQ(rows.size(), 2 * 2 * 3);
  for (const json& row : rows) {
    EXPECT_GT(row["operations"], 0);
    EXPECT_NEAR(row["messages_per_operation"].get<double>(), 2, 1e-9) << row;
    EXPECT_GE(row["p99_seconds"], row["p50_seconds"]);
  }
}

TEST(WeftInit, RealProcessesMakeNewGroups) {
  Outcome outcome = Init("new-group --ranks 4");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.result["ranks"], 4);
  EXPECT_GT(outcome.result["made_seconds"], 0);
  EXPECT_GT(outcome.result["ready_seconds"], outcome.result["made_seconds"]);
  EXPECT_EQ(outcome.result["all_ready_seconds"].size(), 5);
}

TEST(WeftInit, SimulatesThePlannedMessages) {
#ifndef WEFT_INIT_SIMULATES
  GTEST_SKIP() << "built without the simulator";
#endif
  std::string costs = " --costs connection=20us,message=4us,byte=0.2ns,host=1ms,link=30us";
  Outcome flat = Init("simulate --layout tp8,pp2,dp16" + costs);
  ASSERT_EQ(flat.status, 0) << flat.output;
  EXPECT_EQ(flat.result["hosts"], 32);
  // To and from the root: 4 to connect, 2 to register, 2 to exchange, for each host.
  EXPECT_EQ(flat.result["root_messages"], 32 * 8);
  // What the root has to do one after the other is a bound.
  EXPECT_GE(flat.result["total_seconds"], flat.result["server_cpu_seconds"]);
  Outcome tree = Init("simulate --layout tp8,pp2,dp16 --fan-out 8" + costs);
  ASSERT_EQ(tree.status, 0) << tree.output;
  EXPECT_EQ(tree.result["root_messages"], 4 * 8);
  EXPECT_LT(tree.result["server_cpu_seconds"], flat.result["server_cpu_seconds"]);
  // The same arguments give the same times.
  EXPECT_EQ(Init("simulate --layout tp8,pp2,dp16" + costs).result["phases"], flat.result["phases"]);
}

// However small the bound of an answer is; the store's process is to start within it, too.
TEST(WeftInit, OperationsMayBeMeasuredForLongerThanAnAnswerMayTake) {
  Outcome outcome = Init("--timeout 2s operations --op-time 2400ms --connections 1 --depths 1");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.result["ops"].size(), 3U);
}

TEST(WeftInit, ALayoutOfAnySizeHasHostsOfOneSize) {
  Outcome outcome = Init("phases --layout tp5,dp5");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.result["hosts"], 1);
}

TEST(WeftInit, RefusesWhatMakesNoSense) {
  for (auto [arguments, why] :
       {std::pair("phases --layout tp8,tp2", "names an axis again"),
        std::pair("phases --layout tp8 --ranks 9", "--ranks 9"),
        std::pair("phases --layout tp8 --hosts 3", "spread evenly"),
        std::pair("phases --layout tp8 --replace 7", "--replace 7"),
        std::pair("phases --layout tp4,dp4 --hosts 4 --replace 3", "in whole hosts, of 4 ranks"),
        std::pair("phases --layout tp8 --timeout inf", "no duration"),
        std::pair("phases --layout tp8,dp3 --model", "multiple of 8"),
        std::pair("phases --layout tp8 --timeout soon", "no duration"),
        std::pair("operations --op-time 0s", "--op-time 0s"),
        std::pair("operations new-group", "new-group"),
        std::pair("phases --layout tp8 --replace 4 --records all", "--replace 4")}) {
    Outcome outcome = Init(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(why));
  }
}

TEST(WeftInit, RefusesASimulationThatMakesNoSense) {
#ifndef WEFT_INIT_SIMULATES
  GTEST_SKIP() << "built without the simulator";
#endif
  for (auto [arguments, why] :
       {std::pair("simulate --costs byte=1", "'byte=1' is none"),
        std::pair("simulate --costs message=infus", "'message=infus' is none"),
        std::pair("simulate --costs link=1us --fabric leaf-spine:hosts=2", "has 2 hosts")}) {
    Outcome outcome = Init(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(why));
  }
}

TEST(Model, FindsTheLawBehindExactPoints) {
  auto law = [](double n) { return 0.01 + 20e-6 * n + 3e-9 * n * n; };
  Model model = Fit({{2048, law(2048)}, {4096, law(4096)}, {8192, law(8192)}});
  EXPECT_NEAR(model(65536) / law(65536), 1, 1e-3);
}

TEST(Model, LeavesTheSquareOutWhereThatIsAsked) {
  Model model = Fit({{100, 1}, {200, 2}, {300, 3.1}}, 2);
  EXPECT_EQ(model.coefficients[2], 0);
  EXPECT_NEAR(model(400), 4, 0.2);
}

TEST(Model, NeverGivesNegativeTimes) {
  Model model = Fit({{1000, 1.0}, {2000, 1.5}, {4000, 1.6}});
  for (double c : model.coefficients) EXPECT_GE(c, 0);
  EXPECT_GT(model(100), 0);
  EXPECT_EQ(Fit({{1000, 2.0}})(1000), 2.0);
}

// The lines of a file.
std::multiset<std::string> LinesOf(const std::string& path) {
  std::multiset<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

TEST(WeftInit, NcclsCommunicatorsComeFromTheIdsOfTheExchangeAndByASplit) {
  std::string log = testing::TempDir() + "weft-init-nccl-" + std::to_string(getpid());
  setenv("SCRIPTED_DEVICE_LOG", log.c_str(), 1);
  Outcome outcome = Init(std::string("nccl --layout tp2,dp2 --ranks-per-root 1 --cuda-library ") +
                         SCRIPTED_DEVICE);
  unsetenv("SCRIPTED_DEVICE_LOG");
  std::multiset<std::string> lines = LinesOf(log);
  unlink(log.c_str());
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("ncclCommInitRankScalable"));
  EXPECT_TRUE(outcome.result["shared_gpus"].get<bool>());  // 4 ranks, 2 of them
  // Each rank: its tp and its dp group, an id a rank; the world; both groups split off it.
  EXPECT_EQ(lines.count("init 2 ids 2"), 8U);
  EXPECT_EQ(lines.count("init 4 ids 4"), 4U);
  EXPECT_EQ(lines.count("split 4"), 8U);
  EXPECT_EQ(lines.count("device 0"), 2U);
  EXPECT_EQ(lines.count("device 1"), 2U);
}

TEST(WeftInit, ACommunicatorThatAddsUpWronglyFailsTheRunAndIsNamed) {
  setenv("SCRIPTED_DEVICE_BREAKS", "1", 1);
  Outcome outcome = Init(std::string("nccl --layout tp2,dp2 --cuda-library ") + SCRIPTED_DEVICE);
  unsetenv("SCRIPTED_DEVICE_BREAKS");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("of tensor: a group of 2 ranks adds up ones to 1"));
}

TEST(WeftInit, NcclSaysWhatIsMissingWhereThereIsNoGpu) {
  Outcome outcome = Init("nccl --layout tp2,dp2 --cuda-library libweft-cuda-not-there.so");
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.output, HasSubstr("libweft-cuda-not-there.so"));
}

}  // namespace
}  // namespace weft::init
