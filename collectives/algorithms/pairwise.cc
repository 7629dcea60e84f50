// Pairwise exchange: n-1 exchanges, one after another, each with one rank to send to and one to
// receive from (Thakur, Rabenseifner, Gropp, 2005, section 5). As many bytes as direct, but no rank
// hears from many at once: for large all-to-alls across a network.
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/exchange.h"

namespace weft::collectives {
namespace {

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kAllToAllV;
}

RankSchedule Build(const CollectiveSpec& spec) { return ExchangeAll(spec, 1); }

Cost CostOf(const CollectiveSpec& spec) {
  const double others = spec.size - 1, count = static_cast<double>(spec.count);
  return SpreadOverHosts(
      {.turns = others, .messages = others, .elements = others * count, .copied = count}, spec);
}

}  // namespace

const Algorithm kPairwise{"pairwise", &Has, &Build, &CostOf};

}  // namespace weft::collectives
