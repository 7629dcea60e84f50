// Multicast: every rank has what it sends ready at once, and everybody takes what it needs of it,
// in one turn: oneshot's reductions, direct's exchanges, whole. Ranks that share memory write each
// stretch once, into a ring that all of them map (multicast.h), and reduce and copy from there.
#include <algorithm>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/group_place.h"
#include "net/shm/multicast_ring.h"

namespace weft::collectives {
namespace {

// More ranks than these take several turns: each looks at the rings of all others.
constexpr int kRanksMax = 8;

const Algorithm& BaseOf(CollectiveKind kind) { return Reduces(kind) ? kOneShot : kDirect; }

CollectiveSpec Whole(CollectiveSpec spec) {
  spec.chunk = std::max<uint64_t>(
      {spec.chunk, InputLength(spec), OutputLength(spec), LongestOf(GatheredParts(spec))});
  return spec;
}

// In an all-to-all with counts a rank does not know the counts of the others, and so not where its
// part lies among theirs.
bool Has(CollectiveKind kind) { return kind != CollectiveKind::kAllToAllV; }

RankSchedule Build(const CollectiveSpec& spec) { return BaseOf(spec.kind).build(Whole(spec)); }

Cost CostOf(const CollectiveSpec& spec) {
  Cost cost = BaseOf(spec.kind).cost(Whole(spec));
  cost.writes_once = spec.multicast_bytes > 0;
  if (!cost.writes_once) return cost;
  if (Reduces(spec.kind)) cost.copied = 0;  // reduced from where it was written
  cost.rewritten = 0;                       // others have read the ring, not what is written here
  return cost;
}

// Bytes of the rank that has most for the others.
uint64_t PayloadBytes(const CollectiveSpec& spec, size_t element) {
  constexpr uint64_t kAlignment = net::shm::MulticastRing::kAlignment;
  const bool differ = spec.kind == CollectiveKind::kReduceScatter ||
                      spec.kind == CollectiveKind::kAllToAll ||
                      spec.kind == CollectiveKind::kScatter;  // between those who take them
  const uint64_t pieces = differ ? static_cast<uint64_t>(spec.size) - 1 : 1;
  const uint64_t count =
      spec.kind == CollectiveKind::kAllGatherV ? LongestOf(GatheredParts(spec)) : spec.count;
  // No product of counts wraps where one part alone is too long.
  if (count > spec.multicast_bytes) return count;
  return pieces * ((count * element + kAlignment - 1) / kAlignment * kAlignment);
}

bool Fits(const CollectiveSpec& spec, size_t element) {
  return spec.multicast_bytes > 0 && spec.place == nullptr && spec.size > 1 &&
         spec.size <= kRanksMax && PayloadBytes(spec, element) <= spec.multicast_bytes;
}

}  // namespace

const Algorithm kMulticast{"multicast", &Has, &Build, &CostOf, &Fits};

}  // namespace weft::collectives
