// init_bench as tools/dev bench init runs it: peers' real servers, and the kernel's floor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/init/json_outcome.h"

namespace weft::init {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Outcome Bench(const std::string& arguments) { return RunWithJson("tests/init_bench", arguments); }

// Where there is none, the error names what is missing, which the test after these looks at.
bool Installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

// An interpreter with torch, or nothing.
std::string TorchPython() {
  std::string source = std::getenv("WEFT_SOURCE") == nullptr ? "." : std::getenv("WEFT_SOURCE");
  std::string made = source + "/.deps/bench-venv/bin/python";  // by tools/dev bench
  for (const std::string& python : {made, std::string("python3")}) {
    if (std::system((python + " -c 'import torch.distributed' >/dev/null 2>&1").c_str()) == 0) {
      return python;
    }
  }
  return "";
}

void ExpectPhases(const Outcome& outcome, const std::string& store, int ranks) {
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json& result = outcome.result;
  EXPECT_EQ(result["store"], store);
  EXPECT_EQ(result["ranks"], ranks);
  ExpectPhasesAddUp(result);
  const json& slowest = result["slowest"];
  EXPECT_EQ(slowest["seconds"], result["rank_seconds"][slowest["phase"].get<std::string>()]["max"]);
}

TEST(InitBench, RedisBringsEveryRankTheSameBytes) {
  if (!Installed("redis-server")) GTEST_SKIP() << "redis-server is not installed";
  Outcome outcome = Bench("phases --layout tp4,pp2,dp4 --hosts 8 --store redis");
  ExpectPhases(outcome, "redis", 32);
  // A ping; a script and a blocking read; the same and the list; each answered.
  EXPECT_EQ(outcome.result["messages"], 32 * 2 * (1 + 2 + 3));
}

TEST(InitBench, TcpStoreBringsEveryRankTheSameBytes) {
  std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  Outcome outcome =
      Bench("phases --layout tp4,pp2,dp4 --hosts 8 --store torch --torch-python " + python);
  ExpectPhases(outcome, "torch", 32);
  // Validate, ping; add, add, wait; set, wait, multi-get; the last one's set beside.
  EXPECT_EQ(outcome.result["messages"], 32 * (1 + 2 + 3 * 2 + 1 + 2 * 2) + 1);
}

TEST(InitBench, SaysWhichServerIsMissing) {
  for (auto [arguments, why] :
       {std::pair("--store redis --redis-server no-such-redis", "cannot run no-such-redis"),
        std::pair("--store torch --torch-python no-such-python", "cannot run no-such-python"),
        std::pair("--store torch --torch-python true", "serves no TCPStore"),
        std::pair("--store redis --address 127.0.0.1:1", "connect to 127.0.0.1:1")}) {
    Outcome outcome = Bench(std::string("phases --layout tp2 ") + arguments);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(why));
  }
}

TEST(InitBench, OneByOneTakesTheMessagesThatTheSchemeHas) {
  Outcome outcome = Bench("groups --layout tp4,dp4 --hosts 4");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json& rows = outcome.result["one_by_one"]["one_by_one"];
  ASSERT_EQ(rows.size(), 3);  // dp1, dp2, dp4
  // 8 groups of 4: an id set (2), 3 gets (2 each); of each a barrier of 16: 6 each, and a set.
  EXPECT_EQ(rows[2]["ranks"], 16);
  EXPECT_EQ(rows[2]["groups"], 8);
  EXPECT_EQ(rows[2]["messages"], 8 * (2 + 3 * 2 + 16 * 6 + 2));
  EXPECT_EQ(rows[2]["predicted"], false);
  EXPECT_EQ(outcome.result["one_by_one"]["exchange"]["ranks"], 16);
  EXPECT_EQ(outcome.result["messages"], 16 * 7);
}

TEST(InitBench, WhatIsTooMuchToMeasureIsPredictedAndSaysSo) {
  Outcome outcome = Bench("groups --layout tp8,dp32 --compare-messages 7000");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json& rows = outcome.result["one_by_one"]["one_by_one"];
  ASSERT_EQ(rows.size(), 4);  // dp2, dp4, dp8, and all
  EXPECT_EQ(rows[2]["ranks"], 64);
  EXPECT_EQ(rows[2]["predicted"], false);
  EXPECT_EQ(rows[2]["messages"], 6432);
  EXPECT_EQ(rows[3]["ranks"], 256);
  EXPECT_EQ(rows[3]["predicted"], true);
  EXPECT_GT(rows[3]["seconds"], rows[2]["seconds"]);
  EXPECT_THAT(outcome.output, HasSubstr("predicted"));
}

TEST(InitBench, TheFloorIsMeasuredForTheLayoutsRanks) {
  for (const char* relay : {"", " --relay"}) {
    Outcome outcome = Bench(std::string("floor --layout tp4,pp2,dp4 --hosts 8") + relay);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.result["ranks"], 32);
    EXPECT_GT(outcome.result["connect_seconds"], 0);
    EXPECT_GT(outcome.result["exchange_seconds"], 0);
  }
}

TEST(InitBench, RefusesWhatMakesNoSense) {
  for (auto [arguments, why] :
       {std::pair("phases --layout tp8 --store redis --relay", "--relay"),
        std::pair("phases --layout tp8 --store redis --records wanted", "--records wanted"),
        std::pair("phases --layout tp8 --address 127.0.0.1:1", "--address"),
        std::pair("groups --store redis", "--store")}) {
    Outcome outcome = Bench(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(why));
  }
}

}  // namespace
}  // namespace weft::init
