// weft-train: trains a GPT, alone or as one rank of a job that weft-run or torchrun started.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/failure.h"
#include "base/open_files.h"
#include "collectives/rendezvous/warm_process.h"
#include "tools/command_line.h"
#include "tools/train/check.h"
#include "tools/train/command.h"
#include "tools/train/process.h"
#include "trainer/config.h"
#include "trainer/loop/recovery_phases.h"
#include "trainer/memory/memory.h"

namespace weft::train {
namespace {

std::atomic<bool> stop_requested{false};

extern "C" void RequestStop(int) { stop_requested.store(true); }

// The first signal ends the run after its step; the default action is restored, so that a second
// one ends it at once.
void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = RequestStop;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A file that reaches a size limit is a failed write, with its name, and not a death.
  signal(SIGXFSZ, SIG_IGN);
}

// Activations are allocated and freed every step: keep their pages, instead of giving them back
// to the kernel and faulting them in again.
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Trains a GPT on what weft-data prepared, alone or as one rank of several:\n"
      "  weft-run -n 4 -- weft-train trainer/configs/demo.toml --run-dir runs/demo\n"
      "  weft-run -n 4 -- weft-train --preset tiny --tp 2 --pp 2 --run-dir runs/tiny\n"
      "SIGINT and SIGTERM end a run after its step, with a checkpoint; --resume goes on from "
      "there.\n"
      "Exit status 0: done or stopped so; 1: failed; 2: the command line or the config is "
      "wrong;\n"
      "3: done or stopped so, but its last checkpoint or another file could not be written;\n"
      "4: failed as the process of this rank before it did, in the same step (weft-run --recover).",
      "weft-train");
  Command command;
  AddOptions(app, command);
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  if (command.markdown) {
    std::fputs(TrainSettingsMarkdown().c_str(), stdout);
    return 0;
  }
  KeepMemory();
  CountTensorMemory();
  RaiseOpenFilesLimit();
  const bool is_spare = collectives::IsWarmProcess();
  TrainingProcess process(command, &stop_requested);
  absl::Status status = process.AwaitPlace();
  if (absl::IsCancelled(status)) return 0;
  const RecoveryPhases phases =
      RecoveryPhases::FromEnvironment(SystemClock::Nanoseconds(), is_spare);
  HandleSignals();
  if (status.ok()) status = command.check ? CheckRun(command) : process.Run(phases);
  if (status.ok()) return process.missing().empty() ? 0 : 3;
  absl::FPrintF(stderr, "weft-train: %s\n", DescribeFailure(status));
  if (process.gave_up()) return 4;
  bool is_usage = status.code() == absl::StatusCode::kInvalidArgument;
  return is_usage ? 2 : 1;
}

}  // namespace
}  // namespace weft::train

int main(int argc, char** argv) { return weft::train::Main(argc, argv); }
