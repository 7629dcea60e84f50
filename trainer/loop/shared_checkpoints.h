// Checkpoints of a run in the folder that all ranks share: each rank writes its shard there, and
// rank 0 commits when all have, hands the checkpoint on to the remote folder, and deletes old ones.
#ifndef WEFT_TRAINER_LOOP_SHARED_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_SHARED_CHECKPOINTS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/save_times.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/loop/remote_checkpoints.h"

namespace weft::train {

// Used by one thread at a time.
class SharedCheckpoints {
 public:
  // Rank 0 alone has a remote folder.
  SharedCheckpoints(std::string folder, const TrainConfig& config, bool is_first,
                    std::shared_ptr<SaveTimes> times, absl::Duration end_patience);
  // Waits until old checkpoints are deleted, for `end_patience` at most: a file system that does
  // not answer keeps no process from its end. What is being verified is given up.
  ~SharedCheckpoints() { HasPruned(end_patience_); }

  // Rank 0: AlreadyExists where this folder or the remote one has a checkpoint, whole or not. What
  // was never finished is removed from a folder that has none.
  absl::Status ExpectNone() const;
  // Rank 0: removes what was never finished from this folder and the remote one; of the latter an
  // error is a warning.
  absl::Status RemoveUnfinished() const;
  // Rank 0: the checkpoints of this folder and of the remote one from which a run goes on stay.
  void Resumed(const LatestCheckpoint& own, const LatestCheckpoint& remote);

  // All ranks of `group` together: writes a checkpoint, and begins to delete old ones in the
  // background. Returns an error when the group fails, which ends this rank's writing at its next
  // megabyte; `failure`, the same on all ranks, is why there is no new checkpoint: then nothing of
  // it is left and older ones are whole.
  // `cores_are_idle`: whether a second thread may compute checksums.
  absl::Status Write(int64_t step, const std::vector<BufferPart>& parts,
                     const CheckpointState& state, Group& group, bool cores_are_idle,
                     absl::Status& failure);
  // The same of a checkpoint that each rank has a shard of elsewhere: `write_shard` writes that to
  // a folder, which it makes.
  absl::Status Copy(const Manifest& manifest,
                    const std::function<absl::Status(const std::string& folder)>& write_shard,
                    Group& group, absl::Status& failure);

  // Waits until the remote folder has the last checkpoint (RemoteCheckpoints::Finish), and until
  // old checkpoints are deleted; checkpoint.remote_timeout in all. Why the remote folder has not
  // the last one; OK without such a folder. Old checkpoints that are still there are a warning.
  absl::Status FinishRemote();

  const std::string& folder() const { return folder_; }
  const RemoteCheckpoints* remote() const { return remote_ ? &*remote_ : nullptr; }

 private:
  absl::Status CommitByFirst(CheckpointWriter& writer, int64_t step,
                             const std::function<absl::Status()>& commit, Group& group,
                             absl::Status& failure);
  void BeginPruning();
  void FinishPruning();
  bool HasPruned(absl::Duration patience);

  // With the thread that deletes old checkpoints, which may outlive this object.
  struct Pruning {
    Pruning(const std::string& folder, int keep, std::shared_ptr<SaveTimes> save_times)
        : retention(folder, keep), times(std::move(save_times)) {}
    Retention retention;  // used by rank 0 while that thread does not
    std::atomic<bool> gives_up_verifying{false};
    const std::shared_ptr<SaveTimes> times;
  };
  const std::string folder_;
  const absl::Duration end_patience_;
  const absl::Duration remote_timeout_;
  const std::shared_ptr<Pruning> pruning_;
  std::future<void> pruned_;                 // the end of what that thread does
  std::optional<RemoteCheckpoints> remote_;  // rank 0, where there is a remote folder
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SHARED_CHECKPOINTS_H_
