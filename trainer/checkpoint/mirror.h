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
#include <memory>
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
  CheckpointMirror(const std::string& folder, int keep,
                   absl::Duration end_patience = absl::Seconds(10))
      : end_patience_(end_patience), shared_(std::make_shared<Shared>(folder, keep)) {}
  // Gives up the copy under way, and waits until it has ended, for `end_patience` at most: a file
  // system that does not answer keeps no process from its end.
  ~CheckpointMirror();

  // The checkpoint in this folder from which a run goes on stays, as Retention says.
  void Resumed(const LatestCheckpoint& latest) { shared_->retention.Resumed(latest); }
  // Begins to copy the checkpoint at `path`, which may be deleted from now on. `began` is false
  // where the copy before is still under way. The error of a copy that has ended since is returned
  // first, and this one then begins all the same.
  absl::Status Begin(const std::string& path, bool& began);
  // Waits for the copy under way, and for old ones to be deleted, and returns the error, once.
  // kDeadlineExceeded: that takes longer than `patience`, and is given up at its next megabyte.
  absl::Status Finish(absl::Duration patience = absl::InfiniteDuration());

  const std::string& folder() const { return shared_->folder; }
  int64_t copied() const { return copied_; }  // since the start; after Begin or Finish
  int64_t left_out() const { return left_out_; }

 private:
  struct Shared {
    Shared(const std::string& where, int keep) : folder(where), retention(where, keep) {}
    const std::string folder;
    Retention retention;
    std::atomic<bool> gives_up{false};
  };
  const absl::Duration end_patience_;
  const std::shared_ptr<Shared> shared_;  // with the thread that copies, which may outlive this
  int64_t copied_ = 0;
  int64_t left_out_ = 0;
  std::future<absl::Status> copying_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_MIRROR_H_
