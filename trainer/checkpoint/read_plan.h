// Which rank reads which bytes of a checkpoint when many ranks load it: each byte is read from
// storage once, by a rank that needs it, and passed on to the others (the redundant reads of
// ByteCheckpoint, NSDI'25, section 4). Any layout reads what any other has written. A pure
// function of what every rank knows, so that all ranks make the same plan.
//
// The unit is the tensor that a shard has of a buffer, since it has a checksum of its own
// (BufferLayout::checksums): one rank reads all of it, in order.
#ifndef WEFT_TRAINER_CHECKPOINT_READ_PLAN_H_
#define WEFT_TRAINER_CHECKPOINT_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/checkpoint/manifest.h"

namespace weft::train {

// Elements of a buffer that a rank needs: the runs of `range`, one behind the other.
struct ReadNeed {
  size_t buffer = 0;  // in Manifest::buffers
  ElementRange range;
};

// Consecutive elements of a chunk, and of the need that they are for.
struct ReadPiece {
  size_t rank = 0;   // that needs them
  size_t need = 0;   // number of its need
  int64_t to = 0;    // first element within the need
  int64_t from = 0;  // first element within the tensor of the shard
  int64_t elements = 0;
};

// Elements [begin, end) of the tensor that a shard has of a buffer.
struct ReadChunk {
  size_t reader = 0;  // rank
  int shard = 0;
  size_t buffer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t tensor_elements = 0;    // the tensor's last chunk ends there
  std::vector<ReadPiece> pieces;  // by rank
};

struct ReadPlan {
  // What the ranks read at the same time, each at most `round_bytes`, by reader. The chunks of a
  // tensor are in order.
  std::vector<std::vector<ReadChunk>> rounds;
  int64_t read_bytes = 0;    // from storage: of all tensors that anybody needs, once each
  int64_t needed_bytes = 0;  // over all ranks
  int64_t passed_bytes = 0;  // of these, from the rank that reads them to another
};

// `needs` of each rank, within the manifest's buffers. Readers are chosen among the ranks that need
// most of a tensor, so that each reads about as much; a chunk is at most `round_bytes`. Where
// `holders` ([shard][rank]) are given, only they can read a shard; each has one at least.
ReadPlan PlanRead(const Manifest& manifest, const std::vector<std::vector<ReadNeed>>& needs,
                  int64_t round_bytes, const std::vector<std::vector<bool>>& holders);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_READ_PLAN_H_
