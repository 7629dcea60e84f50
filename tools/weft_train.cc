// weft-train: trains a GPT, alone or as one rank of a job that weft-run or torchrun started.
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/settings.h"
#include "base/status.h"
#include "collectives/c10d/agent_store.h"
#include "collectives/join.h"
#include "collectives/recovery.h"
#include "collectives/rendezvous/warm_process.h"
#include "tools/command_line.h"
#include "topology/host/affinity.h"
#include "topology/job/mesh.h"
#include "trainer/config.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/made_up_text.h"
#include "trainer/device/device.h"
#include "trainer/files/file.h"
#include "trainer/files/folder_lock.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/forecast.h"
#include "trainer/loop/recovery_phases.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/snapshots.h"
#include "trainer/loop/step_replay.h"
#include "trainer/loop/trainer.h"
#include "trainer/loop/warm_up.h"
#include "trainer/memory/memory.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {
namespace {

std::atomic<bool> stop_requested{false};

extern "C" void RequestStop(int) { stop_requested.store(true); }

// In which ranks that have met again join: a rank that dies meanwhile is noticed at once
// (collectives/recovery.h), one that hangs is not.
constexpr absl::Duration kJoinPatience = absl::Seconds(30);

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

// What is given of them; 0: nothing.
int GivenThreads(const TrainConfig& config) {
  if (config.threads > 0) return config.threads;
  int threads = 0;
  const char* openmp = std::getenv("OMP_NUM_THREADS");
  return openmp != nullptr && absl::SimpleAtoi(openmp, &threads) ? std::max(threads, 0) : 0;
}

int ComputeThreads(const TrainConfig& config, const collectives::JobEnvironment& environment) {
  if (const int given = GivenThreads(config); given > 0) return given;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, environment.local_world_size));
}

struct Command {
  std::string config_path;
  std::string run_dir;
  bool resume = false;
  bool markdown = false;
  bool check = false;
  bool replays = false;
  double measure_kernels = 0;        // seconds; 0: no new trial
  std::optional<StepReplay> replay;  // during Run
  std::string made_up_prefix;        // during Run: where data goes that nobody has named
  RecoveryPhases phases;             // of this process; told by Run
  RunData data;                      // open once Run, or a spare process, has come so far
  double peak_flops = 0;
  std::string core_choice;
  int ranks = 0;
  int ranks_per_host = 0;
  int vocabulary = 0;      // with --check; 0: the data's
  std::string gpu_memory;  // with --check; empty: this machine's
  std::string svg;         // with --check: where the pipeline's schedule is drawn
  std::string preset;
  // Short forms of keys, which come before --set; empty: not given.
  std::string tensor, context, expert, pipeline, zero, schedule;
  std::vector<std::string> overrides;
  std::vector<std::string> missing;  // after Run: files that it could not write
  bool gave_up = false;              // after Run: starting this rank anew does not help
  bool logs_to_file = false;

  absl::StatusOr<TrainConfig> Config() const {
    struct Short {
      const char *option, *key;
      const std::string* value;
    };
    Settings known(TrainSettings());
    std::vector<std::string> pairs;
    for (const auto& [option, key, value] :
         {Short{"--tp", "parallel.tensor", &tensor}, Short{"--cp", "parallel.context", &context},
          Short{"--ep", "parallel.expert", &expert}, Short{"--pp", "parallel.pipeline", &pipeline},
          Short{"--zero", "parallel.zero", &zero},
          Short{"--schedule", "parallel.schedule", &schedule}}) {
      if (value->empty()) continue;
      WEFT_RETURN_IF_ERROR(known.Set(key, *value, option));  // an error names the option
      pairs.push_back(absl::StrCat(key, "=", *value));
    }
    pairs.insert(pairs.end(), overrides.begin(), overrides.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig(config_path, pairs, preset);
    if (!config.ok()) return absl::InvalidArgumentError(config.status().message());
    return config;
  }

  // A spare process does everything that takes time before the first step and needs no rank's
  // place, and waits for one. Without one it says nothing, whatever is wrong.
  absl::Status AwaitPlace() {
    if (!collectives::IsWarmProcess()) return absl::OkStatus();
    const absl::StatusOr<TrainConfig> config = Config();
    if (config.ok()) {
      // Without a place there is no whole environment; a launcher sets OMP_NUM_THREADS.
      WarmUp(*config, ComputeThreads(*config, collectives::JobEnvironment()), data).IgnoreError();
    }
    return collectives::AwaitPlace();
  }

  // A vocabulary is all that --check needs of the data: what is given, else the data's, else the
  // model's or the demo's, and it says so.
  absl::Status FindVocabulary(TrainConfig& config) const {
    constexpr int64_t kOfTheDemo = 4096;
    const absl::StatusOr<DatasetInfo> info = ReadDatasetInfo(config.data_prefix);
    if (vocabulary > 0) {
      config.model.vocabulary = vocabulary;
    } else if (info.ok()) {
      config.model.vocabulary = info->vocab_size;
    } else if (absl::IsNotFound(info.status())) {
      const bool is_known = config.model.vocabulary > 0;
      if (!is_known) config.model.vocabulary = kOfTheDemo;
      absl::PrintF("vocabulary    %d, %s, as there is no data at '%s' (--vocabulary)\n",
                   config.model.vocabulary, is_known ? "the model's" : "that of the demo",
                   config.data_prefix);
    } else {
      return info.status();
    }
    return absl::OkStatus();
  }

  // Bytes of memory that one GPU has, for --check; 0: not known.
  absl::StatusOr<Bytes> GpuMemory(const TrainConfig& config) const {
    if (!gpu_memory.empty()) {
      absl::StatusOr<Bytes> given = ParseBytes(gpu_memory);
      return given.ok() ? given : Annotate(given.status(), "--gpu-memory");
    }
    if (config.device != DeviceKind::kCuda) return Bytes(0);
    const absl::StatusOr<at::Device> device = OpenDevice(config.device, 0);
    return device.ok() ? MemoryOf(*device).total : Bytes(0);
  }

  // Whether the preset alone says where the data is: then made-up sentences serve where it is not.
  bool TakesMadeUpText() const {
    const bool is_given =
        std::any_of(overrides.begin(), overrides.end(), [](const std::string& pair) {
          return absl::StripAsciiWhitespace(pair.substr(0, pair.find('='))) == "data.prefix";
        });
    if (preset.empty() || is_given) return false;
    if (config_path.empty()) return true;
    const absl::StatusOr<TrainConfig> of_file = LoadTrainConfig(config_path, {});
    return of_file.ok() && of_file->data_prefix.empty();
  }

  // Rank 0 looks for the data, and makes some in the run's folder where there is none.
  absl::Status FindData(RunOptions& options, Group& world) const {
    if (!TakesMadeUpText()) return absl::OkStatus();
    TrainConfig& config = options.config;
    std::string prefix = config.data_prefix;
    absl::Status made;
    if (world.rank() == 0 && absl::IsNotFound(ReadDatasetInfo(prefix).status())) {
      const std::string own = made_up_prefix;
      made = PrepareMadeUpText(own);
      WEFT_LOG_INFO("there is no data at ", prefix, ": training on made-up sentences, ", own,
                    ".txt. For a text of yours: weft-data prepare --input TEXT --output-prefix "
                    "data/mine, then --set data.prefix=data/mine");
      prefix = own;
    }
    WEFT_RETURN_IF_ERROR(world.Agree(made));
    WEFT_ASSIGN_OR_RETURN(prefix, world.FromFirst(prefix));
    absl::StrReplaceAll({{absl::StrCat("prefix = \"", config.data_prefix, "\"\n"),
                          absl::StrCat("prefix = \"", prefix, "\"\n")}},
                        &config.text);
    config.data_prefix = prefix;
    return absl::OkStatus();
  }

  // The ranks that the axes need where none of them is data-parallel alone.
  static absl::StatusOr<int> FewestRanks(const TrainConfig& config) {
    const int64_t product = int64_t{config.tensor_parallel} * config.context_parallel *
                            config.expert_parallel * config.pipeline_parallel;
    if (product <= topology::kMeshRanksMax) return static_cast<int>(product);
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.tensor = ", config.tensor_parallel, " x parallel.context = ",
                     config.context_parallel, " x parallel.expert = ", config.expert_parallel,
                     " x parallel.pipeline = ", config.pipeline_parallel, " = ", product,
                     " ranks; a job has at most ", topology::kMeshRanksMax));
  }

  // --check: everything that can be said before a rank trains.
  absl::Status Check() const {
    WEFT_ASSIGN_OR_RETURN(TrainConfig config, Config());
    WEFT_RETURN_IF_ERROR(FindVocabulary(config));
    config.threads = GivenThreads(config);
    WEFT_ASSIGN_OR_RETURN(const Bytes gpu, GpuMemory(config));
    WEFT_ASSIGN_OR_RETURN(const Settings settings, Settings::FromEnvironment());
    WEFT_ASSIGN_OR_RETURN(const auto environment, collectives::JobEnvironment::FromEnvironment());
    int size = ranks;
    if (size == 0) {
      WEFT_ASSIGN_OR_RETURN(const int fewest, FewestRanks(config));
      size = std::max(environment.world_size, fewest);
    }
    TrainConfig as_run;
    WEFT_ASSIGN_OR_RETURN(std::string text,
                          DescribeRun(config, size, ranks_per_host,
                                      environment.recover && size > 1 &&
                                          settings.Text("recovery.snapshot") == "memory",
                                      gpu, JobCores(), &as_run));
    std::fputs(text.c_str(), stdout);
    return svg.empty() ? absl::OkStatus() : Draw(as_run, size);
  }

  absl::Status Draw(const TrainConfig& config, int size) const {
    WEFT_ASSIGN_OR_RETURN(const topology::Mesh mesh, MeshOf(config, size));
    WEFT_ASSIGN_OR_RETURN(const StepPlan plan, StepPlan::Make(config, SizesOf(mesh)));
    WEFT_ASSIGN_OR_RETURN(const std::string picture, DrawPipeline(config, plan));
    if (picture.empty()) {
      return absl::InvalidArgumentError(
          "--svg draws the schedule of a pipeline, and there is none: parallel.pipeline = 1");
    }
    WEFT_RETURN_IF_ERROR(WriteFileAtomically(svg, picture));
    absl::PrintF("schedule      %s\n", svg);
    return absl::OkStatus();
  }

  absl::Status Run() {
    RunOptions options;
    WEFT_ASSIGN_OR_RETURN(options.config, Config());
    if (options.config.data_prefix.empty()) {
      return absl::InvalidArgumentError(
          "data.prefix is empty: no data is named; weft-data prepare --input TEXT --output-prefix "
          "PREFIX makes some, and a --preset does without");
    }
    // A checkpoint names its data: the folder's other spellings are to go on from it as well.
    made_up_prefix = std::filesystem::path(run_dir + "/data/made_up").lexically_normal().string();
    WEFT_ASSIGN_OR_RETURN(const Settings settings, Settings::FromEnvironment());
    WEFT_ASSIGN_OR_RETURN(const auto environment, collectives::JobEnvironment::FromEnvironment());
    InitLog(environment.world_size > 1 ? absl::StrCat("rank ", environment.rank.value()) : "",
            ParseLogLevel(settings.Text("log.level")));
    collectives::JoinOptions join;
    join.settings = settings;
    join.environment = environment;
    join.agent_store = collectives::ConnectAgentStore;
    join.mesh = [&](int ranks) { return MeshOf(options.config, ranks); };
    WEFT_ASSIGN_OR_RETURN(join.store, collectives::ConnectJobStore(join, environment));
    const absl::Duration patience = settings.Duration("store.timeout");
    collectives::Recovery recovery(join.store.get(), environment);
    join.rejoins = recovery.enabled() && settings.Text("recovery.join") == "changed";
    std::optional<collectives::Job> job;  // from epoch to epoch
    const collectives::Recovery::LetGo let_go = [&](const std::vector<int>& replaced) {
      return job.has_value() && join.rejoins
                 ? collectives::AsRejoinable(*job->endpoint).Forget(replaced)
                 : absl::FailedPreconditionError("recovery.join = all, or nothing to keep");
    };
    Snapshots snapshots;
    options.recovers = recovery.enabled();
    const bool keeps = settings.Text("recovery.snapshot") == "memory";
    if (options.recovers && keeps) options.snapshots = &snapshots;
    if (replays) {
      const char* job = std::getenv("WEFT_JOB_ID");
      WEFT_ASSIGN_OR_RETURN(
          replay, StepReplay::Plan(run_dir, job == nullptr ? "weft" : job, options.config));
      run_dir = replay->folder();
      resume = replay->resumes();
    }
    options.run_dir = run_dir;
    options.recovered = recovery.replaced();
    options.resume = resume || options.recovered;
    options.threads = ComputeThreads(options.config, environment);
    options.stop = &stop_requested;
    options.measure_kernels = measure_kernels;
    options.between_failures = settings.Duration("recovery.mtbf");
    options.started = SystemClock().Now();
    options.failures = recovery.replaced() ? 1 : 0;
    options.going_on = [&](int64_t step) {
      const absl::Status status = recovery.GoOnFrom(step);
      gave_up = absl::IsFailedPrecondition(status);
      return status;
    };
    options.phases = &phases;
    options.data = &data;
    options.peak_flops = &peak_flops;
    options.core_choice = &core_choice;
    WEFT_ASSIGN_OR_RETURN(const bool is_over, recovery.IsOver());
    if (is_over) {
      WEFT_LOG_INFO("the job was done when the process before this one ended");
      return absl::OkStatus();
    }
    WEFT_RETURN_IF_ERROR(recovery.First(patience).status());
    phases.Note(RecoveryPhase::kMeet);
    while (true) {
      const absl::Status status = RunEpoch(options, join, recovery, job);
      if (status.ok()) {
        const absl::Status told = recovery.SetOver();
        if (!told.ok()) WEFT_LOG_WARN("tell that the job is done: ", told.message());
        return status;
      }
      if (!options.recovers || !collectives::Recovery::Helps(status, environment.rank.value())) {
        return status;
      }
      WEFT_LOG_WARN(status.message(), "; waiting for all ranks to be here again");
      const absl::Status met = recovery.Next(patience, let_go).status();
      if (!met.ok()) return Annotate(met, status.message());
      phases.Note(RecoveryPhase::kMeet);
      options.resume = options.recovered = true;
      ++options.failures;
    }
  }

  // Joins and trains, until the end or until a rank is gone: then the other ranks know, and nothing
  // of groups and parameters is left but the snapshots, and the endpoint.
  absl::Status RunEpoch(RunOptions& options, const collectives::JoinOptions& join,
                        collectives::Recovery& recovery, std::optional<collectives::Job>& job) {
    ParallelGroups groups;
    std::unique_ptr<collectives::JoinGuard> guard = recovery.GuardJoin();
    const absl::Status joined = Join(options, join, recovery, job, groups);
    guard.reset();
    if (!joined.ok()) {
      // Who has no groups answers nobody who has: with the endpoint, the others' links end.
      groups = ParallelGroups();
      job.reset();
      // A rank that others wait for may have died on its way, and be started anew.
      const bool is_lost = options.recovers && absl::IsDeadlineExceeded(joined);
      return is_lost ? absl::UnavailableError(joined.message()) : joined;
    }
    recovery.Joined();
    phases.Note(RecoveryPhase::kJoin);
    return TrainOnce(options, groups, *job);
  }

  // Joins in the present epoch: anew, or by what changed since the epoch before.
  absl::Status Join(const RunOptions& options, collectives::JoinOptions join,
                    const collectives::Recovery& recovery, std::optional<collectives::Job>& job,
                    ParallelGroups& groups) const {
    const auto make_groups =
        [&](const std::shared_ptr<collectives::Endpoint>& endpoint) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(groups, ParallelGroups::Create(options.config, endpoint));
      return absl::OkStatus();
    };
    if (recovery.rejoins() && job.has_value()) {
      const absl::Time start = SystemClock().Now();
      job->report.clear();
      WEFT_RETURN_IF_ERROR(collectives::AsRejoinable(*job->endpoint).Rejoin(recovery.rejoining()));
      WEFT_RETURN_IF_ERROR(make_groups(job->endpoint));
      WEFT_LOG_INFO("joined again in ", absl::FormatDuration(SystemClock().Now() - start),
                    ", with ", job->endpoint->Counters().size(), " links of before; replaced: ",
                    absl::StrJoin(recovery.rejoining().replaced, ", "));
      return absl::OkStatus();
    }
    job.reset();
    if (recovery.base() > 0) join.program = absl::StrCat("epoch-", recovery.base());
    if (recovery.rejoins()) join.rejoining = recovery.rejoining();
    // All have just met; whoever does not come now has died since.
    if (recovery.epoch() > 0 && join.settings.Duration("store.timeout") > kJoinPatience) {
      WEFT_RETURN_IF_ERROR(join.settings.Set("store.timeout", absl::FormatDuration(kJoinPatience),
                                             "a rank started anew"));
    }
    join.make_groups = make_groups;
    WEFT_ASSIGN_OR_RETURN(job, collectives::JoinJob(std::move(join)));
    return absl::OkStatus();
  }

  absl::Status TrainOnce(RunOptions& options, ParallelGroups& groups, const collectives::Job& job) {
    const int rank = job.environment.rank.value();
    std::unique_ptr<FolderLock> lock;
    absl::Status taken;
    if (rank == 0 && replay.has_value()) taken = replay->Begin();
    if (rank == 0 && taken.ok()) {
      absl::StatusOr<std::unique_ptr<FolderLock>> mine = FolderLock::Take(run_dir);
      taken = mine.status();
      if (mine.ok()) lock = *std::move(mine);
    }
    WEFT_RETURN_IF_ERROR(groups.world->Agree(taken));
    options.lock = lock.get();
    WEFT_RETURN_IF_ERROR(FindData(options, *groups.world));
    WEFT_RETURN_IF_ERROR(MakeFolders(run_dir + "/logs"));
    if (!logs_to_file) {
      WEFT_RETURN_IF_ERROR(AlsoLogTo(absl::StrCat(run_dir, "/logs/rank-", rank, ".log")));
    }
    logs_to_file = true;
    WEFT_LOG_INFO("rank ", rank, " of ", job.environment.world_size, ", process ", getpid(), ", ",
                  options.threads, " threads");
    if (!job.report.empty()) WEFT_LOG_INFO(job.report);
    options.local_rank = job.environment.local_rank;
    options.collective_timeout = job.endpoint->settings().Duration("collective.timeout");
    absl::StatusOr<RunOutcome> outcome = Train(options, groups);
    if (!outcome.ok()) {
      WEFT_LOG_ERROR(DescribeFailure(outcome.status()));
      return outcome.status();
    }
    missing = outcome->missing;
    for (const std::string& file : missing) WEFT_LOG_ERROR("missing ", file);
    return replay.has_value() ? SayDigest(*groups.world) : absl::OkStatus();
  }

  absl::Status SayDigest(Group& world) const {
    WEFT_RETURN_IF_ERROR(world.Agree(absl::OkStatus()));  // rank 0 has written its files
    const absl::StatusOr<std::string> digest = replay->Digest();
    WEFT_RETURN_IF_ERROR(world.Agree(digest.status()));
    std::printf("replay: %s\n", digest->c_str());
    return world.rank() == 0 ? replay->End() : absl::OkStatus();
  }
};

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
  app.add_option("config", command.config_path, "TOML file; docs/training-keys.md lists its keys")
      ->check(CLI::ExistingFile);
  app.add_option("--run-dir", command.run_dir, "folder for everything that the run writes")
      ->default_val("runs/train");
  app.add_flag("--resume", command.resume,
               "go on from the last whole checkpoint of the run folder, if there is one");
  std::string presets = "built-in config, instead of a file or below it:";
  for (const Preset& preset : Presets()) {
    absl::StrAppend(&presets, "\n", preset.name, ": ", preset.sentence);
  }
  app.add_option("--preset", command.preset, presets);
  app.add_option("--tp", command.tensor,
                 "ranks that share each layer (parallel.tensor), with sequence parallelism");
  app.add_option("--cp", command.context,
                 "ranks that share each sample (parallel.context); how: parallel.context_method");
  app.add_option("--ep", command.expert,
                 "data-parallel ranks that share the experts of a layer (parallel.expert)");
  app.add_option("--pp", command.pipeline, "stages of the pipeline (parallel.pipeline)");
  app.add_option("--schedule", command.schedule,
                 absl::StrCat("order of the passes of the pipeline (parallel.schedule): ",
                              topology::kPipelineScheduleNames));
  app.add_option("--zero", command.zero,
                 "stage of ZeRO over the data-parallel ranks (parallel.zero)");
  app.add_flag("--replay", command.replays,
               "compute one step again, from the run folder's newest checkpoint, without changing "
               "the run, and print a digest of the result: \"replay: DIGEST\" (weft-driver "
               "--replay-hosts)");
  app.add_option(
         "--measure-kernels", command.measure_kernels,
         "measure anew, for up to this many seconds at the start, which library is fastest at "
         "each product and at attention, and keep the result for later runs on this machine, "
         "which should be idle")
      ->check(RealRange(0.1, 600));
  CLI::Option* const check = app.add_flag(
      "--check", command.check,
      "print what the layout means (ranks, micro-batches, bubble, memory) or why it is not "
      "possible, and exit without training");
  app.add_option("--ranks", command.ranks,
                 "with --check: ranks of the job; without --check, these are the ranks that the "
                 "launcher starts (weft-run -n)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(check);
  app.add_option("--ranks-per-host", command.ranks_per_host,
                 "with --check: ranks that share a host's memory (default: all of the job)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(check);
  app.add_option(
         "--vocabulary", command.vocabulary,
         "with --check: tokens of the vocabulary (default: those of the data or, where there is "
         "no data, of the model)")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(check);
  app.add_option(
         "--gpu-memory", command.gpu_memory,
         "with --check and train.device=cuda: memory of a GPU, as 80GiB (default: that of this "
         "machine's first GPU, if there is one)")
      ->needs(check);
  app.add_option(
         "--svg", command.svg,
         "with --check: file for a picture of the pipeline's schedule, a row for each stage")
      ->needs(check);
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
  CountTensorMemory();
  RaiseOpenFilesLimit();
  const bool is_spare = collectives::IsWarmProcess();
  absl::Status status = command.AwaitPlace();
  if (absl::IsCancelled(status)) return 0;
  command.phases = RecoveryPhases::FromEnvironment(SystemClock::Nanoseconds(), is_spare);
  HandleSignals();
  if (status.ok()) status = command.check ? command.Check() : command.Run();
  if (status.ok()) return command.missing.empty() ? 0 : 3;
  absl::FPrintF(stderr, "weft-train: %s\n", DescribeFailure(status));
  if (command.gave_up) return 4;
  bool is_usage = status.code() == absl::StatusCode::kInvalidArgument;
  return is_usage ? 2 : 1;
}

}  // namespace
}  // namespace weft::train

int main(int argc, char** argv) { return weft::train::Main(argc, argv); }
