// weft-executor: one a host. Runs the ranks that weft-driver places there.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/settings.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"
#include "tools/command_line.h"
#include "tools/driver/etcd.h"
#include "tools/driver/host_executor.h"
#include "tools/driver/host_tests.h"
#include "tools/driver/records.h"
#include "tools/driver/self_test.h"

namespace weft {
namespace {

// How many processes of one host test its links.
constexpr int kTestProcesses = 2;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "weft-executor: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kWrongUsage : 1;
}

int SelfTest(const driver::SelfTestOptions& options) {
  const driver::SelfTestResult result = driver::RunSelfTest(options);
  std::printf("%s\n", result.text.c_str());
  return result.passed ? 0 : 1;
}

// For an option that would leave what it bounds no time at all.
absl::Status TakePositive(absl::string_view option, const std::string& text,
                          absl::Duration& duration) {
  WEFT_RETURN_IF_ERROR(TakeDuration(option, text, duration));
  if (duration > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", text, " is no time at all; right are 500ms, 5s, 1m"));
}

// One part of a self-test, as RunSelfTest() starts it; the exit status.
int SelfTestPart(const std::string& part, absl::Duration limit) {
  const auto run = [&]() -> absl::StatusOr<int> {
    if (part == "links") return driver::TestWithinHost(kTestProcesses);
    if (part == "host") {
      WEFT_RETURN_IF_ERROR(driver::TestHost());
      return 0;
    }
    WEFT_ASSIGN_OR_RETURN(const std::string tested, driver::TestGroup(limit));
    std::printf("%s\n", tested.c_str());
    return 0;
  };
  const absl::StatusOr<int> status = run();
  if (status.ok()) return *status;
  std::fprintf(stderr, "%s%s\n", driver::kSelfTestSays,
               std::string(status.status().message()).c_str());
  return absl::IsDeadlineExceeded(status.status()) ? driver::kNobodyCame : 1;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Usage: weft-executor --driver HOST:PORT [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
      "Joins the job of the weft-driver at HOST:PORT as one of its hosts, and runs PROGRAM as the "
      "ranks\nthat the driver places here; a host that is not needed yet is a spare. All need the "
      "same\nWEFT_JOB_SECRET (openssl rand -hex 32). SIGTERM drains the host: its ranks go on "
      "elsewhere.\n"
      "Exit status: the job's; 3: the host is evicted; 4: another executor has joined in its "
      "name;\n"
      "128 + the signal that drained it; 1: no driver, or its store is gone.\n"
      "Example: weft-executor --driver node0:29501 -- weft-train demo.toml --run-dir runs/demo",
      "weft-executor");
  driver::ExecutorOptions options;
  // "spine1.leaf3.node7": the switches above the node, and the node.
  const char* slurm_place = std::getenv("SLURM_TOPOLOGY_ADDR");
  if (const absl::string_view place = slurm_place == nullptr ? "" : slurm_place;
      place.rfind('.') != place.npos) {
    options.rack = std::string(place.substr(0, place.rfind('.')));
  }
  // As Slurm calls it, which drains by that name.
  const char* slurm_node = std::getenv("SLURMD_NODENAME");
  options.host = slurm_node == nullptr ? HostName() : slurm_node;
  run::RunOptions& run = options.run;
  run.job = "weft";
  run.master_port = 29500;
  std::string grace = "5s", patience = "2m", period = "250ms", limit = "30s", output = "all";
  std::string join = "5m";
  std::string replay_limit = "10m";
  bool no_prefix = false, self_test = false;
  std::string part;
  app.add_option(
      "--driver", run.store,
      "address at which the driver, or the job's weft-store, listens; or etcd://HOST:PORT/PREFIX, "
      "as given to weft-driver --etcd, where that address is looked up");
  app.add_option("--host", options.host, "this host's name in the job, which no other has")
      ->capture_default_str();
  app.add_option("--address", options.address,
                 "where other hosts reach this one (MASTER_ADDR) (default: --host)");
  app.add_option("--rack", options.rack,
                 "the switch above this host: hosts that name the same one are near it, and help "
                 "each other's self-tests (default: of SLURM_TOPOLOGY_ADDR)");
  app.add_option("--job", run.job, "the job's name (WEFT_JOB_ID), as the driver has it")
      ->check(CheckJobName)
      ->capture_default_str();
  app.add_option("--spares", run.spares,
                 "spare processes of the program, for programs that wait for a place (weft-train; "
                 "docs/recovery.md); a spare host keeps as many as it would have ranks")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_flag_function(
      "--relay,!--no-relay", [&run](int64_t given) { run.relay = given > 0; },
      "serve this host's ranks through a relay, so that the driver's store has two connections to "
      "each host, and not one to each rank (default: --no-relay)");
  app.add_option("--master-port", run.master_port, "MASTER_PORT of the ranks")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("--log-dir", run.log_dir,
                 "folder for rank-K.log, all that rank K writes, and spares.log (docs/running.md)");
  app.add_option("--output", output, "whose output is shown: all; none")
      ->check(CLI::IsMember({"all", "none"}))
      ->capture_default_str();
  app.add_flag("--no-prefix", no_prefix, "show lines without their \"[rank K] \"");
  app.add_option(
         "--grace", grace,
         "time between SIGTERM and SIGKILL to the ranks at the end of the job, and how long a "
         "host that is being drained waits for the driver")
      ->capture_default_str();
  app.add_option("--store-patience", patience,
                 "how long a driver that cannot be reached may take to come back")
      ->capture_default_str();
  app.add_option("--join-patience", join, "how long the driver may take to start")
      ->capture_default_str();
  app.add_option("--period", period, "time between two heartbeats")->capture_default_str();
  app.add_option("--set", run.settings, "name=value, a setting for all ranks; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--self-test", self_test, "test this host as when the driver asks for it, and exit");
  app.add_option(
         "--test", options.self_test.commands,
         "a shell's command that the self-test runs, in place of its checks of the host and "
         "its links; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--test-limit", limit, "the longest time that the self-test may take")
      ->capture_default_str();
  app.add_option(
      "--replay", options.replay,
      "a shell's command that replays a step as one rank of a group of hosts and writes a "
      "line \"replay: DIGEST\" of what came out (weft-driver --replay-hosts) (default: "
      "the program with --replay, as weft-train has it)");
  app.add_option("--replay-limit", replay_limit, "the longest time that a replay may take")
      ->capture_default_str();
  app.add_option("--test-helpers", options.self_test.helpers,
                 "hosts that help with the self-test, as the driver has told them")
      ->group("");
  app.add_option("--self-test-part", part, "one part of the self-test, and exit")
      ->check(CLI::IsMember({"host", "links", "group"}))
      ->group("");
  const int status_of_usage = ReadLauncherLine(app, argc, argv, run.command);
  if (status_of_usage != kGoOn) return status_of_usage;
  const absl::Status status = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(TakePositive("--test-limit", limit, options.self_test.limit));
    if (self_test || !part.empty()) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(TakeDuration("--grace", grace, run.grace));
    WEFT_RETURN_IF_ERROR(TakeDuration("--store-patience", patience, run.store_patience));
    WEFT_RETURN_IF_ERROR(TakeDuration("--join-patience", join, options.join_patience));
    WEFT_RETURN_IF_ERROR(TakePositive("--replay-limit", replay_limit, options.replay_limit));
    WEFT_RETURN_IF_ERROR(TakePositive("--period", period, options.period));
    if (run.store.empty()) return absl::InvalidArgumentError("--driver HOST:PORT is missing");
    if (driver::IsEtcd(run.store)) {
      WEFT_RETURN_IF_ERROR(driver::ParseEtcdPlace(run.store).status());
      options.etcd = std::exchange(run.store, "");
    } else {
      WEFT_RETURN_IF_ERROR(collectives::CheckStoreAddress(run.store));
    }
    WEFT_RETURN_IF_ERROR(driver::CheckHostName(options.host));
    Settings settings{LibrarySettings()};
    for (const std::string& pair : run.settings) {
      WEFT_RETURN_IF_ERROR(settings.SetPair(pair, "--set"));
    }
    if (run.command.empty()) {
      return absl::InvalidArgumentError("which program? See weft-executor --help");
    }
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    (void)Fail(status);
    return kWrongUsage;
  }
  InitLog("weft-executor", EnvironmentLogLevel(LogLevel::kWarn));
  if (!part.empty()) return SelfTestPart(part, options.self_test.limit);
  if (self_test) return SelfTest(options.self_test);
  if (options.address.empty()) options.address = options.host;
  run.output = output == "all" ? run::OutputMode::kAll : run::OutputMode::kNone;
  run.prefix = !no_prefix;
  run.rank_open_files = OpenFilesLimit();
  RaiseOpenFilesLimit();
  const absl::StatusOr<int> exit_status = driver::RunExecutor(std::move(options));
  return exit_status.ok() ? *exit_status : Fail(exit_status.status());
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
