// weft-init: how long a job of N ranks takes to have all its groups, by phase; with real
// connections of N clients in a few processes against a real store.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "tools/command_line.h"
#include "tools/init/command.h"
#ifdef WEFT_INIT_SIMULATES
#include "tools/init/control_plane.h"
#include "tools/init/control_plane_report.h"
#endif
#include "tools/init/nccl.h"
#include "tools/init/new_group.h"
#include "tools/init/options.h"
#include "tools/init/report.h"

namespace weft::init {
namespace {

constexpr int kNoGpu = 3;

constexpr const char* kFooter = R"(Examples:
  weft-init phases --layout tp8,pp8,dp16             1,024 ranks, each with its own connection
  weft-init phases --layout tp8,pp8,dp256 --relay    16,384 ranks behind a relay for each 8
  weft-init phases --layout tp8,pp8,dp256 --relay --records all  every rank gets all records
  weft-init phases --layout tp8,pp8,dp64 --relay --model         several sizes, what they predict
  weft-init phases --layout tp8,pp8,dp64 --relay --replace 8     8 of 4,096 ranks replaced
  weft-init operations --connections 1,256 --depths 1,16
  weft-init new-group --ranks 128                    128 real processes
  weft-init nccl --layout tp2,dp4                    NCCL's communicators, on 8 GPUs
  weft-init simulate --layout tp8,pp8,dp1536 --fan-out 112       98,304 ranks on 12,288 hosts

All clients, relays and the server run on this machine; "all ranks" is from the end of the phase
before, of the last rank, to the end of this one, so that the phases add up to the total. Connections
between ranks are opened in the planned order; of more than 1,024 ranks, those of a sample. Exit
status: 0, 1 for a failed run, 2 for wrong usage, 3 for nccl where there is no GPU.)";

absl::StatusOr<nlohmann::ordered_json> RunNewGroup(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(NewGroupMeasurement measurement, MeasureNewGroup(options));
  return PrintNewGroup(measurement);
}

absl::StatusOr<nlohmann::ordered_json> RunNccl(Options options) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  WEFT_ASSIGN_OR_RETURN(NcclMeasurement measurement, MeasureNccl(options));
  return PrintNccl(options, measurement);
}

#ifdef WEFT_INIT_SIMULATES
absl::StatusOr<nlohmann::ordered_json> RunSimulation(Options options) {
  options.relay = true;
  WEFT_RETURN_IF_ERROR(Resolve(options));
  ControlCosts costs;
  if (options.costs.empty()) {
    WEFT_ASSIGN_OR_RETURN(costs, MeasureCosts(options));
  } else {
    WEFT_ASSIGN_OR_RETURN(costs, ParseCosts(options.costs));
  }
  WEFT_ASSIGN_OR_RETURN(ControlPlane plane, SimulateControlPlane(options, costs));
  return PrintControlPlane(options, plane);
}

void AddSimulation(CLI::App& command, Options& options) {
  AddLayout(command, options);
  command.add_option("--fabric", options.fabric,
                     "A fabric's file or generator; empty: a leaf-spine of the hosts");
  command
      .add_option("--fan-out", options.fan_out,
                  "Hosts below each relay of the second level, between the hosts' relays and the "
                  "root; 0: there is no second level")
      ->check(CLI::Range(0, 1 << 20));
  command.add_flag("--all-records", options.all_records, "Every host gets the records of all");
  command.add_option("--costs", options.costs,
                     "CPU times as connection=20us,message=3us,byte=0.3ns,host=2ms,link=30us; "
                     "empty: measured here");
}
#endif

void AddNccl(CLI::App& command, Options& options) {
  AddLayout(command, options);
  command
      .add_option("--ranks-per-root", options.ranks_per_root, "Ranks of a group for each unique id")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--cuda-library", options.cuda_library,
                     "The library of CUDA code; empty: libweft-cuda.so beside this program");
}

int Main(int argc, char** argv) {
  Options options;
  std::string json;
  bool model = false;
  int processes = 64;
  Run run;
  CLI::App app("Measures and explains how a job's ranks come to know each other.", "weft-init");
  SetUpProgram(app, kFooter, options, json);

  CLI::App& phases = *app.add_subcommand(
      "phases", "How long the ranks of a layout take to have all groups, by phase");
  AddLayout(phases, options);
  AddPhases(phases, options);
  phases
      .add_option("--replace", options.replace,
                  "Afterwards replace so many ranks, those of the last hosts, and time that")
      ->check(CLI::NonNegativeNumber);
  phases.add_flag("--model", model,
                  "Measure 1/8, 1/4 and 1/2 of the ranks as well, and predict other sizes");
  phases.callback([&] { run = [&] { return RunPhases(options, model); }; });

  CLI::App& operations =
      *app.add_subcommand("operations", "The store's operations per second and their latency");
  AddOperations(operations, options);
  operations.callback([&] { run = [&] { return RunOperations(options); }; });

  CLI::App& new_group =
      *app.add_subcommand("new-group", "A new group over all of N real processes of this host");
  new_group.add_option("--ranks", processes, "Processes")->check(CLI::Range(1, 4096));
  new_group.callback([&] {
    options.ranks = processes;
    run = [&] { return RunNewGroup(options); };
  });

  CLI::App& nccl = *app.add_subcommand(
      "nccl", "NCCL's communicators of the layout's groups, a process a rank on this host's GPUs");
  AddNccl(nccl, options);
  nccl.callback([&] { run = [&] { return RunNccl(options); }; });

#ifdef WEFT_INIT_SIMULATES
  CLI::App& simulate = *app.add_subcommand(
      "simulate", "The layout's control plane on a simulated fabric, with a relay a host");
  AddSimulation(simulate, options);
  simulate.callback([&] { run = [&] { return RunSimulation(options); }; });
#endif

  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  InitLog("weft-init", EnvironmentLogLevel(LogLevel::kWarn));
  return RunAndWrite("weft-init", run, json, kNoGpu);
}

}  // namespace
}  // namespace weft::init

int main(int argc, char** argv) { return weft::init::Main(argc, argv); }
