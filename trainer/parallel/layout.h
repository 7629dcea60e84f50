// How parameters lie in flat buckets, and buckets over the ranks.
//
// Buckets are filled in the reverse order of use, which is about the order in which a backward pass
// completes gradients; the order of indices is thus that of the reduce-scatters, and backwards that
// of the all-gathers. Each parameter begins at a multiple of kAlignment elements. Rank r owns
// elements [r * shard, (r + 1) * shard) of a bucket, shard the same for all ranks: what is past
// `elements` is padding. Checkpoints know parameters only, so they fit every layout.
#ifndef WEFT_TRAINER_PARALLEL_LAYOUT_H_
#define WEFT_TRAINER_PARALLEL_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/units.h"
#include "trainer/model/parameters.h"

namespace weft::train {

inline constexpr int64_t kAlignment = 32;  // elements: 64 bytes of bf16, 128 of fp32

struct BucketEntry {
  int parameter = 0;  // index into GptParameters()
  int64_t offset = 0;
  int64_t elements = 0;
};

struct BucketLayout {
  SharedBy shared = SharedBy::kNobody;
  int chunk = 0;
  std::vector<BucketEntry> entries;
  int64_t elements = 0;  // with the gaps between parameters
  int64_t shard = 0;     // elements of each rank
};

// A stretch of one parameter that lies in a rank's shard.
struct ShardSlice {
  int parameter = 0;
  int64_t begin = 0;  // within the parameter
  int64_t at = 0;     // within the shard
  int64_t elements = 0;
};

// A bucket is closed once it holds `bucket_bytes` of elements of `element_size` bytes. `by_unit`:
// and at the end of each unit. A table of tokens that is cut over a tensor axis is a bucket of its
// own: the axis's ranks may hold more and fewer rows of it, and their other buckets are alike,
// since an optimizer brings the parts of matrices together bucket by bucket. `tables_alone`: so is
// every table of tokens, whose gradients come when those of its neighbours do not.
std::vector<BucketLayout> LayOut(absl::Span<const ParameterSpec> parameters, Bytes bucket_bytes,
                                 int64_t element_size, int ranks, bool by_unit,
                                 bool tables_alone = false);
std::vector<ShardSlice> SlicesOf(const BucketLayout& bucket, int rank);
// The same, neighbours without a gap as one (of the first one's parameter).
std::vector<ShardSlice> RunsOfShard(const BucketLayout& bucket, int rank);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_LAYOUT_H_
