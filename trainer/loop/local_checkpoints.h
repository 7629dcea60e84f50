// Checkpoints of a run on the disks of its hosts (checkpoint.local_folder): each rank writes its
// part to its own host, so that the network and what all share have no part in it. Committed by
// consensus: the manifest of all goes to every host when every rank has written and synced.
#ifndef WEFT_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/local_tier.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/groups/parallel_groups.h"

namespace weft::train {

// Used by one thread at a time. All ranks call its functions together, but for PathOf and Tidy.
class LocalCheckpoints {
 public:
  // `folder` on each host, where `keep` checkpoints stay.
  LocalCheckpoints(std::string folder, int keep, const ParallelGroups& groups);

  const std::string& folder() const { return folder_; }
  std::string PathOf(int64_t step) const;
  int64_t written() const { return written_; }  // since the start

  // Why this host's folder is none for a run that begins anew; OK where it has no checkpoint.
  absl::Status ExpectNone() const;
  // Removes what was never finished from this host, at the start of a run.
  absl::Status Tidy() const;
  // The newest that the hosts together have whole, but for those that were found damaged.
  absl::StatusOr<LocalCheckpoint> Find(Group& group) const;
  void FoundDamaged(int64_t step) { damaged_.insert(step); }

  // Writes this rank's shard, and the manifest of all, which it returns. Returns an error when the
  // group fails, which ends this rank's writing at its next megabyte; `failure`: why there is no
  // new checkpoint.
  absl::StatusOr<Manifest> Write(int64_t step, const std::vector<BufferPart>& parts,
                                 const CheckpointState& state, Group& group, absl::Status& failure,
                                 SaveTimes& times);

 private:
  const std::string folder_;
  const int keep_;
  const bool is_first_;  // of this host's ranks
  std::set<int64_t> damaged_;
  int64_t written_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_LOCAL_CHECKPOINTS_H_
