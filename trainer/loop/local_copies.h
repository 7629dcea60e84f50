// Checkpoints on their way from the hosts' own disks to the folder that all ranks share: one at a
// time, on a thread of its own. What comes meanwhile is left out, so that a slow folder holds up
// neither training nor the local disks.
#ifndef WEFT_TRAINER_LOOP_LOCAL_COPIES_H_
#define WEFT_TRAINER_LOOP_LOCAL_COPIES_H_

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/files/file.h"
#include "trainer/groups/group.h"
#include "trainer/loop/shared_checkpoints.h"

namespace weft::train {

// Used by one thread at a time, but for GiveUp.
class LocalCopies {
 public:
  // `group`, for the thread that copies, and `shared`, which nobody else uses while that does,
  // outlive this object, whose end gives the copy up and waits for it.
  LocalCopies(SharedCheckpoints& shared, Group& group, absl::Duration end_patience)
      : shared_(shared), group_(group), end_patience_(end_patience) {}
  ~LocalCopies() { GiveUp(); }

  // All ranks of `group` together: begins to copy the checkpoint at `path`, on this host, which may
  // be deleted from now on; leaves it out, on all ranks, where rank 0's copy before is under way.
  // An error is that of a group, also of the copy before. A copy that fails is a warning.
  absl::Status Begin(const std::string& path, Manifest manifest, Group& group);
  // Waits for the copy under way; an error is that of its group.
  absl::Status Finish();
  // By any thread, when the run has ended: this rank's part of a copy ends at its next megabyte,
  // and those that come later do not begin. Finish then waits for the file system no longer than
  // `end_patience`; what has not answered by then is left to itself, on a thread that uses neither
  // the group nor this object.
  void GiveUp();

  int64_t copied() const { return copied_; }      // after Finish
  int64_t left_out() const { return left_out_; }  // as the one before was under way

 private:
  // This rank's, on the local disk; an error where that cannot be opened.
  using Shard = std::shared_ptr<const absl::StatusOr<MappedFile>>;
  // With the thread that writes a shard, which may outlive this object.
  struct Writing {
    absl::Mutex mutex;
    std::atomic<bool> gives_up{false};  // set under the mutex
    std::optional<absl::Status> ended;  // under the mutex
  };

  absl::Status Copy(const Manifest& manifest, const Shard& shard);
  absl::Status WriteShard(const Shard& shard, const ShardInfo& info, const std::string& folder);

  SharedCheckpoints& shared_;
  Group& group_;
  const absl::Duration end_patience_;
  const std::shared_ptr<Writing> writing_ = std::make_shared<Writing>();
  int64_t copied_ = 0, left_out_ = 0;
  std::future<absl::Status> copying_;  // last: it is waited for before the rest goes
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_LOCAL_COPIES_H_
