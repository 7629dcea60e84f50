// Pairwise exchange: n-1 exchanges, one after another, each with one rank to send to and one to
// receive from (Thakur, Rabenseifner, Gropp, 2005, section 5). As many bytes as direct, but no rank
// hears from many at once: for large all-to-alls across a network. As many exchanges are under way
// as the spec has channels.
#include <cmath>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/exchange.h"

namespace weft::collectives {
namespace {

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kAllToAllV;
}

RankSchedule Build(const CollectiveSpec& spec) { return ExchangeAll(spec, spec.channels); }

Cost CostOf(const CollectiveSpec& spec) {
  const double others = spec.size - 1, count = static_cast<double>(spec.count);
  return SpreadOverHosts({.turns = std::ceil(others / spec.channels),
                          .messages = others,
                          .elements = others * count,
                          .copied = count},
                         spec);
}

}  // namespace

const Algorithm kPairwise{"pairwise", &Has, &Build, &CostOf};

}  // namespace weft::collectives
