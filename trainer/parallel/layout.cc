#include "trainer/parallel/layout.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::train {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::vector<BucketLayout> LayOut(absl::Span<const ParameterSpec> parameters, Bytes bucket_bytes,
                                 int64_t element_size, int ranks, bool by_unit, bool tables_alone) {
  std::vector<BucketLayout> buckets;
  // By what a bucket's parameters have in common.
  std::map<std::tuple<SharedBy, int, int>, size_t> open;
  for (int i = static_cast<int>(parameters.size()) - 1; i >= 0; --i) {
    const ParameterSpec& spec = parameters[static_cast<size_t>(i)];
    const bool is_alone = IsTokenTable(spec) && (spec.split_dim == 0 || tables_alone);
    const std::tuple<SharedBy, int, int> key(spec.shared, spec.chunk, by_unit ? spec.unit : 0);
    size_t index = buckets.size();
    if (!is_alone) index = open.try_emplace(key, index).first->second;
    if (index == buckets.size()) buckets.push_back({.shared = spec.shared, .chunk = spec.chunk});
    BucketLayout& bucket = buckets[index];
    bucket.entries.push_back({i, bucket.elements, spec.elements()});
    bucket.elements = RoundUp(bucket.elements + spec.elements(), kAlignment);
    if (!is_alone && bucket.elements * element_size >= bucket_bytes.count()) open.erase(key);
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

std::vector<ShardSlice> RunsOfShard(const BucketLayout& bucket, int rank) {
  std::vector<ShardSlice> runs;
  for (const ShardSlice& slice : SlicesOf(bucket, rank)) {
    if (!runs.empty() && runs.back().at + runs.back().elements == slice.at) {
      runs.back().elements += slice.elements;
    } else {
      runs.push_back(slice);
    }
  }
  return runs;
}

}  // namespace weft::train
