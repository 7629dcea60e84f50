// The checkpoint from which a run goes on: the newest that is whole in any tier on disks, which are
// the local ones, the run's folder and the remote one.
#ifndef WEFT_TRAINER_LOOP_CHECKPOINT_SEARCH_H_
#define WEFT_TRAINER_LOOP_CHECKPOINT_SEARCH_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/local_tier.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/groups/group.h"
#include "trainer/loop/local_checkpoints.h"

namespace weft::train {

// What a search has found.
struct NewestCheckpoint {
  std::string path;       // on this host; empty: there is none
  LocalCheckpoint local;  // what the hosts have of it, on their own disks; step -1: it is not there
  // Rank 0 only: of each folder, and of all tiers.
  LatestCheckpoint own, remote, best;
};

// Used by one thread. All ranks call its functions together and get the same outcome.
class CheckpointSearch {
 public:
  // `remote_folder`: empty where there is none. `local`: null where there are no local disks. It
  // and `group` outlive this object.
  CheckpointSearch(std::string folder, std::string remote_folder, LocalCheckpoints* local,
                   Group& group);

  // Where several tiers have a checkpoint of the same step, that of the faster tier. A damaged
  // checkpoint is passed over: see NewestCheckpoint::best. Nothing when there is none at all, whole
  // or not.
  // FailedPrecondition, with every path and reason, when none is whole, or when one that is newer
  // than the last whole one cannot be read now.
  absl::StatusOr<NewestCheckpoint> Find();
  // Leaves out of the next searches what proved to be damaged while it was read.
  void PassOver(const NewestCheckpoint& newest, const absl::Status& damage);

 private:
  absl::Status FindOnFirst(NewestCheckpoint& newest) const;
  absl::StatusOr<LatestCheckpoint> FindRemote(bool has_own) const;

  const std::string folder_, remote_folder_;
  LocalCheckpoints* const local_;
  Group& group_;
  std::map<std::string, absl::Status> damaged_;  // by path, but for those of local disks
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_CHECKPOINT_SEARCH_H_
