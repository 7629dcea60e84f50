// Which checkpoints of a run there are, and which may go.
#ifndef WEFT_TRAINER_CHECKPOINT_RETENTION_H_
#define WEFT_TRAINER_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/reader.h"

namespace weft {

struct LatestCheckpoint {
  std::string path;  // empty: there is none
  int64_t step = -1;
  // Newer ones that were passed over, each with its reason, newest first; for the log.
  std::vector<std::string> skipped;
};

// The one of the highest step that is whole. With kEverything every byte of it is read. A folder
// that does not exist has none. One rank asks and tells the others, so that all agree.
absl::StatusOr<LatestCheckpoint> FindLatest(const std::string& folder,
                                            Verification verification = Verification::kEverything);

// Deletes all whole checkpoints but the `keep_last` (at least 1) newest, and temporary folders of
// steps up to the newest. Broken ones stay, for a look. Returns the paths that are gone. A crash in
// between leaves no half checkpoint under a valid name.
absl::StatusOr<std::vector<std::string>> Prune(const std::string& folder, int keep_last);

// At the start of a run, while nobody writes: all temporary folders of killed writers.
absl::Status RemoveLeftovers(const std::string& folder);

}  // namespace weft

#endif  // WEFT_TRAINER_CHECKPOINT_RETENTION_H_
