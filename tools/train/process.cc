#include "tools/train/process.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/status.h"
#include "collectives/c10d/agent_store.h"
#include "collectives/rendezvous/warm_process.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/made_up_text.h"
#include "trainer/files/file.h"
#include "trainer/files/folder_lock.h"
#include "trainer/loop/snapshots.h"
#include "trainer/loop/warm_up.h"

namespace weft::train {
namespace {

// How long ranks that have met again wait for each other to join: a rank that dies meanwhile is
// noticed at once (collectives/recovery.h), one that hangs is not.
constexpr absl::Duration kJoinPatience = absl::Seconds(30);

int ComputeThreads(const TrainConfig& config, const collectives::JobEnvironment& environment) {
  if (const int given = GivenThreads(config); given > 0) return given;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, environment.local_world_size));
}

// Joins in the present epoch: anew, or by what changed since the epoch before.
absl::Status Join(const RunOptions& options, collectives::JoinOptions join,
                  const collectives::Recovery& recovery, std::optional<collectives::Job>& job,
                  ParallelGroups& groups) {
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
    WEFT_LOG_INFO("joined again in ", absl::FormatDuration(SystemClock().Now() - start), ", with ",
                  job->endpoint->Counters().size(), " links of before; replaced: ",
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

}  // namespace

absl::Status TrainingProcess::AwaitPlace() {
  if (!collectives::IsWarmProcess()) return absl::OkStatus();
  const absl::StatusOr<TrainConfig> config = command_.Config();
  if (config.ok()) {  // else it waits all the same: who has its place says what is wrong
    // Without a place there is no whole environment; a launcher sets OMP_NUM_THREADS.
    WarmUp(*config, ComputeThreads(*config, collectives::JobEnvironment()), data_).IgnoreError();
  }
  return collectives::AwaitPlace();
}

absl::Status TrainingProcess::Run(const RecoveryPhases& phases) {
  phases_ = phases;
  RunOptions options;
  WEFT_ASSIGN_OR_RETURN(options.config, command_.Config());
  if (options.config.data.prefixes.empty()) {
    return absl::InvalidArgumentError(
        "data.prefix is empty: no data is named; weft-data prepare --input TEXT --output-prefix "
        "PREFIX makes some, and a --preset does without");
  }
  // A checkpoint names its data: the folder's other spellings are to go on from it as well.
  made_up_prefix_ = std::filesystem::path(run_dir_ + "/data/made_up").lexically_normal().string();
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
  bool resume = command_.resume;
  if (command_.replays) {
    const char* job = std::getenv("WEFT_JOB_ID");
    WEFT_ASSIGN_OR_RETURN(
        replay_, StepReplay::Plan(run_dir_, job == nullptr ? "weft" : job, options.config));
    run_dir_ = replay_->folder();
    resume = replay_->resumes();
  }
  options.run_dir = run_dir_;
  options.recovered = recovery.replaced();
  options.resume = resume || options.recovered;
  options.threads = ComputeThreads(options.config, environment);
  options.stop = stop_;
  options.measure_kernels = command_.measure_kernels;
  options.between_failures = settings.Duration("recovery.mtbf");
  options.started = SystemClock().Now();
  options.failures = recovery.replaced() ? 1 : 0;
  options.going_on = [&](int64_t step) {
    const absl::Status status = recovery.GoOnFrom(step);
    gave_up_ = absl::IsFailedPrecondition(status);
    return status;
  };
  options.phases = &phases_;
  options.data = &data_;
  options.peak_flops = &peak_flops_;
  options.core_choice = &core_choice_;
  WEFT_ASSIGN_OR_RETURN(const bool is_over, recovery.IsOver());
  if (is_over) {
    WEFT_LOG_INFO("the job was done when the process before this one ended");
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(recovery.First(patience).status());
  phases_.Note(RecoveryPhase::kMeet);
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
    phases_.Note(RecoveryPhase::kMeet);
    options.resume = options.recovered = true;
    ++options.failures;
  }
}

absl::Status TrainingProcess::RunEpoch(RunOptions& options, const collectives::JoinOptions& join,
                                       collectives::Recovery& recovery,
                                       std::optional<collectives::Job>& job) {
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
  phases_.Note(RecoveryPhase::kJoin);
  return TrainOnce(options, groups, *job);
}

absl::Status TrainingProcess::TrainOnce(RunOptions& options, ParallelGroups& groups,
                                        const collectives::Job& job) {
  const int rank = job.environment.rank.value();
  std::unique_ptr<FolderLock> lock;
  absl::Status taken;
  if (rank == 0 && replay_.has_value()) taken = replay_->Begin();
  if (rank == 0 && taken.ok()) {
    absl::StatusOr<std::unique_ptr<FolderLock>> mine = FolderLock::Take(run_dir_);
    taken = mine.status();
    if (mine.ok()) lock = *std::move(mine);
  }
  WEFT_RETURN_IF_ERROR(groups.world->Agree(taken));
  options.lock = lock.get();
  WEFT_RETURN_IF_ERROR(FindData(options, *groups.world));
  WEFT_RETURN_IF_ERROR(MakeFolders(run_dir_ + "/logs"));
  if (!logs_to_file_) {
    WEFT_RETURN_IF_ERROR(AlsoLogTo(absl::StrCat(run_dir_, "/logs/rank-", rank, ".log")));
  }
  logs_to_file_ = true;
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
  missing_ = outcome->missing;
  for (const std::string& file : missing_) WEFT_LOG_ERROR("missing ", file);
  return replay_.has_value() ? SayDigest(*groups.world) : absl::OkStatus();
}

absl::Status TrainingProcess::FindData(RunOptions& options, Group& world) const {
  if (!command_.TakesMadeUpText()) return absl::OkStatus();
  TrainConfig& config = options.config;
  const std::string given = config.data.prefixes.front();  // the preset's own, one alone
  std::string prefix = given;
  absl::Status made;
  if (world.rank() == 0 && absl::IsNotFound(ReadDatasetInfo(prefix).status())) {
    const std::string& own = made_up_prefix_;
    made = PrepareMadeUpText(own);
    WEFT_LOG_INFO("there is no data at ", prefix, ": training on made-up sentences, ", own,
                  ".txt. For a text of yours: weft-data prepare --input TEXT --output-prefix "
                  "data/mine, then --set data.prefix=data/mine");
    prefix = own;
  }
  WEFT_RETURN_IF_ERROR(world.Agree(made));
  WEFT_ASSIGN_OR_RETURN(prefix, world.FromFirst(prefix));
  absl::StrReplaceAll(
      {{absl::StrCat("prefix = \"", given, "\"\n"), absl::StrCat("prefix = \"", prefix, "\"\n")}},
      &config.text);
  config.data.prefixes = {prefix};
  return absl::OkStatus();
}

absl::Status TrainingProcess::SayDigest(Group& world) const {
  WEFT_RETURN_IF_ERROR(world.Agree(absl::OkStatus()));  // rank 0 has written its files
  const absl::StatusOr<std::string> digest = replay_->Digest();
  WEFT_RETURN_IF_ERROR(world.Agree(digest.status()));
  std::printf("replay: %s\n", digest->c_str());
  return world.rank() == 0 ? replay_->End() : absl::OkStatus();
}

}  // namespace weft::train
