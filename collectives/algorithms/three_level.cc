// Three levels: through memory inside a host, by rails side by side between hosts, and in each rail
// switch by switch, so that every byte crosses the cables between switches as seldom as it can. A
// rail is a collective of two levels (hierarchical.cc) whose hosts are the switches and whose ranks
// are the hosts. Where all hosts share a switch it is hierarchical.
#include <algorithm>
#include <cmath>
#include <memory>

#include "collectives/algorithms/levels.h"
#include "collectives/algorithms/unplanned.h"

namespace weft::collectives {
namespace {

bool Has(CollectiveKind kind) {
  return kind != CollectiveKind::kAllToAll && kind != CollectiveKind::kBarrier &&
         kHierarchical.has(kind);
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1 && Reduces(spec.kind)) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return LevelsAllReduce(spec, true);
    case CollectiveKind::kReduceScatter:
      return LevelsReduceScatter(spec, true);
    case CollectiveKind::kBroadcast:
      return LevelsBroadcast(spec, true);
    case CollectiveKind::kReduce:
      return LevelsReduce(spec, true);
    default:
      return LevelsAllGather(spec, true);
  }
}

// The cost of one piece of a rail.
Cost RailCost(const GroupPlace& place, CollectiveKind kind, double count, uint64_t chunk) {
  CollectiveSpec rail{.kind = kind,
                      .size = static_cast<int>(place.hosts.size()),
                      .count = static_cast<uint64_t>(count),
                      .chunk = chunk};
  rail.place = std::make_shared<const GroupPlace>(place.OfSwitches());
  return kHierarchical.cost(rail);
}

// A rail's two levels both lie between hosts: under a switch, too, a host takes one after another.
double InOrder(const Cost& rail, const GroupPlace& place) {
  return rail.in_order + std::max(place.hosts_max - 2, 0);
}

// Rails of a rail, between the switches: as many as the switch with the fewest has hosts.
double RailsOf(const GroupPlace& place) {
  size_t fewest = place.hosts.size();
  for (const auto& hosts : place.switches) fewest = std::min(fewest, hosts.size());
  return static_cast<double>(fewest);
}

// All-reduce, broadcast and reduce: each rail carries its part of every round.
Cost CostOfRounds(const CollectiveSpec& spec, const GroupPlace& place) {
  const double m = place.ranks_max, rails = place.ranks_min, inside = m > 1 ? 1 : 0;
  const double count = static_cast<double>(spec.count), part = count / rails;
  const double piece = std::min(static_cast<double>(spec.chunk), part);
  const double rounds = piece > 0 ? std::ceil(part / piece) : 0;
  const Cost rail = RailCost(place, spec.kind, std::ceil(piece), spec.chunk);
  const double pieces = piece > 0 ? part / std::ceil(piece) : 0;
  Cost cost{.lanes = rails};
  cost.turns_across = rail.turns;
  cost.messages = rounds * rail.messages;
  cost.elements = pieces * rail.elements;
  cost.reduced = pieces * rail.reduced;
  cost.elements_across = rails * pieces * rail.elements;
  cost.elements_beyond = rails * pieces * rail.elements_across * UnplannedLoad(&place);
  if (spec.kind == CollectiveKind::kBroadcast) {
    cost.turns = 2 * inside + rail.turns;
    cost.messages += (m - 1) * std::ceil(count / static_cast<double>(spec.chunk));
    cost.elements += (m - 1) * count;
    cost.copied = count;
  } else {
    cost.turns = 2 * inside + rail.turns;
    cost.messages += rounds * (m + rails - 2);
    cost.elements += part * (m + rails - 2);
    cost.reduced += part * (m - 1);
  }
  // The two levels of a rail both lie between hosts, and so does all that fills it.
  cost.fill_inside = 2 * inside * piece;
  cost.fill = rail.fill + cost.fill_inside;
  if (Reduces(spec.kind)) {
    cost.in_order = InOrder(rail, place);
    // A stage of all rounds is posted before the next stage of any: while the first round goes up,
    // and on between the switches, the others go up. What is behind the first round when that has
    // ended is their last stage (and of a reduction, the one between the switches, at the root).
    const double up = (place.hosts_max - 1) * piece / RailsOf(place);
    const double between = spec.kind == CollectiveKind::kAllReduce ? rail.elements - 2 * up : 0;
    cost.ahead = std::max(rounds - 1, 0.0) * (up + between);
  }
  if (HasRoot(spec.kind) && cost.elements > 0) {
    const double hosts = static_cast<double>(place.hosts.size());
    cost.balance = std::min(1.0, (hosts * m - 1) * count / (spec.size * cost.elements));
  }
  return cost;
}

// All-gather and reduce-scatter: a broadcast or a reduction of each part along its rail.
Cost CostOfParts(const CollectiveSpec& spec, const GroupPlace& place) {
  const double m = place.ranks_max, rails = place.ranks_min, n = spec.size;
  const double switches = static_cast<double>(place.switches.size()), h = place.hosts_max;
  const bool reduces = spec.kind == CollectiveKind::kReduceScatter;
  const double length = spec.kind == CollectiveKind::kAllGatherV
                            ? static_cast<double>(LongestOf(GatheredParts(spec)))
                            : static_cast<double>(spec.count);
  const double stood_for = std::ceil(n / rails);  // parts that a rank passes on
  const double foreign = stood_for * (switches - 1) / switches;
  double across = (h - 1) * length + foreign * h * length / RailsOf(place);
  double messages = h - 1 + foreign * h + stood_for * (m - 1);
  // An owner of what is gathered sends all of it to each host under its switch. What is reduced
  // goes by pieces there too: each host reduces one, for which the owner contributes, and sends the
  // sum to the owner.
  if (reduces) {
    across += (h - 1) * length / RailsOf(place);
    messages += (h - 1) * h;
  }
  const double chunks = std::ceil(length / static_cast<double>(spec.chunk));
  const Cost rail = RailCost(place, reduces ? CollectiveKind::kReduce : CollectiveKind::kBroadcast,
                             length, spec.chunk);
  Cost cost{.lanes = rails};
  cost.turns_across = rail.turns;
  cost.turns = (m > 1 ? 1 : 0) + rail.turns;
  cost.messages = messages * chunks;
  cost.elements = across + stood_for * (m - 1) * length;
  (reduces ? cost.reduced : cost.copied) = reduces ? cost.elements : length;
  cost.elements_across = rails * across;
  cost.elements_beyond = n * length * (switches - 1) / switches * UnplannedLoad(&place);
  // From the first moment on each rank has bytes of its own to send, and those that it passes on
  // come while it sends them, but for the last chunk: hosts under a switch wait for the chunks of
  // their neighbours, and then for the pieces that come by the cables, which the pieces of all
  // these hosts share. On simulated fabrics that takes about as long as this. In memory the last
  // chunk follows once more.
  const double chunk = std::min(static_cast<double>(spec.chunk), length);
  cost.fill_inside = m > 1 ? chunk : 0;
  cost.fill = cost.fill_inside;
  if (h > 1) {
    const double cables = place.switch_rate > 0 ? rails * place.nic_rate / place.switch_rate : 0;
    cost.fill += chunk * std::max(1 / (h - 1), cables * h / RailsOf(place));
  }
  if (reduces) cost.in_order = InOrder(rail, place);
  return cost;
}

Cost CostOf(const CollectiveSpec& spec) {
  const GroupPlace place = PlaceOf(spec);
  if (place.switches.size() < 2) return kHierarchical.cost(spec);
  const bool in_rounds = spec.kind == CollectiveKind::kAllReduce ||
                         spec.kind == CollectiveKind::kBroadcast ||
                         spec.kind == CollectiveKind::kReduce;
  Cost cost = in_rounds ? CostOfRounds(spec, place) : CostOfParts(spec, place);
  cost.staged = LevelsStaged(spec, place);
  cost.posts = LevelsPosts(spec, place);
  return cost;
}

bool Fits(const CollectiveSpec& spec, size_t /*element*/) {
  return spec.place != nullptr && spec.place->switches.size() >= 2;
}

}  // namespace

const Algorithm kThreeLevel{"three_level", &Has, &Build, &CostOf, &Fits};

}  // namespace weft::collectives
