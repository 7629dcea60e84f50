// weft-doctor as its users run it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/net/roce/fake_firmware.h"
#include "tests/net/roce/sys_folder.h"
#include "tests/run_program.h"

namespace weft::doctor {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(WeftDoctor, AHostThatIsOnlyAFolderIsExamined) {
  ScratchFolder root;
  net::AddMlx5(root, 0);
  root.Write(net::PortFolder(0) + "state", "1: DOWN\n");
  Outcome outcome = RunProgram("weft-doctor --root " + root.path() + " --json -");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  json report = json::parse(outcome.output);
  EXPECT_EQ(report["devices"][0]["name"], "mlx5_0");
  EXPECT_EQ(report["devices"][0]["ports"][0]["gid"]["index"], 3);
  EXPECT_GE(report["errors"], 1);
  bool found = false;
  for (const json& finding : report["findings"]) found = found || finding["check"] == "port-down";
  EXPECT_TRUE(found) << outcome.output;
}

// What nobody copies, as the shared memory of that host, is not missed.
TEST(WeftDoctor, ACopyIsCalledByTheNameOfItsHost) {
  ScratchFolder root;
  net::AddMlx5(root, 0);
  root.Write("proc/sys/kernel/hostname", "node7\n");
  root.Write("proc/sys/kernel/osrelease", "5.15.0-weft\n");
  const json report =
      json::parse(RunProgram("weft-doctor --root " + root.path() + " --json -").output);
  EXPECT_EQ(report["host"], "node7");
  EXPECT_EQ(report["kernel"], "5.15.0-weft");
  for (const json& finding : report["findings"]) {
    EXPECT_FALSE(finding["check"] == "shm" && finding["severity"] == "error") << finding;
  }
}

TEST(WeftDoctor, AFolderThatIsNoCopyOfAHostIsRefusedByEveryCommand) {
  ScratchFolder root;
  for (const char* command : {"", " pairs", " nics", " nics --priority 3"}) {
    const Outcome outcome = RunProgram("weft-doctor --root " + root.path() + command);
    EXPECT_EQ(outcome.status, 2) << command << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(root.path() + ": there is no folder sys in it"));
  }
}

TEST(WeftDoctor, BytesThatAreNoUtf8InTheEnvironmentLoseNoReport) {
  ScratchFolder root;
  net::AddMlx5(root, 0);
  const std::string doctor = std::string(std::getenv("WEFT_BIN")) + "/weft-doctor --root ";
  const Outcome outcome =
      Shell("NCCL_DEBUG_FILE=$(printf '/tmp/j\\374rgen') " + doctor + root.path() + " --json -",
            "2>/dev/null");
  const json report = json::parse(outcome.output, nullptr, false);
  ASSERT_TRUE(report.is_object()) << outcome.output;
  EXPECT_EQ(report["environment"]["NCCL_DEBUG_FILE"], "/tmp/j\uFFFDrgen");
}

TEST(WeftDoctor, SaysForPeopleWhatAndWhatToDo) {
  Outcome outcome = RunProgram("weft-doctor");
  EXPECT_THAT(outcome.output, HasSubstr("limits: locked memory"));
  EXPECT_THAT(outcome.output, HasSubstr("warning"));
}

TEST(WeftDoctor, ThePluginThatNcclWouldLoadIsLoaded) {
  Outcome outcome = RunProgram("weft-doctor --json -",
                               "2>&1");  // without NCCL_NET_PLUGIN: libnccl-net.so
  json report = json::parse(outcome.output);
  EXPECT_EQ(report["plugins"][0]["name"], "libnccl-net.so");
  const std::string bin = std::getenv("WEFT_BIN");
  outcome = Shell("NCCL_NET_PLUGIN=weft LD_LIBRARY_PATH=" + bin + "/../lib " + bin +
                  "/weft-doctor --json -");
  report = json::parse(outcome.output);
  EXPECT_THAT(report["plugins"][1]["path"].get<std::string>(), HasSubstr("libnccl-net-weft.so"));
  EXPECT_EQ(report["plugins"][1]["tables"][0], "v12");
}

TEST(WeftDoctor, EveryPairOfAJobIsTriedBothWays) {
  Outcome outcome =
      RunProgram("weft-doctor pairs --ranks 3 --set transport=tcp --size 64KiB --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  json report = json::parse(outcome.output);
  EXPECT_EQ(report["ranks"], 3);
  ASSERT_EQ(report["pairs"].size(), 6U);
  for (const json& pair : report["pairs"]) {
    EXPECT_EQ(pair["error"], "");
    EXPECT_GT(pair["gbps"], 0);
    EXPECT_GT(pair["latency_us"], 0);
  }
}

TEST(WeftDoctor, WhatAPlanWantsOfNicsIsShownBesideWhatIsSet) {
  ScratchFolder root;
  net::AddMlx5(root, 0);  // 4 us between notifications
  root.Write("plan/controller.txt", "dcqcn:cnp_us=50\n");
  const std::string nics =
      "weft-doctor --root " + root.path() + " nics --plan " + root.path() + "/plan";
  Outcome outcome = RunProgram(nics);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("min_time_between_cnps +4 -> 50"));
  bool seen = false;
  const json report = json::parse(RunProgram(nics + " --json -").output);
  for (const json& setting : report["settings"]) {
    if (setting["name"] != "min_time_between_cnps") continue;
    seen = true;
    EXPECT_EQ(setting["value"], 4);
    EXPECT_EQ(setting["wanted"], 50);
  }
  EXPECT_TRUE(seen);
  root.Write("plan/controller.txt", "swift:beta=0.6\n");
  outcome = RunProgram(nics);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("plans swift:beta=0.6, which multipath runs"),
                                    HasSubstr("NICs: they run dcqcn")));
  EXPECT_THAT(RunProgram(nics + "s").output, HasSubstr("/plans/controller.txt"));
  EXPECT_EQ(RunProgram(nics + " --dcqcn dcqcn").status, 2);
}

TEST(WeftDoctor, NicsAreShownAndChangedOnlyWhenAsked) {
  ScratchFolder root;
  net::AddMlx5(root, 0);
  const std::string nics = "weft-doctor --root " + root.path() + " nics --priority 5";
  Outcome outcome = RunProgram(nics);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("2 settings would change"));
  EXPECT_EQ(json::parse(RunProgram(nics + " --json -").output)["differ"], 2);
  outcome = RunProgram(nics + " --apply");
  EXPECT_THAT(outcome.output, HasSubstr("2 settings changed"));
  EXPECT_EQ(json::parse(RunProgram(nics + " --json -").output)["differ"], 0);
  ExpectWrongUsage(RunProgram("weft-doctor nics --dcqcn swift"), "NICs run dcqcn, not swift");
  ExpectWrongUsage(RunProgram("weft-doctor nics --dcqcn nosuch.txt"),
                   "--dcqcn nosuch.txt, which is no file: no controller");
  for (const std::string& file : {std::string("/dev/zero"), root.path()}) {
    outcome = RunProgram("weft-doctor nics --dcqcn " + file);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("no controller in the file '" + file + "'"));
  }
}

TEST(WeftDoctor, FirmwareIsAskedOnTheHostItselfAlone) {
  ScratchFolder root;
  net::AddMlx5(root, 0);
  net::FakeFirmware firmware;
  firmware.Set("0000:10:00.0", false);
  const std::string doctor = "weft-doctor --root " + root.path();
  json report = json::parse(RunProgram(doctor + " --json -").output);
  EXPECT_TRUE(report["devices"][0]["adaptive_retransmission"].is_null());
  Outcome outcome = RunProgram(doctor + " nics --adaptive-retransmission on --apply");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("firmware is asked on the host itself"));
  EXPECT_EQ(firmware.calls(), "");
  EXPECT_EQ(RunProgram("weft-doctor nics --adaptive-retransmission maybe").status, 2);
}

TEST(WeftDoctor, WrongUsageNamesWhatIsRight) {
  Outcome outcome = RunProgram("weft-doctor --watch soon");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--watch 'soon' is no time, as in 500ms"));
  for (const char* words : {"nics --watch 1s", "--watch 1s pairs --ranks 2", "nics --strict"}) {
    outcome = RunProgram(std::string("weft-doctor ") + words);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_THAT(outcome.output, ContainsRegex("--(watch|strict) is for")) << words;
  }
  outcome = RunProgram("weft-doctor pairs --size 1");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--size 1 is not from 8"));
  EXPECT_THAT(RunProgram("weft-doctor pairs").output, HasSubstr("needs at least two ranks"));
}

}  // namespace
}  // namespace weft::doctor
