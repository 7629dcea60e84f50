#include "trainer/loop/checkpoint_search.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/reader.h"

namespace weft::train {
namespace {

void AppendReason(const PassedOver& entry, std::string& text) {
  absl::StrAppend(&text, "\n  step ", entry.step, ": ", entry.reason.message());
}

// Whether a run may go on from `latest`; see CheckpointSearch::Find.
absl::Status CheckLatest(const std::string& folder, const LatestCheckpoint& latest) {
  std::string unreadable;
  std::string all;
  for (const PassedOver& entry : latest.passed_over) {
    AppendReason(entry, all);
    if (!IsDamage(entry.reason)) AppendReason(entry, unreadable);
  }
  if (latest.path.empty() && !all.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot resume: no checkpoint in ", folder, " is whole and readable; nothing was changed",
        all, "\nMake one of them readable, or begin anew in another --run-dir"));
  }
  if (unreadable.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot resume: checkpoints newer than ", latest.path,
      " cannot be read, though they may be whole; nothing was changed", unreadable,
      "\nMake them readable, or move them out of ", folder, " to go on from step ", latest.step));
}

}  // namespace

CheckpointSearch::CheckpointSearch(std::string folder, std::string remote_folder,
                                   LocalCheckpoints* local, Group& group)
    : folder_(std::move(folder)),
      remote_folder_(std::move(remote_folder)),
      local_(local),
      group_(group) {}

// The last one of the remote folder. Where that cannot be read, none, if the run's own folder has
// one.
absl::StatusOr<LatestCheckpoint> CheckpointSearch::FindRemote(bool has_own) const {
  absl::StatusOr<LatestCheckpoint> remote =
      FindLatest(remote_folder_, Verification::kWhenTouched, damaged_);
  if (remote.ok() || !has_own) return remote;
  WEFT_LOG_WARN("checkpoint.remote_folder: ", remote.status().message(),
                "; the run goes on from its own folder");
  return LatestCheckpoint{};
}

// The last checkpoint of all tiers; an error where it is not one to go on from. Of the same step,
// that of the faster tier.
absl::Status CheckpointSearch::FindOnFirst(NewestCheckpoint& newest) const {
  const int64_t local_step = newest.local.step;
  WEFT_ASSIGN_OR_RETURN(newest.own, FindLatest(folder_, Verification::kWhenTouched, damaged_));
  newest.best = newest.own;
  if (!remote_folder_.empty()) {
    WEFT_ASSIGN_OR_RETURN(newest.remote, FindRemote(std::max(newest.own.step, local_step) >= 0));
    LatestCheckpoint& best = newest.best;
    best.passed_over.insert(best.passed_over.end(), newest.remote.passed_over.begin(),
                            newest.remote.passed_over.end());
    if (newest.remote.step > best.step) {
      best.path = newest.remote.path;
      best.step = newest.remote.step;
    }
  }
  LatestCheckpoint& best = newest.best;
  if (local_ && local_step >= 0 && local_step >= best.step) {
    best.path = local_->PathOf(local_step);
    best.step = local_step;
  }
  // What another tier has whole is not missed.
  best.passed_over.erase(
      std::remove_if(best.passed_over.begin(), best.passed_over.end(),
                     [&](const PassedOver& entry) { return entry.step <= best.step; }),
      best.passed_over.end());
  return CheckLatest(folder_, newest.best);
}

// Rank 0 looks for all: they must agree.
absl::StatusOr<NewestCheckpoint> CheckpointSearch::Find() {
  NewestCheckpoint newest;
  if (local_) {
    WEFT_ASSIGN_OR_RETURN(newest.local, local_->Find(group_));
  }
  constexpr absl::string_view kLocal = "local:", kShared = "shared:";
  std::string text;
  absl::Status status;
  if (group_.rank() == 0) {
    status = FindOnFirst(newest);
    if (status.ok()) {
      const std::string& path = newest.best.path;
      const bool is_local =
          local_ && newest.local.step >= 0 && path == local_->PathOf(newest.local.step);
      text = absl::StrCat(is_local ? kLocal : kShared, path);
    }
  }
  WEFT_RETURN_IF_ERROR(group_.Agree(status));
  WEFT_ASSIGN_OR_RETURN(text, group_.FromFirst(text));
  absl::string_view path = text;
  if (absl::ConsumePrefix(&path, kShared)) {
    newest.local = {};
    newest.path = std::string(path);
  } else {
    newest.path = local_->PathOf(newest.local.step);  // hosts may name their folders otherwise
  }
  return newest;
}

// A damaged one, which the next search leaves out.
void CheckpointSearch::PassOver(const NewestCheckpoint& newest, const absl::Status& damage) {
  if (newest.local.step < 0) {
    damaged_[newest.path] = damage;
    return;
  }
  if (group_.rank() == 0) {
    WEFT_LOG_WARN("passed over step ", newest.local.step,
                  " of the local disks: ", damage.message());
  }
  local_->FoundDamaged(newest.local.step);
}

}  // namespace weft::train
