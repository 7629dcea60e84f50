// Gather and reduce: each part has an owner, as with direct, which stores the contributions of all
// ranks to a chunk and reduces them by one step, in the order of ranks; then it sends the result to
// each other rank. All receives of a chunk are posted at once, and inside a host a long one is read
// from its sender's memory, where direct takes one contribution after another through the segments
// of links. In exchange the contributions are stored. For medium sizes on one host whose cores read
// each other's memory faster than both ends copy.
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/contributions.h"
#include "collectives/algorithms/owners.h"
#include "collectives/algorithms/parts.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

bool Has(CollectiveKind kind) { return Reduces(kind); }

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kReduceScatter:
      return ReduceScatterByOwners<StoringReducer>(spec);
    case CollectiveKind::kReduce:
      return ReduceByOwner<StoringReducer>(spec);
    default:
      return AllReduceByOwners<StoringReducer>(spec);
  }
}

Cost CostOf(const CollectiveSpec& spec) {
  const double others = spec.size - 1;
  const bool all = spec.kind == CollectiveKind::kAllReduce;
  const uint64_t part = all ? PartOf(spec.count, spec.size, 0).length : spec.count;
  Cost cost{.turns = all ? 2.0 : 1.0};
  cost.reduced = cost.copied = others * static_cast<double>(part);
  cost.elements = (all ? 2 : 1) * cost.reduced;
  cost.messages = (all ? 2 : 1) * others * static_cast<double>(ChunkCount(part, spec.chunk));
  cost.rewritten = all ? cost.reduced : 0;
  cost.staged = all ? 0.5 : 0;  // results
  if (spec.kind == CollectiveKind::kReduce) cost.balance = 1.0 / spec.size;
  return SpreadOverHosts(cost, spec);
}

// Where 16-bit floats are rounded once, direct does the same in another order; and between hosts no
// rank reads another's memory.
bool Fits(const CollectiveSpec& spec, size_t /*element*/) {
  const bool one_host = spec.place == nullptr || spec.place->hosts.size() == 1;
  return one_host && !(spec.rounds_once && spec.size > 2);
}

}  // namespace

const Algorithm kGatherReduce{"gather_reduce", &Has, &Build, &CostOf, &Fits};

}  // namespace weft::collectives
