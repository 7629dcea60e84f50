// The harness finds what it should and nothing else: a plugin that breaks one contract is caught by
// that contract's name, ours keeps them all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/plugins/contracts.h"
#include "tools/nccl_harness/flow.h"

namespace weft::harness {
namespace {

constexpr Scenario kScenarios[] = {Scenario::kIntrospection, Scenario::kSteps, Scenario::kTraffic,
                                   Scenario::kDeath};

class EveryVersion : public testing::TestWithParam<int> {};

TEST_P(EveryVersion, OfOurPluginKeepsAllContracts) {
  Options options = TestOptions(WEFT_PLUGIN);
  for (Scenario scenario : kScenarios) {
    EXPECT_THAT(BrokenIn(scenario, GetParam(), options), testing::IsEmpty()) << ToString(scenario);
  }
}
INSTANTIATE_TEST_SUITE_P(NcclPlugin, EveryVersion, testing::Range(kVersionMin, kVersionMax + 1),
                         testing::PrintToStringParamName());

TEST(NcclHarness, OurPluginKeepsContractsBetweenThreadsOfOneProcess) {
  Options options = TestOptions(WEFT_PLUGIN);
  options.threads = true;
  options.communicators = 4;
  EXPECT_THAT(BrokenIn(Scenario::kSteps, 11, options), testing::IsEmpty());
  EXPECT_THAT(BrokenIn(Scenario::kTraffic, 11, options), testing::IsEmpty());
}

TEST(NcclHarness, SetsUpAndClosesManyConnections) {
  Options options = TestOptions(WEFT_PLUGIN);
  options.connections = 520;  // whose handles are more than one message between the ranks
  absl::StatusOr<Outcome> outcome = RunScenario(Scenario::kConnections, 12, options);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(outcome->breaches.empty());
  ASSERT_FALSE(outcome->figures.empty());
  EXPECT_EQ(outcome->figures[0].second, 1040);
}

TEST(NcclHarness, MeasuresSpeedAndChecksData) {
  Options options = TestOptions(WEFT_PLUGIN);
  options.measure_max = 64 << 10;
  absl::StatusOr<Outcome> outcome = RunScenario(Scenario::kMeasure, 12, options);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(outcome->breaches.empty());
  ASSERT_EQ(outcome->measured.size(), 5u);
  for (const Measured& row : outcome->measured) {
    EXPECT_EQ(row.wrong, 0u);
    EXPECT_GT(row.time_us, 0);
    EXPECT_GT(row.half_round_trip_us, 0);
  }
}

// An int, in version 7.
TEST(NcclHarness, RegistersNoMoreThanEveryVersionCanBeTold) {
  constexpr size_t kSlot = 100 << 20;
  EXPECT_EQ(SlotCount(kSlot, 64, size_t{8} << 30), 20u);
  EXPECT_EQ(SlotCount(kSlot, 64, size_t{1} << 30), 10u);
  EXPECT_EQ(SlotCount(kSlot, 64, 1), 1u);
}

TEST(NcclHarness, AFileThatIsNoPluginIsNamed) {
  absl::StatusOr<PluginInfo> none = Inspect("/nowhere/libnccl-net-none.so");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              testing::HasSubstr("/nowhere/libnccl-net-none.so"));
  absl::StatusOr<PluginInfo> other = Inspect("libc.so.6");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(other.status().message()), testing::HasSubstr("ncclNetPlugin_v"));
}

TEST(NcclHarness, APluginThatIsNeverLoadedIsNotWaitedForForEver) {
  setenv("BROKEN_PLUGIN_WRAPS", WEFT_PLUGIN, 1);
  setenv("BROKEN_PLUGIN_FAULT", "endless-load", 1);
  absl::StatusOr<PluginInfo> endless = Inspect(WEFT_BROKEN_PLUGIN, absl::Milliseconds(500));
  unsetenv("BROKEN_PLUGIN_FAULT");
  EXPECT_EQ(endless.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(endless.status().message()),
              testing::HasSubstr("is not loaded after 500ms (--timeout)"));
}

// Longer in all than a call may hang, in which every request completes in time.
TEST(NcclHarness, ARunThatMovesMayTakeLong) {
  setenv("BROKEN_PLUGIN_WRAPS", WEFT_PLUGIN, 1);
  setenv("BROKEN_PLUGIN_FAULT", "slow", 1);
  Options options = TestOptions(WEFT_BROKEN_PLUGIN);
  options.timeout = absl::Seconds(3);
  options.communicators = 1;
  options.requests = 500;  // of 10 ms each
  options.size_max = 4096;
  EXPECT_THAT(BrokenIn(Scenario::kTraffic, 11, options), testing::IsEmpty());
  unsetenv("BROKEN_PLUGIN_FAULT");
}

TEST(NcclHarness, WhatCouldNotBeTriedIsNoContractKept) {
  Options options = TestOptions(WEFT_PLUGIN);
  options.device = 1000;
  absl::StatusOr<Outcome> outcome = RunScenario(Scenario::kSteps, 11, options);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(outcome->breaches.empty());
  EXPECT_THAT(outcome->failure, testing::HasSubstr("--device 1000: the plugin has "));
  EXPECT_FALSE(outcome->kept());
}

Scenario ScenarioThatShows(Contract contract) {
  if (contract <= Contract::kVirtualDeviceOfOne) return Scenario::kIntrospection;
  if (contract == Contract::kPeerDeathReported) return Scenario::kDeath;
  if (contract == Contract::kRequestOverwritten) return Scenario::kTraffic;
  return Scenario::kSteps;
}

class EveryContract : public testing::TestWithParam<Contract> {
 protected:
  void SetUp() override {
    setenv("BROKEN_PLUGIN_WRAPS", WEFT_PLUGIN, 1);
    setenv("BROKEN_PLUGIN_FAULT", std::string(RowOf(GetParam()).name).c_str(), 1);
  }
  void TearDown() override { unsetenv("BROKEN_PLUGIN_FAULT"); }
};

TEST_P(EveryContract, IsNamedWhenAPluginBreaksIt) {
  Contract contract = GetParam();
  Options options = TestOptions(WEFT_BROKEN_PLUGIN);
  if (contract == Contract::kNeverBlocks) options.block_limit = absl::Milliseconds(100);
  // What never happens is waited for: long enough for all that does happen before.
  if (contract == Contract::kConnects) options.timeout = absl::Seconds(3);
  if (contract == Contract::kCompletes) options.timeout = absl::Seconds(3);
  if (contract == Contract::kPeerDeathReported) options.death_limit = absl::Milliseconds(500);
  absl::StatusOr<Outcome> outcome = RunScenario(ScenarioThatShows(contract), 11, options);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  std::vector<Contract> found;
  std::vector<std::string> details;
  for (const Breach& breach : outcome->breaches) {
    found.push_back(breach.contract);
    details.push_back(absl::StrCat(RowOf(breach.contract).name, ": ", breach.detail));
  }
  EXPECT_THAT(found, testing::Contains(contract)) << absl::StrJoin(details, "\n");
}

std::vector<Contract> AllContracts() {
  std::vector<Contract> all;
  for (const ContractRow& row : Contracts()) all.push_back(row.contract);
  return all;
}
std::string NameOf(const testing::TestParamInfo<Contract>& info) {
  std::string name(RowOf(info.param).name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(NcclHarness, EveryContract, testing::ValuesIn(AllContracts()), NameOf);

TEST(NcclHarness, AWrapperWithoutAFaultKeepsAllContracts) {
  setenv("BROKEN_PLUGIN_WRAPS", WEFT_PLUGIN, 1);
  unsetenv("BROKEN_PLUGIN_FAULT");
  Options options = TestOptions(WEFT_BROKEN_PLUGIN);
  for (Scenario scenario : kScenarios) {
    EXPECT_THAT(BrokenIn(scenario, 11, options), testing::IsEmpty()) << ToString(scenario);
  }
}

TEST(NcclHarness, TheTableOfContractsIsInTheOrderOfTheEnum) {
  for (size_t i = 0; i < Contracts().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(Contracts()[i].contract), i);
    EXPECT_EQ(FindContract(Contracts()[i].name), &Contracts()[i]);
  }
}

}  // namespace
}  // namespace weft::harness
