// Which checkpoints of a run there are, and which may go.
#ifndef WEFT_TRAINER_CHECKPOINT_RETENTION_H_
#define WEFT_TRAINER_CHECKPOINT_RETENTION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/reader.h"

namespace weft::train {

struct PassedOver {
  int64_t step = -1;
  std::string path;
  absl::Status reason;  // IsDamage(reason), or it could not be read
};

struct LatestCheckpoint {
  std::string path;  // empty: there is none
  int64_t step = -1;
  std::vector<PassedOver> passed_over;  // all newer ones, newest first
};

// The one of the highest step that is whole. With kEverything every byte of it is read. A folder
// that does not exist has none. One rank asks and tells the others, so that all agree. What is
// known to be `damaged`, by path, is passed over.
absl::StatusOr<LatestCheckpoint> FindLatest(
    const std::string& folder, Verification verification = Verification::kEverything,
    const std::map<std::string, absl::Status>& damaged = {});

// Every checkpoint's path, newest first, whole or not: nothing is opened.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder);

// Folders of writers that were killed, or are at work.
absl::StatusOr<std::vector<std::string>> ListUnfinished(const std::string& folder);

// The checkpoint at `path` in `folder`: out of sight in one rename before the first file goes.
absl::Status RemoveCheckpoint(const std::string& folder, const std::string& path, int64_t step);

// At the start of a run, while nobody writes: removes all temporary folders of killed writers, and
// gives a checkpoint its name back whose replacement was cut short.
absl::Status RemoveLeftovers(const std::string& folder);

// Deletes a run's old checkpoints. A checkpoint counts as kept only if it is known to be whole:
// this process resumed from it, committed it, or verified it. Never deleted are the checkpoint
// resumed from, the last one committed, whatever was passed over for the first, and whatever does
// not open. Used by one thread at a time.
class Retention {
 public:
  Retention(std::string folder, int keep);  // at least 1

  // A step of -1: none of this folder.
  void Resumed(const LatestCheckpoint& latest);
  void Committed(int64_t step);

  // Deletes what is older than the newest `keep` known ones; also temporary folders of steps up to
  // the last committed one. Returns the paths that are gone; nothing happens before a first commit.
  // A crash in between leaves no half checkpoint under a valid name.
  //
  // To know more checkpoints it reads one whole, at most; where `gives_up`, it leaves that, and the
  // next call tries again. Until `keep` are known, nothing is deleted: for a while there may be
  // more than `keep`.
  absl::StatusOr<std::vector<std::string>> Prune(const std::atomic<bool>& gives_up);

 private:
  bool Verify(const std::string& path, int64_t step, const std::atomic<bool>& gives_up);

  const std::string folder_;
  const int keep_;
  int64_t resumed_ = -1;
  int64_t committed_ = -1;
  std::set<int64_t> whole_;
  std::set<int64_t> passed_over_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_RETENTION_H_
