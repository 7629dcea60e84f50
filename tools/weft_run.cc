// weft-run: starts a job's ranks on this host and ends them together.
#include <sys/types.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/settings.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"
#include "tools/command_line.h"
#include "tools/observe/http.h"
#include "tools/run/launcher.h"
#include "tools/run/plan.h"

namespace weft {
namespace {

struct CommandLine {
  run::RunOptions options;
  std::string grace = "5s";
  std::string store_patience = "2s";
  std::string backoff = "500ms", backoff_most = "15s", still = "30s";
  std::string output = "all";
  std::string bind = "none";
  bool no_prefix = false;

  void Register(CLI::App& app) {
    run::RunOptions& o = options;
    app.add_option("-n,--ranks", o.ranks, "ranks on this host")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    app.add_option(
           "--recover", o.recover,
           "how many times, over all ranks of this host, a rank that died is started anew while "
           "the others wait for it (weft-train goes on from its last step; docs/recovery.md)")
        ->check(CLI::Range(0, 1 << 20))
        ->capture_default_str();
    app.add_option("--backoff", backoff,
                   "pause before the third start of a rank that ends soon after its start, without "
                   "a new step; twice as long each time from there; 0s: none")
        ->capture_default_str();
    app.add_option(
           "--still", still,
           "with --recover, on one host: how long a job may stand still until weft-run diagnoses "
           "it, kills the rank that the others wait for and starts that rank anew, which "
           "counts as one of the --recover times; 0s: weft-run only prints the diagnosis")
        ->capture_default_str();
    app.add_option("--backoff-most", backoff_most, "the longest pause of --backoff")
        ->capture_default_str();
    app.add_option(
           "--spares", o.spares,
           "spare processes of the program that wait to take the place of a rank that dies; the "
           "program must support that, as weft-train does (docs/recovery.md)")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    app.add_option(
        "--log-dir", o.log_dir,
        "folder for rank-K.log, all that rank K writes, and spares.log (docs/running.md)");
    app.add_option("--output", output,
                   "whose output is shown: all; rank0 (as it is, without a prefix); none")
        ->check(CLI::IsMember({"all", "rank0", "none"}))
        ->capture_default_str();
    app.add_flag("--no-prefix", no_prefix, "show lines without their \"[rank K] \"");
    app.add_option("--grace", grace,
                   "after a signal to end (Ctrl-C, SIGTERM, SIGHUP) was passed on to the ranks, "
                   "time until they are killed: 500ms, 5s, 1m")
        ->capture_default_str();
    app.add_option("--bind", bind, "core: bind each rank to its share of the cores; none")
        ->check(CLI::IsMember({"none", "core"}))
        ->capture_default_str();
    app.add_option(
        "--plan", o.plan,
        "plan directory (weft-plan paths --out), which gives the order of ranks, their source "
        "ports, and the topology and graph files for NCCL; exit status 3 where the plan is stale "
        "or for other hosts or ranks");
    app.add_option("--plan-unverified", o.plan_unverified,
                   "where too few switches answer to tell whether the plan still holds: warn, and "
                   "start the job; refuse, with status 3")
        ->check(CLI::IsMember({"warn", "refuse"}))
        ->needs("--plan")
        ->capture_default_str();
    app.add_option("--set", o.settings, "name=value, a setting for all ranks; may be repeated")
        ->allow_extra_args(false)
        ->take_all();
    app.add_option("--nnodes", o.nodes, "hosts of the job; each runs weft-run with as many ranks")
        ->check(CLI::Range(1, 65536))
        ->capture_default_str();
    app.add_option("--node-rank", o.node_rank, "this host's number, from 0")->capture_default_str();
    app.add_option("--master-addr", o.master_addr, "host 0's name or address")
        ->capture_default_str();
    app.add_option("--master-port", o.master_port,
                   "MASTER_PORT of the ranks; 0: a free one (one host only)")
        ->check(CLI::Range(0, 65534))
        ->capture_default_str();
    app.add_option(
           "--store-port", o.store_port,
           "port of the store on host 0; 0: a free one, or with several hosts MASTER_PORT+1")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    app.add_option("--store", o.store,
                   "host:port of a store that runs already (weft-store), instead of serving one")
        ->excludes("--store-port");
    app.add_flag_function(
        "--relay,!--no-relay", [&o](int64_t given) { o.relay = given > 0; },
        "serve this host's ranks through a relay, so that the store sees hosts and not "
        "ranks (default: where a host has several ranks, and there are several hosts or "
        "the --store is not on a loopback address)");
    app.add_option_function<int>(
           "--fan-out", [&o](int given) { o.fan_out = given; },
           "serve a second level of relays between the hosts' relays and the store, one relay for "
           "this many hosts, which needs relays of hosts (--relay); 0: no second level (default: 0 "
           "for fewer than 64 hosts, else the square root of the number of hosts)")
        ->check(CLI::Range(0, 65536));
    app.add_option(
           "--store-patience", store_patience,
           "how long a store that cannot be reached may take to come back (weft-store --state-dir)")
        ->capture_default_str();
    app.add_option("--job", o.job, "the job's name (WEFT_JOB_ID) (default: weft-PID)")
        ->check(CheckJobName);
    app.add_option_function<std::vector<std::string>>(
           "--agent",
           [&o](const std::vector<std::string>& given) {
             o.agent = given.empty() || given[0].empty() ? "127.0.0.1:9400" : given[0];
           },
           "serve weft-agent's pages (/metrics, ...) while the job runs, at this loopback address "
           "(default: 127.0.0.1:9400)")
        ->expected(0, 1)
        ->type_name("[ADDRESS]");
    app.add_flag("--json", o.json, "print a summary as the last line of standard output");
  }

  absl::Status Finish() {
    run::RunOptions& o = options;
    o.output = output == "all"     ? run::OutputMode::kAll
               : output == "rank0" ? run::OutputMode::kRank0
                                   : run::OutputMode::kNone;
    o.bind = bind == "core" ? run::BindMode::kCore : run::BindMode::kNone;
    o.prefix = !no_prefix;
    if (o.job.empty()) o.job = absl::StrCat("weft-", getpid());
    WEFT_RETURN_IF_ERROR(TakeDuration("--grace", grace, o.grace));
    WEFT_RETURN_IF_ERROR(TakeDuration("--backoff", backoff, o.backoff_first));
    WEFT_RETURN_IF_ERROR(TakeDuration("--still", still, o.still));
    WEFT_RETURN_IF_ERROR(TakeDuration("--backoff-most", backoff_most, o.backoff_most));
    WEFT_RETURN_IF_ERROR(TakeDuration("--store-patience", store_patience, o.store_patience));
    if (o.node_rank < 0 || o.node_rank >= o.nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--node-rank ", o.node_rank, " is not in 0..", o.nodes - 1));
    }
    if (o.nodes > 1 && o.master_port == 0) {
      return absl::InvalidArgumentError("several hosts need the same --master-port on each");
    }
    if (o.nodes > 1 && o.job == absl::StrCat("weft-", getpid())) o.job = "weft";
    if (o.spares > 0 && o.recover == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--spares ", o.spares, " is of use with --recover N only"));
    }
    if (o.spares > 0 && o.bind == run::BindMode::kCore) {
      return absl::InvalidArgumentError(
          "--bind core and --spares exclude each other: a process that runs is not bound");
    }
    Settings settings{LibrarySettings()};
    for (const std::string& pair : o.settings) {
      WEFT_RETURN_IF_ERROR(settings.SetPair(pair, "--set"));
    }
    if (!o.agent.empty()) WEFT_RETURN_IF_ERROR(observe::ParseHttpAddress(o.agent).status());
    if (!o.store.empty()) return collectives::CheckStoreAddress(o.store);
    return absl::OkStatus();
  }
};

int Fail(absl::string_view message, int status) {
  std::fprintf(stderr, "weft-run: %s\n", std::string(message).c_str());
  return status;
}

// The exit status where there is no plan to go by.
int StatusOfPlan(const absl::Status& why) {
  if (absl::IsFailedPrecondition(why) || absl::IsInvalidArgument(why)) return run::kPlanRefused;
  return absl::IsNotFound(why) ? kWrongUsage : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Usage: weft-run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
      "Runs PROGRAM as N ranks of one job, with torchrun's environment (RANK, WORLD_SIZE, "
      "LOCAL_RANK,\nLOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT) and a rendezvous store "
      "(WEFT_STORE).\nA rank that fails ends the job, unless --recover starts it anew; its status "
      "is weft-run's (128 + the signal that killed it).\nExample: weft-run -n 4 weft-train "
      "demo.toml --run-dir runs/demo",
      "weft-run");
  CommandLine line;
  line.Register(app);
  std::vector<std::string>& command = line.options.command;
  const int status_of_usage = ReadLauncherLine(app, argc, argv, command);
  if (status_of_usage != kGoOn) return status_of_usage;
  if (command.empty()) return Fail("which program? See weft-run --help", kWrongUsage);

  const absl::Status status = line.Finish();
  if (!status.ok()) return Fail(status.message(), kWrongUsage);
  if (!line.options.plan.empty()) {
    absl::StatusOr<run::PlannedHost> planned = run::ReadPlan(line.options);
    if (!planned.ok()) return Fail(planned.status().message(), StatusOfPlan(planned.status()));
    line.options.planned = *std::move(planned);
  }
  line.options.rank_open_files = OpenFilesLimit();
  RaiseOpenFilesLimit();
  InitLog("weft-run", EnvironmentLogLevel(LogLevel::kWarn));
  auto exit_status = run::RunJob(line.options);
  if (exit_status.ok()) return *exit_status;
  return Fail(exit_status.status().message(),
              absl::IsInvalidArgument(exit_status.status()) ? kWrongUsage : 1);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
