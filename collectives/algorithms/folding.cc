#include "collectives/algorithms/folding.h"

#include <utility>

#include "collectives/algorithms/parts.h"

namespace weft::collectives {

RankSchedule FoldedInSchedule(const CollectiveSpec& spec, uint64_t length) {
  ScheduleBuilder builder;
  const uint32_t sent = builder.Send(spec.rank - 1, Input(0), length);
  builder.Receive(spec.rank - 1, Output(0), spec.count, {spec.in_place ? sent : kNone});
  return std::move(builder).Finish();
}

Cost FoldedBetweenSwitches(Cost cost, const CollectiveSpec& spec, double given, double got,
                           absl::FunctionRef<double(int bit)> part) {
  const Folding folding(spec.size);
  BetweenSwitches between(spec);
  if (!between.any()) return cost;
  for (int rank = 0; rank < spec.size && folding.any(); ++rank) {
    if (!folding.IsFoldedIn(rank)) continue;
    between.Add(rank, rank - 1, given);
    between.Add(rank - 1, rank, got);
  }
  if (folding.any()) between.EndExchange(given + got, cost);
  for (int bit = 1; bit < folding.nodes(); bit *= 2) {
    for (int node = 0; node < folding.nodes(); ++node) {
      between.Add(folding.RankOf(node), folding.RankOf(node ^ bit), part(bit));
    }
    between.EndExchange(part(bit), cost);
  }
  return cost;
}

}  // namespace weft::collectives
