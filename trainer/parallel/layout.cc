#include "trainer/parallel/layout.h"

#include <algorithm>

namespace weft {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::vector<BucketLayout> LayOut(absl::Span<const ParameterSpec> parameters, Bytes bucket_bytes,
                                 int64_t element_size, int ranks) {
  std::vector<BucketLayout> buckets;
  bool is_open = false;
  for (int i = static_cast<int>(parameters.size()) - 1; i >= 0; --i) {
    if (!is_open) buckets.emplace_back();
    BucketLayout& bucket = buckets.back();
    int64_t elements = parameters[static_cast<size_t>(i)].elements();
    bucket.entries.push_back({i, bucket.elements, elements});
    bucket.elements = RoundUp(bucket.elements + elements, kAlignment);
    is_open = bucket.elements * element_size < bucket_bytes.count();
  }
  for (BucketLayout& bucket : buckets) {
    bucket.shard = RoundUp((bucket.elements + ranks - 1) / ranks, kAlignment);
  }
  return buckets;
}

std::vector<ShardSlice> SlicesOf(const BucketLayout& bucket, int rank) {
  std::vector<ShardSlice> slices;
  int64_t first = rank * bucket.shard;
  for (const BucketEntry& entry : bucket.entries) {
    int64_t begin = std::max(first, entry.offset);
    int64_t end = std::min(first + bucket.shard, entry.offset + entry.elements);
    if (begin >= end) continue;
    slices.push_back({entry.parameter, begin - entry.offset, begin - first, end - begin});
  }
  return slices;
}

}  // namespace weft
