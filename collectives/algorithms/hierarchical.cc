// Two levels: through memory inside a host, and between hosts by rails side by side. Rail l is the
// l-th rank of every host; there are as many rails as the smallest host has ranks. Every byte
// leaves a host as seldom as it can, and all ranks of a host share in sending it. (The scheme of
// hierarchical collectives in MPI libraries since Karonis et al., "Exploiting hierarchy in parallel
// computer networks to optimize collective operation performance", 2000; rails as in MegaScale.)
// Composed of the algorithms for one level: direct inside a host; direct, ring or chain outside.
// On one host, or with one rank a host, it is the one level that there is.
#include "collectives/algorithms/levels.h"

namespace weft::collectives {
namespace {

bool Has(CollectiveKind kind) {
  return kind != CollectiveKind::kGather && kind != CollectiveKind::kScatter &&
         kind != CollectiveKind::kAllToAllV;
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1 && Reduces(spec.kind)) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return LevelsAllReduce(spec, false);
    case CollectiveKind::kReduceScatter:
      return LevelsReduceScatter(spec, false);
    case CollectiveKind::kBroadcast:
      return LevelsBroadcast(spec, false);
    case CollectiveKind::kReduce:
      return LevelsReduce(spec, false);
    case CollectiveKind::kAllToAll:
      return LevelsAllToAll(spec);
    case CollectiveKind::kBarrier:
      return LevelsBarrier(spec);
    default:
      return LevelsAllGather(spec, false);
  }
}

// On one host its stages are those of direct.
bool Fits(const CollectiveSpec& spec, size_t /*element*/) { return spec.place != nullptr; }

}  // namespace

const Algorithm kHierarchical{"hierarchical", &Has, &Build, &LevelsCost, &Fits};

}  // namespace weft::collectives
