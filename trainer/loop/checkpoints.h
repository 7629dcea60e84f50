// A run's checkpoints: the sharded state to files and back (trainer/checkpoint has the format).
//
// Buffers are named "parameters.NAME" and, for each state that the optimizer has of a parameter,
// "PREFIX.STATE.NAME" ("adam.mean.NAME"), all fp32: no trace of buckets or ranks, so that any
// layout reads them. All ranks call these functions together and get the same outcome.
#ifndef WEFT_TRAINER_LOOP_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_CHECKPOINTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/local_checkpoints.h"
#include "trainer/loop/shared_read.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

struct RunPosition {
  int64_t step = 0;  // steps done
  int64_t samples = 0;
  std::string loss_scale;  // LossScale::ToText; empty: of a checkpoint that has none
  // GemmLibraries::ToText; empty: of a checkpoint that has none
  std::string gemm, attention;
};

// The memory of all that a step changes on this rank, where it is, as bytes: master values and the
// optimizer's state.
std::vector<at::Tensor> StateOf(const ParameterSets& parameters);
at::Device DeviceOf(const ParameterSets& parameters);  // where that is

// A background save that has ended.
struct SavedInBackground {
  int64_t step = -1;     // -1: none has ended
  absl::Status failure;  // as of Save
};

class RunCheckpoints {
 public:
  // `config` and `groups` outlive this object; used by one thread. What it does in the
  // background uses groups.checkpoints, which nobody else may use.
  // `before_copy` (may be null) is called there before each copy: for tests.
  RunCheckpoints(std::string folder, const TrainConfig& config, ParallelGroups& groups,
                 std::function<void()> before_copy = nullptr);
  // Waits for what is under way in the background.
  ~RunCheckpoints() { gives_up_verifying_.store(true); }

  // AlreadyExists when there is any checkpoint, whole or not.
  absl::Status ExpectNone();

  // Fills the owned slices from the last checkpoint of all tiers but memory: the local disks, the
  // run's folder, the remote one; nothing when there is none at all, whole or not. A damaged one is
  // passed over with a warning.
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

  // Writes a checkpoint, and begins to delete old ones in the background. Returns an error when the
  // group fails; `failure` is why there is no new checkpoint: then nothing of it is left and older
  // ones are whole.
  absl::Status Save(const RunPosition& position, const ParameterSets& parameters,
                    absl::Status& failure);

  // Begins to copy the state into memory of its own, and then to write it as Save does, both in the
  // background. `began` is false, on all ranks, where the one before is not yet written. Until
  // FinishCopy, nobody may change the state. The memory is allocated once. `saved` is the one
  // before.
  absl::Status Begin(const RunPosition& position, const ParameterSets& parameters, bool& began,
                     SavedInBackground& saved);
  // Waits until the state is copied.
  void FinishCopy();
  // Waits until what Begin began is written, `saved`, and copied to the run's folder.
  absl::Status Finish(SavedInBackground& saved);
  // The tier on local disks; nullptr: none. Copies on to the run's folder, after Finish.
  const LocalCheckpoints* local() const { return local_ ? &*local_ : nullptr; }
  int64_t local_copied() const { return local_copied_; }
  int64_t local_left_out() const { return local_left_out_; }
  size_t pool_bytes() const { return pool_.size(); }

  // Waits until old checkpoints are deleted, and for the copy to the remote folder, and copies the
  // last checkpoint if that was left out or failed; checkpoint.remote_timeout in all. Why the last
  // one is not there; rank 0 only.
  absl::Status FinishMirror();
  const CheckpointMirror* mirror() const { return mirror_ ? &*mirror_ : nullptr; }

  // Times of this rank's saves into the run's folder or to the local disks, for after
  // FinishMirror().
  const SaveTimes& times() const { return times_; }

 private:
  struct Found {
    LatestCheckpoint own, remote;  // of each folder
    LatestCheckpoint best;         // of both
  };
  // The one to go on from.
  struct Newest {
    std::string path;  // on this host; empty: there is none
    LocalCheckpoint
        local;    // what the hosts have of it, on their own disks; step -1: it is not there
    Found found;  // rank 0 only
  };
  absl::StatusOr<LatestCheckpoint> FindRemote(bool has_own) const;
  absl::StatusOr<Found> Find(int64_t local_step) const;
  absl::StatusOr<Newest> FindNewest();
  void PassOver(const Newest& newest, const absl::Status& damage);
  absl::Status RemoveUnfinished();
  absl::Status TidyAfter(const Found& found);
  absl::StatusOr<RunPosition> LoadHere(const std::string& path, const LocalCheckpoint& local,
                                       ParameterSets& parameters, absl::Status& damage);
  CheckpointState StateAfter(const RunPosition& position, absl::string_view optimizer) const;
  absl::Status Write(const RunPosition& position, absl::string_view optimizer,
                     const std::vector<BufferPart>& parts, Group& group, bool cores_are_idle,
                     absl::Status& failure);
  absl::Status CommitByFirst(CheckpointWriter& writer, int64_t step,
                             const std::function<absl::Status()>& commit, Group& group,
                             absl::Status& failure);
  absl::Status WriteLocal(const RunPosition& position, absl::string_view optimizer,
                          const std::vector<BufferPart>& parts);
  absl::Status CopyToRunFolder(const Manifest& manifest, const absl::StatusOr<MappedFile>& shard);
  absl::Status FinishSaving(SavedInBackground& saved);
  void Mirror(int64_t step);
  void BeginPruning();
  void FinishPruning();

  const std::string folder_;
  const TrainConfig& config_;
  ParallelGroups& groups_;
  Group& group_;
  const std::function<void()> before_copy_;
  SaveTimes times_;
  std::atomic<bool> gives_up_verifying_{false};  // asked of retention_ while it prunes
  Retention retention_;                          // used by rank 0,
  std::future<void> pruning_;                    // while this deletes old checkpoints by it alone
  std::optional<LocalCheckpoints> local_;
  std::optional<CheckpointMirror> mirror_;  // rank 0, where there is a remote folder
  int64_t committed_ = -1;                  // rank 0: the last step that is to be in the mirror
  bool is_mirrored_ = true;
  std::map<std::string, absl::Status> damaged_;  // rank 0: by path, found while they were loaded
  std::string loaded_from_;
  ReadTotals read_;
  std::vector<std::byte> pool_;  // of the state that is written in the background
  std::future<void> copied_;
  int64_t saving_step_ = -1;
  absl::Status saving_failure_;
  // From the local disks to the run's folder; begun by the thread that saves.
  int64_t local_copied_ = 0, local_left_out_ = 0;
  std::future<absl::Status> local_copying_;
  std::future<absl::Status> saving_;  // last: it is waited for before the rest goes
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_CHECKPOINTS_H_
