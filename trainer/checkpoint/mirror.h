// The slowest tier of checkpoints: whole ones of a run's folder, copied by a thread in the
// background to another folder, as on a file system far away (tiers with a queue each:
// DataStates-LLM, HPDC'24).
//
// One is copied at a time. What comes meanwhile is left out, so that a slow folder holds nobody up
// and the newest that it can take is there. A copy is there as a whole or not at all: shards are
// held against the manifest's checksums on their way and synced, then the folder gets its name.
#ifndef WEFT_TRAINER_CHECKPOINT_MIRROR_H_
#define WEFT_TRAINER_CHECKPOINT_MIRROR_H_

#include <atomic>
#include <cstdint>
#include <future>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/files/file.h"

namespace weft::train {

// One copy, in the calling thread: the checkpoint at `path` into `folder`, under the same name. One
// of the same step there is replaced.
absl::Status CopyCheckpoint(const std::string& path, const std::string& folder);

// A shard to the path `to`, synced; DataLoss where its checksum is wrong. Looks at `gives_up` after
// each megabyte.
absl::Status CopyShard(const MappedFile& from, const ShardInfo& shard, const std::string& to,
                       const std::atomic<bool>& gives_up);

// Used by one thread at a time.
class CheckpointMirror {
 public:
  // `folder` is created when it is missing; `keep` copies stay in it, at least 1.
  CheckpointMirror(const std::string& folder, int keep)
      : folder_(folder), retention_(folder, keep) {}
  // Gives up the copy under way.
  ~CheckpointMirror() { gives_up_.store(true); }

  // The checkpoint in this folder from which a run goes on stays, as Retention says.
  void Resumed(const LatestCheckpoint& latest) { retention_.Resumed(latest); }
  // Begins to copy the checkpoint at `path`, which may be deleted from now on. `began` is false
  // where the copy before is still under way. The error of a copy that has ended since is returned
  // first, and this one then begins all the same.
  absl::Status Begin(const std::string& path, bool& began);
  // Waits for the copy under way, and for old ones to be deleted, and returns the error, once.
  // kDeadlineExceeded: that takes longer than `patience`, and is given up at its next megabyte.
  absl::Status Finish(absl::Duration patience = absl::InfiniteDuration());

  const std::string& folder() const { return folder_; }
  int64_t copied() const { return copied_; }  // since the start; after Begin or Finish
  int64_t left_out() const { return left_out_; }

 private:
  const std::string folder_;
  Retention retention_;
  int64_t copied_ = 0;
  int64_t left_out_ = 0;
  std::atomic<bool> gives_up_{false};
  std::future<absl::Status> copying_;  // last: it is waited for before the rest goes
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_MIRROR_H_
