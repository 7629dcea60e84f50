#include "trainer/loop/checkpoints.h"

#include <ATen/Parallel.h>

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

std::optional<LocalCheckpoints> LocalDisksOf(const TrainConfig& config,
                                             const ParallelGroups& groups) {
  if (config.checkpoint_local_folder.empty()) return std::nullopt;
  return std::make_optional<LocalCheckpoints>(config.checkpoint_local_folder,
                                              config.checkpoint_keep, groups);
}

}  // namespace

RunCheckpoints::RunCheckpoints(std::string folder, const TrainConfig& config,
                               ParallelGroups& groups, std::function<void()> before_copy,
                               absl::Duration end_patience)
    : config_(config),
      group_(*groups.world),
      saving_group_(*groups.checkpoints),
      shared_(folder, config, group_.rank() == 0, times_, end_patience),
      local_(LocalDisksOf(config, groups)),
      search_(folder, config.checkpoint_remote_folder, local_ ? &*local_ : nullptr, group_),
      saving_(
          [this](const RunPosition& position, const std::string& optimizer,
                 const std::vector<BufferPart>& parts, absl::Status& failure) {
            return WriteInBackground(position, optimizer, parts, failure);
          },
          std::move(before_copy), *times_) {
  if (local_) local_copies_.emplace(shared_, *groups.checkpoint_copies, end_patience);
}

absl::Status RunCheckpoints::ExpectNone() {
  absl::Status status;
  if (group_.rank() == 0) status = shared_.ExpectNone();
  if (status.ok() && local_) status = local_->ExpectNone();
  WEFT_RETURN_IF_ERROR(group_.Agree(status));
  return group_.Agree(local_ ? local_->Tidy() : absl::OkStatus());
}

// For a run that goes on from `newest`.
absl::Status RunCheckpoints::TidyAfter(const NewestCheckpoint& newest) {
  for (const PassedOver& entry : newest.best.passed_over) {
    WEFT_LOG_WARN("passed over step ", entry.step, ", which stays: ", entry.reason.message());
  }
  WEFT_RETURN_IF_ERROR(shared_.RemoveUnfinished());
  shared_.Resumed(newest.own, newest.remote);
  return absl::OkStatus();
}

// The state is there: no checkpoint is opened, and a folder that cannot be read now keeps nobody
// from going on. Which checkpoints are whole, shared_ learns after the next save.
absl::Status RunCheckpoints::Tidy() {
  absl::Status tidied;
  if (group_.rank() == 0) tidied = shared_.RemoveUnfinished();
  if (local_) tidied.Update(local_->Tidy());
  if (!tidied.ok()) WEFT_LOG_WARN("checkpoints that were never finished stay: ", tidied.message());
  return group_.Agree(absl::OkStatus());
}

// One rank reads the manifest for all.
absl::StatusOr<std::string> RunCheckpoints::FindState(const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(found_, search_.Find());
  std::string state;
  const size_t reader = found_->local.manifest_rank;
  if (!found_->path.empty() && static_cast<size_t>(group_.rank()) == reader) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(found_->path);
    if (manifest.ok() && manifest->states.count(name) > 0) state = manifest->states.at(name);
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group_.Gather(state));
  return all[reader];
}

// What proves to be damaged while it is read is passed over, and the next one is tried.
absl::StatusOr<std::optional<RunPosition>> RunCheckpoints::Load(ParameterSets& parameters) {
  while (true) {
    if (!found_.has_value()) {
      WEFT_ASSIGN_OR_RETURN(found_, search_.Find());
    }
    NewestCheckpoint newest = *std::exchange(found_, std::nullopt);
    std::optional<RunPosition> position;
    if (!newest.path.empty()) {
      absl::Status damage;
      absl::StatusOr<LoadedState> loaded =
          LoadState(newest.path, newest.local, config_, group_, parameters, damage);
      WEFT_RETURN_IF_ERROR(group_.Agree(damage.ok() ? loaded.status() : absl::OkStatus()));
      if (!damage.ok()) {
        search_.PassOver(newest, damage);
        continue;
      }
      position = loaded->position;
      read_ = loaded->read;
      // The name that it has soon, if its replacement had been cut short.
      loaded_from_ = absl::StrCat(ParentFolder(newest.path), "/", CheckpointName(position->step));
    }
    absl::Status tidied;
    if (group_.rank() == 0) {
      // What has not been read may not be whole.
      for (LatestCheckpoint* other : {&newest.own, &newest.remote}) {
        if (other->path != newest.path) other->step = -1;
      }
      tidied = TidyAfter(newest);
    }
    if (tidied.ok() && local_) tidied = local_->Tidy();
    WEFT_RETURN_IF_ERROR(group_.Agree(tidied));
    return position;
  }
}

absl::Status RunCheckpoints::Save(const RunPosition& position, const ParameterSets& parameters,
                                  absl::Status& failure) {
  std::deque<std::vector<float>> values;
  std::vector<BufferPart> parts;
  {
    const SaveTimes::Scope scope(times_.get(), SavePhase::kCopy);
    parts = PartsOf(parameters, values);
  }
  // The run stands still, and with it all compute threads but this one.
  return shared_.Write(position.step, parts,
                       ManifestStateOf(position, config_, parameters.optimizer().name()), group_,
                       /*cores_are_idle=*/at::get_num_threads() > 1, failure);
}

absl::Status RunCheckpoints::Begin(const RunPosition& position, const ParameterSets& parameters,
                                   bool& began, SavedInBackground& saved) {
  return saving_.Begin(position, parameters, group_, began, saved);
}

absl::Status RunCheckpoints::Finish(SavedInBackground& saved) {
  WEFT_RETURN_IF_ERROR(saving_.Finish(saved));
  return local_copies_ ? local_copies_->Finish() : absl::OkStatus();
}

void RunCheckpoints::Settle(const absl::Status& why) {
  // First, as the save may wait for the copy.
  const bool groups_failed = !why.ok() && group_.size() > 1 && !IsAgreed(why);
  if (local_copies_ && groups_failed) local_copies_->GiveUp();
  SavedInBackground saved;
  saving_.Finish(saved).IgnoreError();
  if (local_copies_) local_copies_->Finish().IgnoreError();
}

// To the local disks, and on to the run's folder where the one before is through.
absl::Status RunCheckpoints::WriteInBackground(const RunPosition& position,
                                               const std::string& optimizer,
                                               const std::vector<BufferPart>& parts,
                                               absl::Status& failure) {
  const CheckpointState state = ManifestStateOf(position, config_, optimizer);
  if (!local_) {
    return shared_.Write(position.step, parts, state, saving_group_, /*cores_are_idle=*/false,
                         failure);
  }
  WEFT_ASSIGN_OR_RETURN(Manifest manifest, local_->Write(position.step, parts, state, saving_group_,
                                                         failure, *times_));
  if (!failure.ok()) return absl::OkStatus();
  return local_copies_->Begin(local_->PathOf(position.step), std::move(manifest), saving_group_);
}

}  // namespace weft::train
