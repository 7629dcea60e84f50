// What collectives by two levels cost.
#include <algorithm>
#include <cmath>

#include "collectives/algorithms/levels.h"
#include "collectives/algorithms/paths.h"
#include "collectives/algorithms/unplanned.h"

namespace weft::collectives {
namespace {

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 1; }

// Contributions are stored, and reduced together.
bool HoldsContributions(const CollectiveSpec& spec, const GroupPlace& place) {
  return spec.rounds_once && place.ranks_max > 2;
}

}  // namespace

// What ranks of a host give one another: contributions that are reduced on arrival, and parts that
// have come from other hosts or were reduced. What is read is a rank's own part, or the root's.
double LevelsStaged(const CollectiveSpec& spec, const GroupPlace& place) {
  const double hosts = static_cast<double>(place.hosts.size()), n = spec.size;
  const bool holds = HoldsContributions(spec, place);
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return holds ? 0.5 : 1;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      return holds ? 0 : 1;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherV: {
      const double stood_for = std::max(std::ceil(n / place.ranks_min), 1.0);
      return (stood_for - 1) / stood_for;
    }
    case CollectiveKind::kBroadcast:
      return (hosts - 1) / hosts;
    default:  // all-to-all: inputs
      return 0;
  }
}

double LevelsPosts(const CollectiveSpec& spec, const GroupPlace& place) {
  if (!Reduces(spec.kind) || HoldsContributions(spec, place)) return 0;
  return 2.0 * std::max(place.ranks_max - 2, 0);
}

// With m ranks on the largest of H hosts and L rails.
Cost LevelsCost(const CollectiveSpec& spec) {
  const GroupPlace place = PlaceOf(spec);
  const double n = spec.size, m = place.ranks_max, rails = place.ranks_min;
  const double hosts = static_cast<double>(place.hosts.size()), others = hosts - 1;
  const double inside = m > 1 ? 1 : 0, outside = hosts > 1 ? 1 : 0;
  const double count = static_cast<double>(spec.count), part = count / rails;
  const double chunk = std::min(static_cast<double>(spec.chunk), part);
  const double rounds = chunk > 0 ? std::ceil(part / chunk) : 0;
  Cost cost{.lanes = rails};
  switch (spec.kind) {
    case CollectiveKind::kAllReduce: {
      const double passes = 2 * others / hosts;
      cost.turns_across = ExchangesAtOnce(place) ? 2 * outside : 2 * others;
      cost.turns = 2 * inside + cost.turns_across;
      cost.messages = rounds * (m + rails - 2 + 2 * others);
      cost.elements = part * (m + rails - 2 + passes);
      cost.reduced = part * (m - 1 + passes / 2);
      cost.elements_across = count * passes;
      if (!ExchangesAtOnce(place)) cost.elements_beyond = cost.elements_across * RingLoad(&place);
      cost.fill = (cost.turns > 2 ? 2 : 0) * chunk;
      cost.fill_inside = inside * outside * cost.fill;
      if (ExchangesAtOnce(place)) cost.in_order = std::max(others - 1, 0.0);
      // All rounds take a turn before any takes the next.
      if (rounds > 1) cost.ahead = part * passes * (1 - 1 / rounds);
      break;
    }
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherV:
    case CollectiveKind::kReduceScatter: {
      const bool reduces = spec.kind == CollectiveKind::kReduceScatter;
      const double length = spec.kind == CollectiveKind::kAllGatherV
                                ? static_cast<double>(LongestOf(GatheredParts(spec)))
                                : count;
      const double stood_for = std::ceil(n / rails);  // parts that a rank passes on
      const double moved = others + stood_for * (m - 1);
      cost.turns = inside + outside, cost.turns_across = outside;
      cost.messages = moved * std::ceil(length / static_cast<double>(spec.chunk));
      cost.elements = moved * length;
      cost.elements_across = std::max(m * others, n - rails) * outside * length;
      (reduces ? cost.reduced : cost.copied) = reduces ? cost.elements : length;
      if (reduces) cost.in_order = std::max(others - 1, 0.0);
      cost.fill = inside * outside * std::min(static_cast<double>(spec.chunk), length);
      cost.fill_inside = cost.fill;
      break;
    }
    case CollectiveKind::kBroadcast:
      cost.turns = (1 + outside) * inside + others, cost.turns_across = others;
      cost.messages =
          (m - 1) * std::ceil(count / static_cast<double>(spec.chunk)) + rounds * outside;
      cost.elements = (m - 1) * count + outside * part;
      cost.received = count;
      cost.copied = count;
      cost.elements_across = outside * count;
      cost.elements_beyond = cost.elements_across * RingLoad(&place);
      cost.fill = std::max(cost.turns - 1, 0.0) * chunk;
      cost.fill_inside = 2 * inside * outside * chunk;
      cost.balance = Ratio((hosts * (m - 1) + others) * count, n * cost.elements);
      break;
    case CollectiveKind::kReduce:
      cost.turns = 2 * inside + others, cost.turns_across = others;
      cost.messages = rounds * (m + rails - 2 + outside);
      cost.elements = part * (m + rails - 2 + outside);
      cost.reduced = part * (m - 1 + outside);
      cost.balance =
          Ratio((hosts * (m - 1) + others) * count + (rails - 1) * part, n * cost.elements);
      cost.elements_across = outside * count;
      cost.elements_beyond = cost.elements_across * RingLoad(&place);
      cost.fill = std::max(cost.turns - 1, 0.0) * chunk;
      cost.fill_inside = 2 * inside * outside * chunk;
      break;
    case CollectiveKind::kAllToAll: {
      const double away = n - m, stood_for = std::ceil(away / rails);
      cost.turns = inside + outside, cost.turns_across = outside;
      cost.messages = away * (1 - 1 / m) + stood_for + m - 1;
      cost.elements = (away * (1 - 1 / m) + stood_for * m + m - 1) * count;
      cost.copied = (inside * stood_for + 1) * count;
      cost.elements_across = m * away * count;
      break;
    }
    default:
      cost.turns_across = outside * (hosts > 8 ? Log2Ceil(static_cast<int>(hosts)) : 1);
      cost.turns = 2 * inside + cost.turns_across;
      cost.messages = m - 1 + (hosts > 8 ? cost.turns_across : others);
      cost.balance = Ratio(2 * (n - hosts) + hosts * others, n * cost.messages);
  }
  cost.staged = LevelsStaged(spec, place);
  cost.posts = LevelsPosts(spec, place);
  // Inside a host contributions are stored before they are reduced (direct).
  if (HoldsContributions(spec, place)) cost.copied += cost.reduced * (m - 1) / (m - 1 + outside);
  return cost;
}

}  // namespace weft::collectives
