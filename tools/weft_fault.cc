// weft-fault: makes faults, to see what names them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/settings.h"
#include "tools/command_line.h"
#include "tools/fault/emulated_rank.h"
#include "tools/fault/flip_bits.h"
#include "tools/fault/inject.h"
#include "tools/job/job.h"

namespace weft {
namespace {

struct Durations {
  std::string step_time = "60ms", lasting = "5s", patience = "5m";
};

std::string FaultList() {
  std::string text = "one of:";
  for (const fault::FaultRow& row : fault::Faults()) {
    absl::StrAppend(&text, "\n  ", row.name, ": ", row.sentence);
  }
  return text;
}

void PrintFaults() {
  for (const fault::FaultRow& row : fault::Faults()) {
    std::printf("{\"fault\":\"%s\",\"expected\":\"%s\",\"component\":\"%s\",\"row\":%d}\n",
                row.name, row.expected, row.component, row.row);
  }
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Makes faults in jobs, with the moment at which they begin on standard output.\n"
      "  weft-fault run --ranks 4 --fault hang-data        a job whose compute is emulated\n"
      "  weft-fault inject --rank 2 --fault stop --step 20 --phase backward   in a job that runs",
      "weft-fault");
  app.require_subcommand(1);
  Durations text;
  int ranks = 0;
  fault::EmulationOptions emulation;
  CLI::App* run = app.add_subcommand("run", "a rank of an emulated training job");
  run->add_option("--ranks", ranks, "start so many ranks here (else: as weft-run started it)")
      ->check(CLI::Range(0, 256));
  run->add_option("--fault", emulation.fault, FaultList())->capture_default_str();
  run->add_option("--rank", emulation.rank, "rank that has the fault (default: drawn by --seed)")
      ->check(CLI::NonNegativeNumber);
  run->add_option("--step", emulation.at_step, "step in which the fault begins")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  run->add_option("--severity", emulation.severity, "how many times as long a slow step takes")
      ->check(RealRange(1, 100))
      ->capture_default_str();
  run->add_option("--steps", emulation.steps, "steps of the whole job")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  run->add_option("--step-time", text.step_time, "compute of a healthy step")
      ->capture_default_str();
  run->add_option("--seed", emulation.seed, "draws the rank and the jitter")->capture_default_str();
  run->add_flag("--timing", emulation.timing, "print the median of its steps' times at the end");
  fault::InjectOptions injection;
  CLI::App* inject =
      app.add_subcommand("inject", "put a fault into a rank of a job that runs on this host");
  inject->add_option("--fault", injection.fault, "kill; stop; pause and slow, for --for")
      ->check(CLI::IsMember({"kill", "stop", "pause", "slow"}))
      ->capture_default_str();
  inject->add_option("--rank", injection.rank, "rank that gets the fault")
      ->required()
      ->check(CLI::NonNegativeNumber);
  inject->add_option("--step", injection.at_step, "first step in which the fault may begin")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  inject->add_option("--phase", injection.phase, "in this phase, as forward (default: any)");
  inject
      ->add_option("--severity", injection.severity,
                   "with slow: how many times as long the rank takes")
      ->check(RealRange(1.01, 100))
      ->capture_default_str();
  inject->add_option("--for", text.lasting, "how long pause and slow last")->capture_default_str();
  inject->add_option("--patience", text.patience, "how long to wait for that step and phase")
      ->capture_default_str();
  inject->add_option("--job", injection.job, "the job's name (default: the job that began last)")
      ->check(CheckJobName);
  inject->add_option("--records", injection.folder, "folder of the rings");
  fault::FlipOptions flips;
  CLI::App* flip = app.add_subcommand(
      "flip", "run a program whose numbers in memory have bits flipped, as a bad host does it");
  flip->add_option("--seed", flips.seed, "seed by which the places of flipped bits are drawn")
      ->capture_default_str();
  flip->add_option("program", flips.command, "the program and its arguments, after --")->required();
  CLI::App* list = app.add_subcommand("list", "the faults of run, and what should name them; JSON");
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&]() -> absl::Status {
    if (fault::FindFault(emulation.fault) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--fault ", emulation.fault, ": there is no such fault; ", FaultList()));
    }
    absl::Status status = TakeDuration("--step-time", text.step_time, emulation.step_time);
    status.Update(TakeDuration("--for", text.lasting, injection.lasting));
    status.Update(TakeDuration("--patience", text.patience, injection.patience));
    return status;
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  if (list->parsed()) {
    PrintFaults();
    return 0;
  }
  absl::Status status;
  if (flip->parsed()) {
    const absl::StatusOr<int> ended = fault::FlipBits(flips);
    if (ended.ok()) return *ended;
    status = ended.status();
  } else if (inject->parsed()) {
    status = fault::Inject(injection);
  } else if (ranks > 0) {
    status = job::BecomeLauncher(ranks, argc, argv);
  } else if (auto settings = Settings::FromEnvironment(); !settings.ok()) {
    status = settings.status();
  } else {
    InitLog("weft-fault", ParseLogLevel(settings->Text("log.level")));
    status = fault::RunEmulatedRank(*settings, emulation);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "weft-fault: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
