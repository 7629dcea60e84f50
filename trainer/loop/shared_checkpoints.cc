#include "trainer/loop/shared_checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/files/file.h"
#include "trainer/groups/status_error.h"

namespace weft::train {
namespace {

absl::Status RemoveUnfinishedOf(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListUnfinished(folder));
  for (const std::string& path : paths) {
    WEFT_LOG_WARN("removed ", path, ": it was never finished");
  }
  return RemoveLeftovers(folder);
}

}  // namespace

SharedCheckpoints::SharedCheckpoints(std::string folder, const TrainConfig& config, bool is_first,
                                     std::shared_ptr<SaveTimes> times, absl::Duration end_patience)
    : folder_(std::move(folder)),
      end_patience_(end_patience),
      remote_timeout_(config.checkpoint_remote_timeout),
      pruning_(std::make_shared<Pruning>(folder_, config.checkpoint_keep, std::move(times))) {
  if (!config.checkpoint_remote_folder.empty() && is_first) {
    remote_.emplace(folder_, config.checkpoint_remote_folder, config.checkpoint_keep);
  }
}

absl::Status SharedCheckpoints::ExpectNone() const {
  std::vector<std::string> folders = {folder_};
  if (remote_) folders.push_back(remote_->mirror().folder());
  for (const std::string& folder : folders) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
    if (!paths.empty()) {
      return absl::AlreadyExistsError(
          absl::StrCat(ParentFolder(folder), " holds a run with the checkpoint ", paths.front(),
                       "; go on with it by --resume, or name another ",
                       folder == folder_ ? "--run-dir" : "checkpoint.remote_folder"));
    }
    WEFT_RETURN_IF_ERROR(RemoveLeftovers(folder));
  }
  return absl::OkStatus();
}

absl::Status SharedCheckpoints::RemoveUnfinished() const {
  WEFT_RETURN_IF_ERROR(RemoveUnfinishedOf(folder_));
  if (!remote_) return absl::OkStatus();
  const absl::Status tidied = RemoveUnfinishedOf(remote_->mirror().folder());
  if (!tidied.ok()) WEFT_LOG_WARN(tidied.message());
  return absl::OkStatus();
}

void SharedCheckpoints::Resumed(const LatestCheckpoint& own, const LatestCheckpoint& remote) {
  if (remote_) remote_->Resumed(remote);
  pruning_->retention.Resumed(own);
}

absl::Status SharedCheckpoints::Write(int64_t step, const std::vector<BufferPart>& parts,
                                      const CheckpointState& state, Group& group,
                                      bool cores_are_idle, absl::Status& failure) {
  CheckpointWriter writer(folder_, step, group.size());
  SaveTimes& times = *pruning_->times;
  writer.set_times(&times);
  writer.set_checksums_beside(cores_are_idle);
  writer.set_gives_up([&group] { return group.has_failed(); });
  times.CountSave();
  std::optional<SaveTimes::Scope> scope;
  WEFT_RETURN_IF_ERROR(group.RunTogether(
      [&] {
        FinishPruning();  // so that the disk holds one checkpoint more than are kept, and not two
        absl::Status wrote = writer.WriteShard(group.rank(), parts);
        scope.emplace(&times, SavePhase::kMeet);
        return wrote;
      },
      failure));
  scope.emplace(&times, SavePhase::kCommit);
  return CommitByFirst(
      writer, step, [&] { return writer.Commit(state).status(); }, group, failure);
}

absl::Status SharedCheckpoints::Copy(
    const Manifest& manifest,
    const std::function<absl::Status(const std::string& folder)>& write_shard, Group& group,
    absl::Status& failure) {
  CheckpointWriter writer(folder_, manifest.step, group.size());
  WEFT_RETURN_IF_ERROR(group.RunTogether([&] { return write_shard(writer.temporary()); }, failure));
  return CommitByFirst(
      writer, manifest.step, [&] { return writer.CommitCopy(manifest).status(); }, group, failure);
}

// In the run's folder, by rank 0, where `failure` is OK: all have written.
absl::Status SharedCheckpoints::CommitByFirst(CheckpointWriter& writer, int64_t step,
                                              const std::function<absl::Status()>& commit,
                                              Group& group, absl::Status& failure) {
  if (!failure.ok()) {
    if (group.rank() == 0) writer.Abandon();
    return absl::OkStatus();
  }
  return group.RunOnFirst(
      [&] {
        const absl::Status committed = commit();
        if (!committed.ok()) {
          writer.Abandon();
          return committed;
        }
        FinishPruning();
        pruning_->retention.Committed(step);
        if (remote_) remote_->Begin(step);
        BeginPruning();
        return committed;
      },
      failure);
}

// Nobody has to wait for that: to free the pages of a checkpoint takes as long as to write some.
void SharedCheckpoints::BeginPruning() {
  pruning_->gives_up_verifying.store(false);
  pruned_ = StartUnboundDetached([pruning = pruning_] {
    const SaveTimes::Scope scope(pruning->times.get(), SavePhase::kRemove);
    const absl::Status pruned =
        Guarded([&] { return pruning->retention.Prune(pruning->gives_up_verifying).status(); });
    if (!pruned.ok()) WEFT_LOG_WARN("old checkpoints stay: ", pruned.ToString());
  });
}

// All ranks wait for rank 0 meanwhile. What is being deleted goes; a checkpoint that is being
// verified, which takes as long as to read the state of all ranks, is left for the next time.
void SharedCheckpoints::FinishPruning() {
  pruning_->gives_up_verifying.store(true);
  if (pruned_.valid()) pruned_.get();
}

// Whether FinishPruning takes no longer than that.
bool SharedCheckpoints::HasPruned(absl::Duration patience) {
  pruning_->gives_up_verifying.store(true);
  return !pruned_.valid() ||
         pruned_.wait_for(absl::ToChronoNanoseconds(std::max(absl::ZeroDuration(), patience))) ==
             std::future_status::ready;
}

absl::Status SharedCheckpoints::FinishRemote() {
  const absl::Time until = SystemClock().Now() + remote_timeout_;
  pruning_->gives_up_verifying.store(true);
  const absl::Status status = remote_ ? remote_->Finish(remote_timeout_) : absl::OkStatus();
  if (!HasPruned(until - SystemClock().Now())) {
    WEFT_LOG_WARN("old checkpoints stay: to delete them takes longer than the run has waited for");
  }
  return status;
}

}  // namespace weft::train
