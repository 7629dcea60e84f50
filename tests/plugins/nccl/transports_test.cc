// Our plugin keeps NCCL's contracts over each of its transports: UCX and multipath between
// processes over loopback, verbs between threads on scripted devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/nccl_harness/runner.h"

namespace weft::harness {
namespace {

struct Case {
  const char* transport;
  const char* plugin;
  bool threads;
};

// Limits that a slow machine does not reach.
Options TestOptions(const Case& one) {
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("WEFT_TRANSPORT", one.transport, 1);
  Options options;
  options.plugin = one.plugin;
  options.threads = one.threads;
  options.requests = 60;
  options.size_max = 256 << 10;
  options.memory_max = 4 << 20;
  options.timeout = absl::Seconds(60);
  options.block_limit = absl::Seconds(60);
  options.death_limit = absl::Seconds(60);
  return options;
}

std::vector<std::string> BrokenIn(Scenario scenario, int version, const Options& options) {
  absl::StatusOr<Outcome> outcome = RunScenario(scenario, version, options);
  std::vector<std::string> broken;
  if (!outcome.ok()) return {std::string(outcome.status().message())};
  for (const Breach& breach : outcome->breaches) {
    broken.push_back(absl::StrCat(RowOf(breach.contract).name, ": ", breach.detail));
  }
  return broken;
}

// UCX patches the process's memory functions, which a child with the thread sanitizer dies of.
#ifdef __SANITIZE_THREAD__
constexpr bool kHasUcx = false;
#else
constexpr bool kHasUcx = WEFT_HAS_UCX != 0;
#endif

constexpr Case kVerbs = {"verbs", WEFT_SCRIPTED_PLUGIN, true};
constexpr Case kUcx = {"ucx", WEFT_PLUGIN, false};
constexpr Case kMultipath = {"multipath", WEFT_PLUGIN, false};

class EveryVersion : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { unsetenv("WEFT_TRANSPORT"); }
};
INSTANTIATE_TEST_SUITE_P(NcclTransports, EveryVersion, testing::Range(kVersionMin, kVersionMax + 1),
                         testing::PrintToStringParamName());

TEST_P(EveryVersion, KeepsAllContractsOverVerbs) {
  Options options = TestOptions(kVerbs);
  for (Scenario scenario : {Scenario::kIntrospection, Scenario::kSteps, Scenario::kTraffic}) {
    EXPECT_THAT(BrokenIn(scenario, GetParam(), options), testing::IsEmpty()) << ToString(scenario);
  }
}

TEST_P(EveryVersion, CarriesTrafficOverMultipath) {
  Options options = TestOptions(kMultipath);
  options.size_max = 64 << 10;
  EXPECT_THAT(BrokenIn(Scenario::kTraffic, GetParam(), options), testing::IsEmpty());
}

TEST_P(EveryVersion, CarriesTrafficOverUcx) {
  if (!kHasUcx) GTEST_SKIP() << "built without UCX, or with a sanitizer that it does not bear";
  Options options = TestOptions(kUcx);
  options.requests = 30;
  options.size_max = 64 << 10;
  EXPECT_THAT(BrokenIn(Scenario::kTraffic, GetParam(), options), testing::IsEmpty());
}

// What differs from table to table was driven above; here is what each transport does by itself.
TEST(NcclTransports, MultipathKeepsAllContracts) {
  Options options = TestOptions(kMultipath);
  for (Scenario scenario : {Scenario::kIntrospection, Scenario::kSteps, Scenario::kDeath}) {
    EXPECT_THAT(BrokenIn(scenario, 11, options), testing::IsEmpty()) << ToString(scenario);
  }
}

TEST(NcclTransports, UcxKeepsAllContracts) {
  if (!kHasUcx) GTEST_SKIP() << "built without UCX, or with a sanitizer that it does not bear";
  Options options = TestOptions(kUcx);
  for (Scenario scenario : {Scenario::kIntrospection, Scenario::kSteps, Scenario::kDeath}) {
    EXPECT_THAT(BrokenIn(scenario, 11, options), testing::IsEmpty()) << ToString(scenario);
  }
}

TEST(NcclTransports, EightCommunicatorsOfOneProcessShareRdmaDevices) {
  Options options = TestOptions(kVerbs);
  options.communicators = 8;
  options.requests = 40;
  for (int version : {9, 12}) {  // one transport for all of them, and one for each
    EXPECT_THAT(BrokenIn(Scenario::kTraffic, version, options), testing::IsEmpty()) << version;
  }
}

}  // namespace
}  // namespace weft::harness
