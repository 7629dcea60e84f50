#include "trainer/loop/local_checkpoints.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {
namespace {

bool IsFirstOfHost(const std::vector<int>& hosts, int rank) {
  const int host = hosts[static_cast<size_t>(rank)];
  return std::find(hosts.begin(), hosts.end(), host) - hosts.begin() == rank;
}

}  // namespace

LocalCheckpoints::LocalCheckpoints(std::string folder, int keep, const ParallelGroups& groups)
    : folder_(std::move(folder)),
      keep_(keep),
      is_first_(IsFirstOfHost(groups.hosts, groups.world->rank())) {}

std::string LocalCheckpoints::PathOf(int64_t step) const {
  return absl::StrCat(folder_, "/", CheckpointName(step));
}

absl::Status LocalCheckpoints::ExpectNone() const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder_));
  if (paths.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(folder_, " holds the checkpoint ", paths.front(),
                   " of a run; go on with it by --resume, or name another "
                   "checkpoint.local_folder"));
}

absl::Status LocalCheckpoints::Tidy() const {
  return is_first_ ? RemoveLeftovers(folder_) : absl::OkStatus();
}

absl::StatusOr<LocalCheckpoint> LocalCheckpoints::Find(Group& group) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.Gather(DescribeLocal(folder_)));
  return NewestLocal(all, damaged_);
}

absl::StatusOr<Manifest> LocalCheckpoints::Write(int64_t step, const std::vector<BufferPart>& parts,
                                                 const CheckpointState& state, Group& group,
                                                 absl::Status& failure, SaveTimes& times) {
  CheckpointWriter writer(folder_, step, group.size());
  writer.set_times(&times);
  writer.set_gives_up([&group] { return group.has_failed(); });
  times.CountSave();
  absl::StatusOr<std::string> note;
  std::optional<SaveTimes::Scope> scope;
  WEFT_RETURN_IF_ERROR(group.RunTogether(
      [&] {
        const absl::Status wrote = writer.WriteShard(group.rank(), parts);
        note = wrote.ok() ? writer.Note(group.rank()) : absl::StatusOr<std::string>(wrote);
        scope.emplace(&times, SavePhase::kMeet);
        return note.status();
      },
      failure));
  Manifest manifest;
  scope.emplace(&times, SavePhase::kCommit);
  if (failure.ok()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> notes, group.Gather(*note));
    absl::StatusOr<Manifest> made = writer.MakeManifest(notes, state);
    absl::Status committed = made.status();
    if (made.ok()) {
      manifest = *std::move(made);
      if (is_first_) committed = writer.CommitCopy(manifest).status();
    }
    WEFT_RETURN_IF_ERROR(group.Agree(committed, failure));
  }
  if (failure.ok()) {
    ++written_;
    scope.emplace(&times, SavePhase::kRemove);
    const absl::Status pruned = is_first_ ? PruneLocal(folder_, keep_, step) : absl::OkStatus();
    if (!pruned.ok()) WEFT_LOG_WARN("old checkpoints stay: ", pruned.ToString());
  } else if (is_first_) {
    writer.Abandon();
  }
  return manifest;
}

}  // namespace weft::train
