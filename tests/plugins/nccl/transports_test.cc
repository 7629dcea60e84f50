// Our plugin keeps NCCL's contracts over each of its transports: UCX and multipath between
// processes over loopback, verbs between threads on scripted devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/plugins/contracts.h"

namespace weft::harness {
namespace {

struct Case {
  const char* transport;
  const char* plugin;
  bool threads;
};

Options OptionsOf(const Case& one) {
  setenv("WEFT_TRANSPORT", one.transport, 1);
  Options options = TestOptions(one.plugin);
  options.threads = one.threads;
  return options;
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
constexpr Case kTcp = {"tcp", WEFT_PLUGIN, false};

class EveryVersion : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { unsetenv("WEFT_TRANSPORT"); }
};
INSTANTIATE_TEST_SUITE_P(NcclTransports, EveryVersion, testing::Range(kVersionMin, kVersionMax + 1),
                         testing::PrintToStringParamName());

TEST_P(EveryVersion, KeepsAllContractsOverVerbs) {
  Options options = OptionsOf(kVerbs);
  for (Scenario scenario : {Scenario::kIntrospection, Scenario::kSteps, Scenario::kTraffic}) {
    EXPECT_THAT(BrokenIn(scenario, GetParam(), options), testing::IsEmpty()) << ToString(scenario);
  }
}

TEST_P(EveryVersion, CarriesTrafficOverMultipath) {
  Options options = OptionsOf(kMultipath);
  options.size_max = 64 << 10;
  EXPECT_THAT(BrokenIn(Scenario::kTraffic, GetParam(), options), testing::IsEmpty());
}

TEST_P(EveryVersion, CarriesTrafficOverUcx) {
  if (!kHasUcx) GTEST_SKIP() << "built without UCX, or with a sanitizer that it does not bear";
  Options options = OptionsOf(kUcx);
  options.requests = 30;
  options.size_max = 64 << 10;
  EXPECT_THAT(BrokenIn(Scenario::kTraffic, GetParam(), options), testing::IsEmpty());
}

// What differs from table to table was driven above; here is what each transport does by itself.
TEST(NcclTransports, MultipathKeepsAllContracts) {
  Options options = OptionsOf(kMultipath);
  for (Scenario scenario : {Scenario::kIntrospection, Scenario::kSteps, Scenario::kDeath}) {
    EXPECT_THAT(BrokenIn(scenario, 11, options), testing::IsEmpty()) << ToString(scenario);
  }
}

// UCX 1.13 may abort the survivor when a peer is killed whose connection UCX has not finished, by
// an assertion on messages of its own wire-up (docs/nccl-plugin.md, "What it does not do yet").
bool IsAbortOfUcx(const std::vector<std::string>& broken, absl::string_view printed) {
  return broken.size() == 1 && absl::StartsWith(broken[0], "no-crash: ") &&
         absl::StrContains(broken[0], "signal 6 (Aborted)") &&
         absl::StrContains(printed, "Assertion `") &&
         (absl::StrContains(printed, "wireup_ep.c:") ||
          absl::StrContains(printed, "req->send.wireup.type"));
}

TEST(NcclTransports, AnAbortIsUcxsOwnOnlyWithItsAssertion) {
  const std::string died = "no-crash: the process was killed by signal 6 (Aborted) in step \"x\"";
  const std::string said = "wireup_ep.c:241  Assertion `wireup_ep->pending_count == 0' failed";
  EXPECT_TRUE(IsAbortOfUcx({died}, said));
  EXPECT_TRUE(IsAbortOfUcx({died}, "Assertion `(req->send.wireup.type == UCP_WIREUP_MSG_ACK)'"));
  EXPECT_FALSE(IsAbortOfUcx({died}, "net/ucx/wire.cc:70: invariant broken: endpoint_ != nullptr"));
  EXPECT_FALSE(IsAbortOfUcx({died, "peer-death-reported: no error"}, said));
  EXPECT_FALSE(IsAbortOfUcx({"no-crash: the process was killed by signal 11 (...)"}, said));
}

// A run that UCX ended tells nothing of the plugin: another takes its place, of so many.
std::vector<std::string> BrokenByDeathOverUcx(const Options& options) {
  constexpr int kRunsMost = 5;
  std::vector<std::string> broken;
  for (int run = 0; run < kRunsMost; ++run) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    broken = BrokenIn(Scenario::kDeath, 11, options);
    const std::string printed = absl::StrCat(testing::internal::GetCapturedStderr(),
                                             testing::internal::GetCapturedStdout());
    std::fputs(printed.c_str(), stderr);
    if (!IsAbortOfUcx(broken, printed)) break;
  }
  return broken;
}

TEST(NcclTransports, UcxKeepsAllContracts) {
  if (!kHasUcx) GTEST_SKIP() << "built without UCX, or with a sanitizer that it does not bear";
  Options options = OptionsOf(kUcx);
  for (Scenario scenario : {Scenario::kIntrospection, Scenario::kSteps}) {
    EXPECT_THAT(BrokenIn(scenario, 11, options), testing::IsEmpty()) << ToString(scenario);
  }
  EXPECT_THAT(BrokenByDeathOverUcx(options), testing::IsEmpty());
}

TEST(NcclTransports, EightCommunicatorsOfOneProcessShareRdmaDevices) {
  Options options = OptionsOf(kVerbs);
  options.communicators = 8;
  options.requests = 40;
  for (int version : {9, 12}) {  // one transport for all of them, and one for each
    EXPECT_THAT(BrokenIn(Scenario::kTraffic, version, options), testing::IsEmpty()) << version;
  }
}

// NCCL's largest message, past every 32-bit limit on the way but the last.
TEST(NcclTransports, AGibibyteArrivesWholeOverEachTransport) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "takes many minutes with a sanitizer";
#endif
  for (const Case& one : {kTcp, kVerbs, kUcx, kMultipath}) {
    if (!kHasUcx && absl::string_view(one.transport) == "ucx") continue;
    SCOPED_TRACE(one.transport);
    Options options = OptionsOf(one);
    options.measure_min = options.measure_max = size_t{1} << 30;
    options.iterations = 1;
    const absl::StatusOr<Outcome> outcome = RunScenario(Scenario::kMeasure, 12, options);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->breaches.empty()) << outcome->breaches.front().detail;
    ASSERT_EQ(outcome->measured.size(), 1u);
    EXPECT_EQ(outcome->measured[0].bytes, size_t{1} << 30);
    EXPECT_EQ(outcome->measured[0].wrong, 0u);
    unsetenv("WEFT_TRANSPORT");
  }
}

}  // namespace
}  // namespace weft::harness
