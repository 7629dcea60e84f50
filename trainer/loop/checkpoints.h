// A run's checkpoints in all tiers on disks: which one it goes on from, and where a save goes.
//
//   saved_state.h         what a checkpoint has of a rank's parameters, and back
//   background_save.h     saves under the next steps
//   local_checkpoints.h   the tier on the hosts' own disks, and local_copies.h from there to
//   shared_checkpoints.h  the run's folder, and from there to
//   remote_checkpoints.h  the tier far away
//   checkpoint_search.h   the newest that is whole in any of them
//
// All ranks call these functions together and get the same outcome.
#ifndef WEFT_TRAINER_LOOP_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_CHECKPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/save_times.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/background_save.h"
#include "trainer/loop/checkpoint_search.h"
#include "trainer/loop/local_checkpoints.h"
#include "trainer/loop/local_copies.h"
#include "trainer/loop/saved_state.h"
#include "trainer/loop/shared_checkpoints.h"
#include "trainer/loop/shared_read.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

class RunCheckpoints {
 public:
  // `config` and `groups` outlive this object, whose end waits for what is under way in the
  // background; used by one thread. What it does in the background uses groups.checkpoints and
  // groups.checkpoint_copies, which nobody else may use.
  // `before_copy` (may be null) is called there before each copy: for tests. `end_patience`: how
  // long Settle and the end wait for a file system that does not answer; see local_copies.h and
  // shared_checkpoints.h.
  RunCheckpoints(std::string folder, const TrainConfig& config, ParallelGroups& groups,
                 std::function<void()> before_copy = nullptr,
                 absl::Duration end_patience = absl::Seconds(10));

  // AlreadyExists when there is any checkpoint, whole or not.
  absl::Status ExpectNone();

  // A state of the manifest of the checkpoint that the next Load begins with, by its name
  // (checkpoint/run_states.h), for what is to be known before there are parameters. Empty where
  // there is no checkpoint, its manifest has no such state, or it proves to be damaged: then Load
  // goes on from another one. Other errors as Load's.
  absl::StatusOr<std::string> FindState(const std::string& name);

  // Fills the owned slices from the last checkpoint of all tiers but memory; nothing when there is
  // none at all, whole or not. A damaged one is passed over with a warning.
  // FailedPrecondition, with every path and reason, when none is whole, or when one that is newer
  // than the last whole one cannot be read now: to go on from the older one would give steps away
  // that are perhaps still there. Also when the checkpoint is of a model, data, seed or optimizer
  // that the config does not have.
  absl::StatusOr<std::optional<RunPosition>> Load(ParameterSets& parameters);
  const std::string& loaded_from() const { return loaded_from_; }  // a path; empty: nothing
  const ReadTotals& read() const { return read_; }                 // by Load, the one loaded from

  // For a run that goes on from memory: removes what was never finished. Where that fails, the run
  // goes on, with a warning.
  absl::Status Tidy();

  // Writes a checkpoint to the run's folder, and begins to delete old ones in the background.
  // Returns an error when the group fails; `failure` is why there is no new checkpoint: then
  // nothing of it is left and older ones are whole.
  absl::Status Save(const RunPosition& position, const ParameterSets& parameters,
                    absl::Status& failure);

  // Begins to copy the state into memory of its own, and then to write it, to the local disks where
  // there are any, else as Save does; BackgroundSave::Begin.
  absl::Status Begin(const RunPosition& position, const ParameterSets& parameters, bool& began,
                     SavedInBackground& saved);
  // Waits until the state is copied; why it could not be.
  absl::Status FinishCopy() { return saving_.FinishCopy(); }
  // Waits until what Begin began is written, `saved`, and copied to the run's folder.
  absl::Status Finish(SavedInBackground& saved);
  // At the end, with the run's error or OK: waits until nothing in the background uses the state or
  // a group. Where the groups have failed, which is where not all ranks have that error (IsAgreed),
  // no copy to the run's folder can be committed any more, and the one under way is given up.
  void Settle(const absl::Status& why);
  // The tier on local disks; nullptr: none. Copies on to the run's folder, after Finish.
  const LocalCheckpoints* local() const { return local_ ? &*local_ : nullptr; }
  int64_t local_copied() const { return local_copies_ ? local_copies_->copied() : 0; }
  int64_t local_left_out() const { return local_copies_ ? local_copies_->left_out() : 0; }
  size_t pool_bytes() const { return saving_.pool_bytes(); }

  // Waits for the copy to the remote folder, copies the last checkpoint if that was left out or
  // failed, and waits until old checkpoints are deleted; checkpoint.remote_timeout in all. Why the
  // last one is not there; rank 0 only.
  absl::Status FinishMirror() { return shared_.FinishRemote(); }
  const CheckpointMirror* mirror() const {
    return shared_.remote() != nullptr ? &shared_.remote()->mirror() : nullptr;
  }

  // Times of this rank's saves into the run's folder or to the local disks, for after
  // FinishMirror().
  const SaveTimes& times() const { return *times_; }

 private:
  absl::Status TidyAfter(const NewestCheckpoint& newest);
  absl::Status WriteInBackground(const RunPosition& position, const std::string& optimizer,
                                 const std::vector<BufferPart>& parts, absl::Status& failure);

  const TrainConfig& config_;
  Group& group_;         // of the calling thread
  Group& saving_group_;  // of the one in the background
  const std::shared_ptr<SaveTimes> times_ = std::make_shared<SaveTimes>();
  SharedCheckpoints shared_;
  std::optional<LocalCheckpoints> local_;
  CheckpointSearch search_;
  std::optional<NewestCheckpoint> found_;  // by FindState, for the next Load
  std::string loaded_from_;
  ReadTotals read_;
  // Where there are local disks; begun by the thread in the background.
  std::optional<LocalCopies> local_copies_;
  BackgroundSave saving_;  // last: it is waited for before the rest goes
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_CHECKPOINTS_H_
