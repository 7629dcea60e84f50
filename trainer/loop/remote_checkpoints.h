// Copies of a run's checkpoints in a folder far away (checkpoint.remote_folder): of those that the
// run's folder gets, whichever that one has time to take, and in the end the last.
#ifndef WEFT_TRAINER_LOOP_REMOTE_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_REMOTE_CHECKPOINTS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {

// Of rank 0. Used by one thread at a time.
class RemoteCheckpoints {
 public:
  // Of the checkpoints in `source`; `keep` copies stay in `folder`.
  RemoteCheckpoints(std::string source, const std::string& folder, int keep)
      : source_(std::move(source)), mirror_(folder, keep) {}

  // The checkpoint in the remote folder from which a run goes on stays.
  void Resumed(const LatestCheckpoint& latest) { mirror_.Resumed(latest); }
  // Begins to copy the checkpoint of a step, which may be deleted from now on; leaves it out while
  // the copy before is under way. Where a copy fails, the run goes on, with a warning.
  void Begin(int64_t step);
  // Waits for the copy, and copies the last checkpoint if that was left out or failed; `timeout`
  // in all. Why the last one is not there.
  absl::Status Finish(absl::Duration timeout);

  const CheckpointMirror& mirror() const { return mirror_; }

 private:
  const std::string source_;
  CheckpointMirror mirror_;
  int64_t committed_ = -1;  // the last step that is to be in the mirror
  bool is_mirrored_ = true;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_REMOTE_CHECKPOINTS_H_
