// How the algorithms cut a buffer: into one part a rank, and parts into chunks.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_PARTS_H_
#define WEFT_COLLECTIVES_ALGORITHMS_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/schedule.h"

namespace weft::collectives {

struct Stretch {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Part `i` of `count` elements cut for n ranks. Large parts start at multiples of 64 elements, so
// that no two ranks write to one cache line.
inline Stretch PartOf(uint64_t count, int n, int i) {
  const uint64_t ranks = static_cast<uint64_t>(n);
  uint64_t part = (count + ranks - 1) / ranks;
  if (part >= 1024) part = (part + 63) / 64 * 64;
  const uint64_t begin = std::min(part * static_cast<uint64_t>(i), count);
  return {begin, std::min(part, count - begin)};
}

inline Stretch ChunkOf(Stretch part, uint64_t chunk, uint64_t index) {
  const uint64_t begin = std::min(chunk * index, part.length);
  return {part.offset + begin, std::min(chunk, part.length - begin)};
}

inline uint64_t ChunkCount(uint64_t length, uint64_t chunk) { return (length + chunk - 1) / chunk; }

// Rank `rank + distance` of n, round the circle; `distance` may be negative, down to -2n.
inline int Around(int rank, int distance, int n) { return (rank + distance + 2 * n) % n; }

// Where each rank's part of an all-gather lies in the output, and how long it is; even or not.
inline std::vector<Stretch> GatheredParts(const CollectiveSpec& spec) {
  std::vector<Stretch> parts(static_cast<size_t>(spec.size));
  for (size_t r = 0; r < parts.size(); ++r) {
    parts[r] = spec.kind == CollectiveKind::kAllGatherV
                   ? Stretch{spec.output_offsets[r], spec.output_counts[r]}
                   : Stretch{r * spec.count, spec.count};
  }
  return parts;
}
inline uint64_t LongestOf(const std::vector<Stretch>& parts) {
  uint64_t longest = 0;
  for (const Stretch& part : parts) longest = std::max(longest, part.length);
  return longest;
}
inline uint64_t LengthOf(const std::vector<Stretch>& parts) {
  uint64_t sum = 0;
  for (const Stretch& part : parts) sum += part.length;
  return sum;
}

// The whole of a collective of one rank: its input is its result.
inline RankSchedule CopyAlone(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  if (!spec.in_place) builder.Copy({Buffer::kOutput, 0}, {Buffer::kInput, 0}, spec.count);
  return std::move(builder).Finish();
}

inline Place Input(uint64_t offset) { return {Buffer::kInput, offset}; }
inline Place Output(uint64_t offset) { return {Buffer::kOutput, offset}; }

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_PARTS_H_
