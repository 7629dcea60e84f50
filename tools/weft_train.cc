// weft-train: trains a GPT, alone or as one rank of a job that weft-run or torchrun started.
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/settings.h"
#include "base/status.h"
#include "collectives/c10d/job.h"
#include "tools/command_line.h"
#include "trainer/config.h"
#include "trainer/files/file.h"
#include "trainer/files/folder_lock.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel/group.h"

namespace weft {
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

// Activations are allocated and freed every step: keep their pages, instead of giving them back to
// the kernel and faulting them in again.
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

int ComputeThreads(const TrainConfig& config, const collectives::JobEnvironment& environment) {
  if (config.threads > 0) return config.threads;
  int threads = 0;
  const char* openmp = std::getenv("OMP_NUM_THREADS");
  if (openmp != nullptr && absl::SimpleAtoi(openmp, &threads) && threads > 0) return threads;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, environment.local_world_size));
}

struct Command {
  std::string config_path;
  std::string run_dir;
  bool resume = false;
  bool markdown = false;
  std::vector<std::string> overrides;
  std::vector<std::string> missing;  // after Run: files that it could not write

  absl::Status Run() {
    RunOptions options;
    absl::StatusOr<TrainConfig> config = LoadTrainConfig(config_path, overrides);
    if (!config.ok()) return absl::InvalidArgumentError(config.status().message());
    options.config = *std::move(config);
    WEFT_ASSIGN_OR_RETURN(Settings settings, Settings::FromEnvironment());
    WEFT_ASSIGN_OR_RETURN(collectives::Job job, collectives::JoinJob(settings));
    int rank = job.environment.rank.value();
    int size = job.environment.world_size;
    options.run_dir = run_dir;
    options.resume = resume;
    options.threads = ComputeThreads(options.config, job.environment);
    options.stop = &stop_requested;
    InitLog(size > 1 ? absl::StrCat("rank ", rank) : "", ParseLogLevel(settings.Text("log.level")));
    Group group(job.world.get(), rank, size);
    std::unique_ptr<FolderLock> lock;
    if (rank == 0) {
      absl::StatusOr<std::unique_ptr<FolderLock>> taken = FolderLock::Take(run_dir);
      if (taken.ok()) lock = *std::move(taken);
      WEFT_RETURN_IF_ERROR(group.Agree(taken.status()));
    } else {
      WEFT_RETURN_IF_ERROR(group.Agree(absl::OkStatus()));
    }
    options.lock = lock.get();
    WEFT_RETURN_IF_ERROR(MakeFolders(run_dir + "/logs"));
    WEFT_RETURN_IF_ERROR(AlsoLogTo(absl::StrCat(run_dir, "/logs/rank-", rank, ".log")));
    WEFT_LOG_INFO("rank ", rank, " of ", size, ", process ", getpid(), ", ", options.threads,
                  " threads");
    absl::StatusOr<RunOutcome> outcome = Train(options, group);
    if (!outcome.ok()) {
      WEFT_LOG_ERROR(outcome.status().message());
      return outcome.status();
    }
    missing = outcome->missing;
    for (const std::string& file : missing) WEFT_LOG_ERROR("missing ", file);
    return absl::OkStatus();
  }
};

int Main(int argc, char** argv) {
  CLI::App app(
      "Trains a GPT on what weft-data prepared, alone or as one rank of several:\n"
      "  weft-run -n 4 -- weft-train trainer/configs/demo.toml --run-dir runs/demo\n"
      "SIGINT and SIGTERM end a run after its step, with a checkpoint; --resume goes on from "
      "there.\n"
      "Exit status 0: done or stopped so; 1: failed; 2: the command line or the config is wrong;\n"
      "3: done or stopped so, but its last checkpoint or another file could not be written.",
      "weft-train");
  Command command;
  app.add_option("config", command.config_path, "TOML file; docs/training.md lists its keys")
      ->check(CLI::ExistingFile);
  app.add_option("--run-dir", command.run_dir, "folder for everything that the run writes")
      ->default_val("runs/train");
  app.add_flag("--resume", command.resume,
               "go on from the last whole checkpoint of the run folder, if there is one");
  app.add_option("--set", command.overrides, "KEY=VALUE of the config, as train.steps=100")
      ->allow_extra_args(false);
  app.add_flag("--markdown", command.markdown, "print the reference of all keys and exit");
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  if (command.markdown) {
    std::fputs(TrainSettingsMarkdown().c_str(), stdout);
    return 0;
  }
  KeepMemory();
  RaiseOpenFilesLimit();
  HandleSignals();
  absl::Status status = command.Run();
  if (status.ok()) return command.missing.empty() ? 0 : 3;
  absl::FPrintF(stderr, "weft-train: %s\n", status.message());
  bool is_usage = status.code() == absl::StatusCode::kInvalidArgument;
  return is_usage ? 2 : 1;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
