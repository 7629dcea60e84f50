// weft-init as its users run it, and its model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/init/model.h"

namespace weft::init {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
  json result;
};

Outcome Init(const std::string& arguments) {
  std::string file = testing::TempDir() + "weft-init-" + std::to_string(getpid()) + ".json";
  std::string command = std::string(std::getenv("WEFT_BIN")) + "/weft-init " + arguments +
                        " --json " + file + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Outcome outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    outcome.output.append(buffer, n);
  }
  outcome.status = WEXITSTATUS(pclose(pipe));
  std::ifstream stream(file);
  if (stream) outcome.result = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  unlink(file.c_str());
  return outcome;
}

TEST(WeftInit, PhasesAddUpWithAndWithoutRelays) {
  for (const char* relay : {"", " --relay"}) {
    Outcome outcome = Init(std::string("--layout tp4,pp2,dp4 --hosts 8") + relay);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const json& result = outcome.result;
    EXPECT_EQ(result["ranks"], 32);
    EXPECT_EQ(result["hosts"], 8);
    EXPECT_EQ(result["store"], "weft");
    double sum = 0;
    for (const char* phase : {"connect", "register", "exchange", "groups", "connections"}) {
      sum += result["phases"][phase].get<double>();
    }
    EXPECT_NEAR(sum, result["total_seconds"].get<double>(), 1e-6);
    EXPECT_GT(result["server_cpu_seconds"], 0);
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

TEST(WeftInit, ReplacementReachesThePeersAndNobodyElse) {
  for (const char* relay : {"", " --relay"}) {
    Outcome outcome = Init(std::string("--layout tp4,pp2,dp4 --hosts 8 --replace 4") + relay);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    // One host, which is one tp group, is new: each of its ranks has 1 peer along pp and 3 along
    // dp.
    EXPECT_EQ(outcome.result["replaced"], 4);
    EXPECT_THAT(outcome.output, HasSubstr("16 groups' survivors"));
    EXPECT_GT(outcome.result["replace_seconds"], 0);
  }
}

TEST(WeftInit, RefusesWhatMakesNoSense) {
  for (auto [arguments, why] : {std::pair("--layout tp8,tp2", "names an axis again"),
                                std::pair("--layout tp8 --ranks 9", "--ranks 9"),
                                std::pair("--layout tp8 --hosts 3", "spread evenly"),
                                std::pair("--layout tp8 --replace 7", "--replace 7"),
                                std::pair("--layout tp8,dp3 --model", "multiple of 8"),
                                std::pair("--layout tp8 --timeout soon", "no duration")}) {
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

TEST(Model, NeverGivesNegativeTimes) {
  Model model = Fit({{1000, 1.0}, {2000, 1.5}, {4000, 1.6}});
  for (double c : model.coefficients) EXPECT_GE(c, 0);
  EXPECT_GT(model(100), 0);
  EXPECT_EQ(Fit({{1000, 2.0}})(1000), 2.0);
}

}  // namespace
}  // namespace weft::init
