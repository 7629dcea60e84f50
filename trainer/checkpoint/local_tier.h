// Checkpoints on the hosts' own disks, a faster tier than a folder that all share
// (checkpoint.local_folder): each host has the shards of its ranks, and the manifest of all. One is
// whole where the hosts together have every shard under the same manifest; each rank describes what
// its host has, and all come to the same answer.
#ifndef WEFT_TRAINER_CHECKPOINT_LOCAL_TIER_H_
#define WEFT_TRAINER_CHECKPOINT_LOCAL_TIER_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::train {

struct LocalCheckpoint {
  int64_t step = -1;                       // -1: none is whole
  std::vector<std::vector<bool>> holders;  // [shard][rank]: whose host has it
  size_t manifest_rank = 0;                // the first rank whose host has the manifest
};

// The checkpoints in this host's folder: a line each, the step, a hash of the manifest and the
// numbers of the shards that are there in their size. What cannot be read is not there.
std::string DescribeLocal(const std::string& folder);

// The newest one that is whole, but for those in `damaged`; by the descriptions of all ranks.
LocalCheckpoint NewestLocal(const std::vector<std::string>& descriptions,
                            const std::set<int64_t>& damaged);

// Deletes checkpoints of this host before step `committed`, but for the newest `keep` up to it.
absl::Status PruneLocal(const std::string& folder, int keep, int64_t committed);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_LOCAL_TIER_H_
