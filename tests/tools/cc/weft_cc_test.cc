// weft-cc, and weft-sim with --cc and --policy, as their users run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/run_program.h"

namespace weft::cc {
namespace {

using ::testing::HasSubstr;

TEST(WeftCcTest, ListsControllersPoliciesScenariosAndFigures) {
  Outcome outcome = RunProgram("weft-cc list");
  EXPECT_EQ(outcome.status, 0);
  for (const char* word : {"swift", "max_mdf", "reps", "all-to-all", "dead-link"}) {
    EXPECT_THAT(outcome.output, HasSubstr(word));
  }
}

TEST(WeftCcTest, ComparesWhatItIsAskedTo) {
  Outcome outcome = RunProgram(
      "weft-cc compare --scenario permutation --cc swift fixed:window=1 --policy single,reps "
      "--json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  auto rows = nlohmann::json::parse(outcome.output);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3]["controller"], "fixed:window=1");
  EXPECT_EQ(rows[3]["policy"], "reps");
  for (const auto& row : rows) {
    EXPECT_EQ(row["unfinished"], 0);
    EXPECT_GT(row["goodput"].get<double>(), 0.1);
    EXPECT_LE(row["goodput"].get<double>(), 1.0);
  }
  EXPECT_GT(rows[3]["goodput"].get<double>(), rows[2]["goodput"].get<double>())
      << "one path of sixteen meets others";
}

TEST(WeftCcTest, TunesNoWorseThanWhereItBegan) {
  Outcome outcome = RunProgram(
      "weft-cc tune --scenario incast --fabric leaf-spine:leaves=1,hosts_per_leaf=9,spines=1 "
      "--workload incast:fan_in=8,bytes=500KB --cc swift --parameter hop ai --runs 8 --json "
      "/dev/stderr");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\"controller\": \"swift\""));
  EXPECT_THAT(outcome.output, HasSubstr("\"controller\": \"swift:ai="));
}

const char kSmallTune[] =
    "weft-cc tune --fabric leaf-spine:leaves=1,hosts_per_leaf=9,spines=1 "
    "--workload incast:fan_in=8,bytes=200KB ";

// The default of hybrid's g is the largest that it may be: draws are cut off there.
TEST(WeftCcTest, TunesBackToADefaultThatTheSearchDidNotBeginAt) {
  Outcome outcome =
      RunProgram(absl::StrCat(kSmallTune, "--cc hybrid:g=0.5 --parameter g --runs 24 --json -"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  int at_default = 0;
  for (const auto& row : nlohmann::json::parse(outcome.output)) {
    at_default += row["controller"] == "hybrid" ? 1 : 0;
  }
  EXPECT_GT(at_default, 0) << outcome.output;
}

TEST(WeftCcTest, FindsNoBestWhereNothingEnds) {
  const std::string best = absl::StrCat(testing::TempDir(), "/weft_cc_best_", getpid());
  Outcome outcome = RunProgram(
      "weft-cc tune --fabric leaf-spine:leaves=1,hosts_per_leaf=2,spines=1,bandwidth=10Mbps "
      "--workload incast:fan_in=1,bytes=1MB --parameter ai --runs 2 --out " +
      best);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("in none of 2 runs had all transfers ended after 100ms"));
  EXPECT_FALSE(std::filesystem::exists(best));
}

TEST(WeftCcTest, TunesForAPlansFabricAndTrafficIntoThePlan) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("weft_cc_plan_", getpid());
  const std::string plan = (folder / "plan").string();
  Outcome planned = RunProgram(
      "weft-plan paths --fabric leaf-spine:leaves=2,hosts_per_leaf=4,spines=2 --layout dp=8 "
      "--node gpus=1 --traffic name=g,axes=dp,collective=all_to_all,bytes=64MiB --out " +
      plan);
  ASSERT_EQ(planned.status, 0) << planned.output;
  Outcome tuned = RunProgram("weft-cc tune --plan " + plan +
                             " --largest-flow 64KiB --cc swift --parameter ai --runs 4");
  ASSERT_EQ(tuned.status, 0) << tuned.output;
  EXPECT_THAT(tuned.output, HasSubstr(": 56 flows, their bytes times 0.0078"));
  std::ifstream written(folder / "plan" / "controller.txt");
  std::string line;
  ASSERT_TRUE(std::getline(written, line));
  EXPECT_EQ(line.substr(0, 5), "swift");
  Outcome both = RunProgram("weft-cc tune --plan " + plan + " --workload incast");
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.output, HasSubstr("--plan and --workload exclude each other"));
  EXPECT_THAT(RunProgram("weft-cc tune --plan /nowhere").output, HasSubstr("/nowhere/fabric.toml"));
  std::filesystem::remove_all(folder);
}

TEST(WeftCcTest, WrongUsageIsOneClearLineAndStatusTwo) {
  ExpectWrongUsage(RunProgram("weft-cc compare --scenario permutation --cc cubic"),
                   "weft-cc: no controller 'cubic'; there are fixed, dcqcn");
  // Before anything is run for the words that are right.
  ExpectWrongUsage(RunProgram("weft-cc compare --cc swift swift:speed=1"),
                   "swift has no parameter 'speed'");
  ExpectWrongUsage(RunProgram("weft-cc tune --queue-weight nan"), "'nan' is no number from 0 to 1");
  ExpectWrongUsage(RunProgram("weft-cc compare --scenario nowhere"),
                   "no scenario 'nowhere'; there are permutation");
  ExpectWrongUsage(RunProgram("weft-cc figures --only nothing"), "");
}

const char kSim[] =
    "weft-sim --fabric leaf-spine:leaves=2,hosts_per_leaf=4,spines=4 --workload "
    "permutation:bytes=100KB --quiet ";

TEST(WeftSimTest, RunsTheMultipathProtocol) {
  Outcome outcome =
      RunProgram(absl::StrCat(kSim, "--transport multipath --cc swift --policy reps --json -"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json["unfinished"], 0);
}

TEST(WeftSimTest, NamesWhatIsWrongWithAController) {
  Outcome outcome = RunProgram(absl::StrCat(kSim, "--transport multipath --cc swift:speed=1"));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("swift has no parameter 'speed'; it has ai, beta"));
  outcome = RunProgram(absl::StrCat(kSim, "--transport roce --cc hpcc"));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("no telemetry"));
}

}  // namespace
}  // namespace weft::cc
