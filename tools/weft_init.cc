// weft-init: how long a job of N ranks takes to have all its groups, by phase; with real
// connections of N clients in a few processes against a real store.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/init/compare.h"
#ifdef WEFT_INIT_SIMULATES
#include "tools/init/control_plane.h"
#include "tools/init/control_plane_report.h"
#endif
#include "tools/init/floor.h"
#include "tools/init/measure.h"
#include "tools/init/nccl.h"
#include "tools/init/new_group.h"
#include "tools/init/ops.h"
#include "tools/init/options.h"
#include "tools/init/report.h"

namespace weft::init {
namespace {

constexpr int kUsage = 2;
constexpr int kNoGpu = 3;

constexpr const char* kFooter = R"(Examples:
  weft-init --layout tp8,pp8,dp16                    1,024 ranks, each with its own connection
  weft-init --layout tp8,pp8,dp256 --relay           16,384 ranks behind a relay for each 8
  weft-init --layout tp8,pp8,dp256 --relay --records all         every rank gets all records
  weft-init --layout tp8,pp8,dp64 --relay --model    several sizes, and what they predict
  weft-init --layout tp8,pp8,dp64 --relay --replace 8            8 of 4,096 ranks replaced
  weft-init --layout tp8,pp8,dp32 --store redis                  the same on a Redis server
  weft-init --layout tp8,pp8,dp256 --torch-compare --store torch groups as torch makes them
  weft-init --ops --store torch --connections 1,256 --depths 1,16
  weft-init --new-group --ranks 128                              128 real processes
  weft-init --floor --layout tp8,pp8,dp256 --relay               what of that the kernel takes
  weft-init --nccl --layout tp2,dp4                              NCCL's communicators, on 8 GPUs
  weft-init --simulate --layout tp8,pp8,dp1536 --fan-out 112     98,304 ranks on 12,288 hosts

All clients, relays and the server run on this machine; "all ranks" is from the end of the phase
before, of the last rank, to the end of this one, so that the phases add up to the total. Connections
between ranks are opened in the planned order; of more than 1,024 ranks, those of a sample. Exit
status: 0, 1 for a failed run, 2 for wrong usage, 3 for --nccl where there is no GPU.)";

class Progress {
 public:
  explicit Progress(int ranks) : ranks_(ranks), on_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void operator()(int64_t done) {
    if (!on_) return;
    double seconds = absl::ToDoubleSeconds(clock_.Now() - begin_);
    std::string left =
        done > 0 && seconds > 0.5
            ? absl::StrCat(", about ",
                           static_cast<int>(seconds * static_cast<double>(ranks_ - done) /
                                            static_cast<double>(done)) +
                               1,
                           " s left")
            : "";
    std::fprintf(stderr, "\r\033[K%d ranks: %d through%s", ranks_, static_cast<int>(done),
                 left.c_str());
    shown_ = true;
  }

 private:
  const int ranks_;
  const bool on_;
  bool shown_ = false;
  SystemClock clock_;
  absl::Time begin_ = clock_.Now();
};

absl::StatusOr<Measurement> MeasureWithProgress(Options options) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  Progress progress(options.ranks);
  return Measure(options, [&](int64_t done) { progress(done); });
}

absl::Status WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  return path.empty() ? absl::OkStatus() : WriteOutput(path, json.dump(2) + "\n");
}

absl::StatusOr<nlohmann::ordered_json> RunOps(const Options& options) {
  bool shows = isatty(STDERR_FILENO) != 0;
  auto ops = MeasureOps(options, [&](const std::string& what) {
    if (shows) absl::FPrintF(stderr, "\r\033[K%s", what);
  });
  if (shows) absl::FPrintF(stderr, "\r\033[K");
  WEFT_RETURN_IF_ERROR(ops.status());
  return PrintOps(options, *ops);
}

absl::StatusOr<nlohmann::ordered_json> RunPhases(const Options& options) {
  std::vector<Measurement> runs;
  if (options.model) {
    for (int factor : {8, 4, 2}) {
      if (options.mesh.axes().back().size % factor != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--model measures 1/8, 1/4 and 1/2 of the ranks too: the last axis of --layout ",
            options.layout, " must be a multiple of 8"));
      }
      WEFT_ASSIGN_OR_RETURN(Measurement run, MeasureWithProgress(Shrink(options, factor)));
      runs.push_back(run);
    }
  }
  WEFT_ASSIGN_OR_RETURN(Measurement run, MeasureWithProgress(options));
  runs.push_back(run);
  PrintTable(options, run);
  nlohmann::ordered_json json = ToJson(options, run);
  if (options.model) json["model"] = PrintModel(runs);
  return json;
}

absl::StatusOr<nlohmann::ordered_json> RunComparison(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(Comparison comparison, Compare(options, MeasureWithProgress));
  nlohmann::ordered_json json = ToJson(options, comparison.exchange);
  json["torch_compare"] = PrintComparison(options, comparison);
  return json;
}

absl::StatusOr<nlohmann::ordered_json> RunSimulation(const Options& options) {
#ifdef WEFT_INIT_SIMULATES
  ControlCosts costs;
  if (options.costs.empty()) {
    WEFT_ASSIGN_OR_RETURN(costs, MeasureCosts(options));
  } else {
    WEFT_ASSIGN_OR_RETURN(costs, ParseCosts(options.costs));
  }
  WEFT_ASSIGN_OR_RETURN(ControlPlane plane, SimulateControlPlane(options, costs));
  return PrintControlPlane(options, plane);
#else
  return absl::UnimplementedError(
      absl::StrCat("--simulate ", options.layout, ": built without the simulator (WEFT_PLANNING)"));
#endif
}

absl::StatusOr<nlohmann::ordered_json> RunMode(Options options) {
  if (options.ops) return RunOps(options);
  if (options.new_group) {
    if (options.ranks == 0) options.ranks = 64;
    WEFT_ASSIGN_OR_RETURN(NewGroupMeasurement measurement, MeasureNewGroup(options));
    return PrintNewGroup(measurement);
  }
  WEFT_RETURN_IF_ERROR(Resolve(options));
  if (options.simulate) return RunSimulation(options);
  if (options.floor) {
    WEFT_ASSIGN_OR_RETURN(FloorMeasurement measurement, MeasureFloor(options));
    return PrintFloor(options, measurement);
  }
  if (options.nccl) {
    WEFT_ASSIGN_OR_RETURN(NcclMeasurement measurement, MeasureNccl(options));
    return PrintNccl(options, measurement);
  }
  if (options.torch_compare) return RunComparison(options);
  return RunPhases(options);
}

absl::Status Run(const Options& options) {
  int modes = int{options.ops} + int{options.new_group} + int{options.simulate} +
              int{options.torch_compare} + int{options.nccl} + int{options.floor};
  if (modes > 1) {
    return absl::InvalidArgumentError(
        "of --ops, --new-group, --nccl, --floor, --simulate and --torch-compare only one at a "
        "time");
  }
  const int output = dup(STDOUT_FILENO);
  const bool alone = options.json == "-" && output >= 0;
  if (alone) dup2(STDERR_FILENO, STDOUT_FILENO);  // tables go there, the object goes alone
  absl::StatusOr<nlohmann::ordered_json> json = RunMode(options);
  std::fflush(stdout);
  if (alone) dup2(output, STDOUT_FILENO);
  close(output);
  if (!json.ok()) return json.status();
  return WriteJson(options.json, *json);
}

int Main(int argc, char** argv) {
  Options options;
  std::string timeout = "60s";
  CLI::App app("Measures and explains how a job's ranks come to know each other.", "weft-init");
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks, "Ranks; 0: those of the layout")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--hosts", options.hosts, "Hosts; 0: one for 8 ranks")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--layout", options.layout,
      "Axes with their sizes, tp8,pp8,dp16 or tp=8,pp=8,dp=16; the first varies fastest; each "
      "rank has a group along each");
  std::string store = "weft";
  app.add_option("--store", store, "Store to measure: ours, a Redis server, or torch's TCPStore")
      ->check(CLI::IsMember({"weft", "redis", "torch"}));
  app.add_option("--address", options.address,
                 "Of a redis or torch server that runs already, HOST:PORT; else one is started");
  app.add_option("--redis-server", options.redis_server, "Redis' program");
  app.add_option("--torch-python", options.torch_python,
                 "Interpreter with PyTorch 2, for its TCPStore");
  app.add_flag("--relay", options.relay, "A relay a host, between its ranks and the store");
  std::string records;
  app.add_option("--records", records,
                 "Records that every rank gets: those that it needs (wanted), or those of all; "
                 "empty: wanted with --store weft, else all")
      ->check(CLI::IsMember({"wanted", "all"}));
  app.add_option("--replace", options.replace,
                 "Afterwards replace so many ranks, the last ones, and time that")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--model", options.model,
               "Measure 1/8, 1/4 and 1/2 of the ranks as well, and predict other sizes");
  app.add_option("--connect-ranks", options.connect_ranks,
                 "Open all connections of so many ranks, on evenly spread hosts; -1: 1024")
      ->check(CLI::Range(-1, 1 << 20));
  app.add_flag("--torch-compare", options.torch_compare,
               "Beside it make the groups one by one, each with a barrier of all, as torch does");
  app.add_option("--compare-messages", options.compare_messages,
                 "With --torch-compare: measure what takes up to so many, predict the rest")
      ->check(CLI::PositiveNumber);
  app.add_flag("--ops", options.ops, "Instead: operations per second and their latency");
  app.add_option("--connections", options.op_connections, "With --ops: numbers of connections")
      ->delimiter(',')
      ->check(CLI::Range(1, 16384));
  app.add_option("--depths", options.op_depths, "With --ops: requests under way on each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  std::string op_time = "300ms";
  app.add_option("--op-time", op_time, "With --ops: how long each is measured");
  app.add_flag("--new-group", options.new_group,
               "Instead: a new group over all of --ranks real processes (64) of this host");
  app.add_flag("--nccl", options.nccl,
               "Instead: NCCL's communicators of the layout's groups, a process a rank on this "
               "host's GPUs");
  app.add_option("--ranks-per-root", options.ranks_per_root,
                 "With --nccl: ranks of a group that one unique id is for")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option(
      "--cuda-library", options.cuda_library,
      "With --nccl: the library of CUDA code; empty: libweft-cuda.so beside this program");
  app.add_flag("--floor", options.floor,
               "Instead: what the kernel takes for the layout's connections, messages and bytes "
               "with nothing else done");
  app.add_flag("--simulate", options.simulate,
               "Instead: the layout's control plane on a simulated fabric, with a relay a host");
  app.add_option("--fabric", options.fabric,
                 "With --simulate: a fabric's file or generator; empty: a leaf-spine of the hosts");
  app.add_option("--fan-out", options.fan_out,
                 "With --relay or --simulate: hosts below a relay of relays; 0: all below the root")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--costs", options.costs,
                 "With --simulate: CPU times as connection=20us,message=3us,byte=0.3ns,host=2ms,"
                 "link=30us; empty: measured here");
  app.add_option("--workers", options.workers,
                 "Client processes, at least; 0: two, or as many as descriptors demand")
      ->check(CLI::Range(0, 64));
  app.add_option("--window", options.window, "Connections that a client process opens at once")
      ->check(CLI::Range(1, 4096));
  app.add_option("--sources", options.sources,
                 "Loopback addresses (127.0.0.2 and on) that clients connect from")
      ->check(CLI::Range(1, 200));
  app.add_option("--timeout", timeout, "Bound on each phase: 500ms, 60s, 5m");
  app.add_option("--json", options.json,
                 "File for the result as one JSON object; -: standard output, alone");
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  InitLog("weft-init", EnvironmentLogLevel(LogLevel::kWarn));
  options.store = store == "redis"   ? StoreKind::kRedis
                  : store == "torch" ? StoreKind::kTorch
                                     : StoreKind::kWeft;
  options.all_records = records.empty() ? options.store != StoreKind::kWeft : records == "all";
  absl::Status status;
  if (!absl::ParseDuration(timeout, &options.timeout) || options.timeout <= absl::ZeroDuration()) {
    status = absl::InvalidArgumentError(absl::StrCat("--timeout ", timeout, " is no duration"));
  }
  if (status.ok() && (!absl::ParseDuration(op_time, &options.op_time) ||
                      options.op_time <= absl::ZeroDuration())) {
    status = absl::InvalidArgumentError(absl::StrCat("--op-time ", op_time, " is no duration"));
  }
  if (status.ok()) status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "weft-init: %s\n", std::string(status.message()).c_str());
  if (options.nccl && absl::IsUnavailable(status)) return kNoGpu;
  return absl::IsInvalidArgument(status) ? kUsage : 1;
}

}  // namespace
}  // namespace weft::init

int main(int argc, char** argv) { return weft::init::Main(argc, argv); }
