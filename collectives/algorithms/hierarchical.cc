// Two levels: through memory inside a host, and between hosts by rails side by side. Rail l is the
// l-th rank of every host; there are as many rails as the smallest host has ranks. Every byte
// leaves a host as seldom as it can, and all ranks of a host share in sending it. (The scheme of
// hierarchical collectives in MPI libraries since Karonis et al., "Exploiting hierarchy in parallel
// computer networks to optimize collective operation performance", 2000; rails as in MegaScale.)
// Composed of the algorithms for one level: direct inside a host; direct, ring or chain outside.
// On one host, or with one rank a host, it is the one level that there is.
#include <algorithm>
#include <cmath>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"
#include "collectives/planner/group_place.h"

namespace weft::collectives {
namespace {

using Steps = std::vector<uint32_t>;

// Up to here hosts exchange with all others at once; beyond, round a ring.
constexpr size_t kHostsAtOnce = 4;

class Levels {
 public:
  explicit Levels(const CollectiveSpec& whole)
      : spec(whole),
        place(PlaceOf(whole)),
        host(place.host[static_cast<size_t>(whole.rank)]),
        local(place.local[static_cast<size_t>(whole.rank)]),
        rails(place.ranks_min),
        here(place.hosts[static_cast<size_t>(host)]),
        builder(whole.kind == CollectiveKind::kBarrier) {}

  std::vector<int> Rail(int rail) const {
    std::vector<int> ranks;
    for (const std::vector<int>& ranks_there : place.hosts) {
      ranks.push_back(ranks_there[static_cast<size_t>(rail) % ranks_there.size()]);
    }
    return ranks;
  }
  // The ranks that stand for `rank` on each host; itself on its own.
  std::vector<int> RailOf(int rank) const { return Rail(place.local[static_cast<size_t>(rank)]); }

  // A collective of some ranks, this one among them, as a part of the whole.
  Steps Part(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& ranks,
             int root, uint64_t count, bool in_place, Place input, Place output,
             const Steps& after = {}) {
    CollectiveSpec part{.kind = kind,
                        .size = static_cast<int>(ranks.size()),
                        .count = count,
                        .chunk = spec.chunk,
                        .in_place = in_place};
    for (int i = 0; i < part.size; ++i) {
      if (ranks[static_cast<size_t>(i)] == spec.rank) part.rank = i;
      if (ranks[static_cast<size_t>(i)] == root) part.root = i;
    }
    return builder.Embed(algorithm.build(part), ranks, input, output, after);
  }
  void Scale(Place out, uint64_t length, Steps& after) {
    if (!spec.average) return;
    const uint32_t step = builder.Scale(out, length);
    builder.AlsoAfter(after);
    if (step != kNone) after = {step};
  }
  // What of round `round` belongs to a rail.
  uint64_t Rounds() const { return ChunkCount(spec.count, RoundLength()); }
  Stretch RailPart(uint64_t round, int rail) const {
    const Stretch all = Round(round);
    const Stretch part = PartOf(all.length, rails, rail);
    return {all.offset + part.offset, part.length};
  }
  Stretch Round(uint64_t round) const { return ChunkOf({0, spec.count}, RoundLength(), round); }

  const CollectiveSpec& spec;
  const GroupPlace place;
  const int host, local, rails;
  const std::vector<int>& here;  // the ranks of this host
  ScheduleBuilder builder;

 private:
  uint64_t RoundLength() const { return spec.chunk * static_cast<uint64_t>(rails); }
};

// Runs stages of rounds staggered: stage s of round r while stage 0 of round r + s begins.
template <typename Stage>
void Pipeline(uint64_t rounds, uint64_t stages, const Stage& stage) {
  for (uint64_t step = 0; step < rounds + stages - 1 && rounds > 0; ++step) {
    for (uint64_t s = 0; s < stages; ++s) {
      if (step >= s && step - s < rounds) stage(s, step - s);
    }
  }
}

// Inside each host the rails' ranks reduce a part each; each rail reduces its part over the hosts;
// inside each host the parts go to everybody.
RankSchedule AllReduce(const CollectiveSpec& spec) {
  Levels levels(spec);
  const Algorithm& outside = levels.place.hosts.size() <= kHostsAtOnce ? kDirect : kRing;
  std::vector<std::vector<Steps>> given(levels.Rounds());  // by round and rail
  std::vector<Steps> whole(levels.Rounds());
  Pipeline(levels.Rounds(), 3, [&](uint64_t stage, uint64_t round) {
    if (stage == 1) {
      if (levels.local >= levels.rails) return;
      const Stretch part = levels.RailPart(round, levels.local);
      const Place at = Output(part.offset);
      whole[round] =
          levels.Part(outside, CollectiveKind::kAllReduce, levels.Rail(levels.local), -1,
                      part.length, true, at, at, given[round][static_cast<size_t>(levels.local)]);
      levels.Scale(at, part.length, whole[round]);
      return;
    }
    for (int rail = 0; rail < levels.rails; ++rail) {
      const Stretch part = levels.RailPart(round, rail);
      const int owner = levels.here[static_cast<size_t>(rail)];
      const Place in = Input(part.offset), out = Output(part.offset);
      if (stage == 0) {
        given[round].push_back(levels.Part(kDirect, CollectiveKind::kReduce, levels.here, owner,
                                           part.length, spec.in_place, in, out));
      } else {
        const bool own = owner == spec.rank;
        const Steps& after = own ? whole[round] : given[round][static_cast<size_t>(rail)];
        levels.Part(kDirect, CollectiveKind::kBroadcast, levels.here, owner, part.length, true, out,
                    out, own || spec.in_place ? after : Steps{});
      }
    }
  });
  return std::move(levels.builder).Finish();
}

// Each part goes to one rank of every other host, and from there to the others on it.
RankSchedule AllGather(const CollectiveSpec& spec) {
  Levels levels(spec);
  const std::vector<Stretch> parts = GatheredParts(spec);
  const Stretch mine = parts[static_cast<size_t>(spec.rank)];
  if (!spec.in_place) levels.builder.Copy(Output(mine.offset), Input(0), mine.length);
  const uint64_t rounds = ChunkCount(LongestOf(parts), spec.chunk);
  const size_t n = static_cast<size_t>(spec.size);
  std::vector<Steps> arrived(rounds * n);
  Pipeline(rounds, 2, [&](uint64_t stage, uint64_t round) {
    for (int owner = 0; owner < spec.size; ++owner) {
      const std::vector<int> rail = levels.RailOf(owner);
      const int stand_in = rail[static_cast<size_t>(levels.host)];
      const Stretch piece = ChunkOf(parts[static_cast<size_t>(owner)], spec.chunk, round);
      const Place out = Output(piece.offset);
      const Place in = owner == spec.rank ? Input(piece.offset - mine.offset) : out;
      Steps& here = arrived[round * n + static_cast<size_t>(owner)];
      if (stage == 0 && stand_in == spec.rank) {
        here = levels.Part(kDirect, CollectiveKind::kBroadcast, rail, owner, piece.length, true, in,
                           out);
      } else if (stage == 1) {
        const bool passes_on = stand_in == spec.rank && owner != spec.rank;
        levels.Part(kDirect, CollectiveKind::kBroadcast, levels.here, stand_in, piece.length, true,
                    in, out, passes_on ? here : Steps{});
      }
    }
  });
  return std::move(levels.builder).Finish();
}

// AllGather backwards: each part is reduced to one rank of every host, and from those to its owner.
RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  Levels levels(spec);
  const uint64_t rounds = ChunkCount(spec.count, spec.chunk);
  const size_t n = static_cast<size_t>(spec.size);
  const bool alone = levels.here.size() == 1;
  std::vector<Place> sums(n);  // of this host, where this rank reduces them
  for (int owner = 0; owner < spec.size; ++owner) {
    const bool mine = levels.RailOf(owner)[static_cast<size_t>(levels.host)] == spec.rank;
    Place& sum = sums[static_cast<size_t>(owner)];
    if (alone) sum = Input(static_cast<uint64_t>(owner) * spec.count);
    if (!alone && mine) sum = owner == spec.rank ? Output(0) : levels.builder.Scratch(spec.count);
  }
  std::vector<Steps> reduced(rounds * n);
  Pipeline(rounds, 2, [&](uint64_t stage, uint64_t round) {
    const Stretch piece = ChunkOf({0, spec.count}, spec.chunk, round);
    for (int owner = 0; owner < spec.size; ++owner) {
      const std::vector<int> rail = levels.RailOf(owner);
      const int stand_in = rail[static_cast<size_t>(levels.host)];
      const Place sum = sums[static_cast<size_t>(owner)] + piece.offset;
      Steps& here = reduced[round * n + static_cast<size_t>(owner)];
      if (stage == 0 && !alone) {
        const Place in = Input(static_cast<uint64_t>(owner) * spec.count + piece.offset);
        here = levels.Part(kDirect, CollectiveKind::kReduce, levels.here, stand_in, piece.length,
                           spec.in_place, in, sum);
      } else if (stage == 1 && stand_in == spec.rank) {
        const Place out = owner == spec.rank ? Output(piece.offset) : sum;
        Steps ends = levels.Part(kDirect, CollectiveKind::kReduce, rail, owner, piece.length,
                                 spec.in_place || sum == out, sum, out, here);
        if (owner == spec.rank) levels.Scale(out, piece.length, ends);
      }
    }
  });
  return std::move(levels.builder).Finish();
}

// The root gives all to the ranks of its host; each rail carries a part from host to host; inside
// each other host the parts go to everybody.
RankSchedule Broadcast(const CollectiveSpec& spec) {
  Levels levels(spec);
  const int root_host = levels.place.host[static_cast<size_t>(spec.root)];
  const bool at_root = levels.host == root_host, is_root = spec.rank == spec.root;
  std::vector<Steps> here(levels.Rounds());
  Pipeline(levels.Rounds(), 3, [&](uint64_t stage, uint64_t round) {
    const Stretch all = levels.Round(round);
    if (stage == 0 && at_root) {
      here[round] = levels.Part(kDirect, CollectiveKind::kBroadcast, levels.here, spec.root,
                                all.length, spec.in_place, Input(all.offset), Output(all.offset));
      if (is_root) here[round].clear();  // what it sends is there
    }
    for (int rail = 0; rail < levels.rails; ++rail) {
      const Stretch part = levels.RailPart(round, rail);
      const std::vector<int> ranks = levels.Rail(rail);
      const Place out = Output(part.offset), in = is_root ? Input(part.offset) : out;
      if (stage == 1 && rail == levels.local) {
        here[round] = levels.Part(kChain, CollectiveKind::kBroadcast, ranks,
                                  ranks[static_cast<size_t>(root_host)], part.length, true, in, out,
                                  here[round]);
      }
      if (stage == 2 && !at_root) {
        levels.Part(kDirect, CollectiveKind::kBroadcast, levels.here,
                    levels.here[static_cast<size_t>(rail)], part.length, true, out, out,
                    rail == levels.local ? here[round] : Steps{});
      }
    }
  });
  return std::move(levels.builder).Finish();
}

// Broadcast backwards.
RankSchedule Reduce(const CollectiveSpec& spec) {
  Levels levels(spec);
  const int root_host = levels.place.host[static_cast<size_t>(spec.root)];
  const bool is_root = spec.rank == spec.root, alone = levels.here.size() == 1;
  const bool owns = levels.local < levels.rails;
  const Place scratch = levels.builder.Scratch(owns && !alone && !is_root ? spec.count : 0);
  std::vector<std::vector<Steps>> given(levels.Rounds());  // by round and rail
  std::vector<Steps> reduced(levels.Rounds());
  Pipeline(levels.Rounds(), 3, [&](uint64_t stage, uint64_t round) {
    for (int rail = 0; rail < levels.rails; ++rail) {
      const Stretch part = levels.RailPart(round, rail);
      const std::vector<int> ranks = levels.Rail(rail);
      const int owner = levels.here[static_cast<size_t>(rail)];
      const int last = ranks[static_cast<size_t>(root_host)];  // where the rail ends
      const Place in = Input(part.offset), out = Output(part.offset);
      const Place sum = is_root ? out : alone ? in : scratch + part.offset;
      if (stage == 0) {
        given[round].push_back(alone ? Steps{}
                                     : levels.Part(kDirect, CollectiveKind::kReduce, levels.here,
                                                   owner, part.length, spec.in_place, in, sum));
      } else if (stage == 1 && owner == spec.rank) {
        const bool from_input = alone && is_root;
        reduced[round] = levels.Part(kChain, CollectiveKind::kReduce, ranks, last, part.length,
                                     !from_input || spec.in_place, from_input ? in : sum, sum,
                                     given[round][static_cast<size_t>(rail)]);
        if (last == spec.root && is_root) levels.Scale(out, part.length, reduced[round]);
      } else if (stage == 2 && last != spec.root && owner == last) {
        if (owner == spec.rank) {
          levels.builder.Send(spec.root, sum, part.length);
          levels.builder.AlsoAfter(reduced[round]);
        } else if (is_root) {
          Steps here{levels.builder.Receive(last, out, part.length)};
          if (spec.in_place) levels.builder.AlsoAfter(given[round][static_cast<size_t>(rail)]);
          levels.Scale(out, part.length, here);
        }
      }
    }
  });
  return std::move(levels.builder).Finish();
}

// What the ranks of a host have for a rank of another goes there in one message, by the rank that
// stands for it on the sending host.
RankSchedule AllToAll(const CollectiveSpec& spec) {
  Levels levels(spec);
  ScheduleBuilder& builder = levels.builder;
  const uint64_t count = spec.count, locals = levels.here.size();
  Place source = Input(0);
  uint32_t saved = kNone;
  if (spec.in_place) {
    source = builder.Scratch(InputLength(spec));
    saved = builder.Copy(source, Input(0), InputLength(spec));
  }
  auto part = [&](int rank) { return static_cast<uint64_t>(rank) * count; };
  for (int to = 0; to < spec.size; ++to) {
    if (levels.place.host[static_cast<size_t>(to)] == levels.host) {
      if (to != spec.rank) builder.Send(to, source + part(to), count, {saved});
      for (size_t i = 0; i < locals && to == spec.rank; ++i) {
        const int from = levels.here[i];
        if (from != to) builder.Receive(from, Output(part(from)), count, {saved});
      }
      continue;
    }
    const int stand_in = levels.RailOf(to)[static_cast<size_t>(levels.host)];
    if (stand_in != spec.rank) {
      builder.Send(stand_in, source + part(to), count, {saved});
      continue;
    }
    const Place together = locals == 1 ? source + part(to) : builder.Scratch(locals * count);
    Steps there;
    if (locals == 1) there.push_back(saved);
    for (size_t i = 0; i < locals && locals > 1; ++i) {
      const Place at = together + i * count;
      there.push_back(levels.here[i] == spec.rank
                          ? builder.Copy(at, source + part(to), count, {saved})
                          : builder.Receive(levels.here[i], at, count));
    }
    builder.Send(to, together, locals * count);
    builder.AlsoAfter(there);
  }
  for (const std::vector<int>& ranks : levels.place.hosts) {
    if (&ranks == &levels.here) continue;
    const int from = ranks[static_cast<size_t>(levels.local) % ranks.size()];
    const uint64_t length = ranks.size() * count;
    if (ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size())) {
      builder.Receive(from, Output(part(ranks.front())), length, {saved});
      continue;
    }
    const Place together = builder.Scratch(length);
    const uint32_t arrival = builder.Receive(from, together, length);
    for (size_t i = 0; i < ranks.size(); ++i) {
      builder.Copy(Output(part(ranks[i])), together + i * count, count, {saved, arrival});
    }
  }
  if (!spec.in_place) builder.Copy(Output(part(spec.rank)), Input(part(spec.rank)), count);
  return std::move(builder).Finish();
}

RankSchedule Barrier(const CollectiveSpec& spec) {
  Levels levels(spec);
  const int leader = levels.here[0];
  if (spec.rank != leader) {
    levels.builder.Send(leader, Input(0), 0);
    levels.builder.Receive(leader, Output(0), 0);
    return std::move(levels.builder).Finish();
  }
  Steps arrivals;
  for (size_t i = 1; i < levels.here.size(); ++i) {
    arrivals.push_back(levels.builder.Receive(levels.here[i], Output(0), 0));
  }
  const Steps all = levels.Part(kDirect, CollectiveKind::kBarrier, levels.Rail(0), -1, 0, false,
                                Input(0), Output(0), arrivals);
  for (size_t i = 1; i < levels.here.size(); ++i) {
    levels.builder.Send(levels.here[i], Input(0), 0);
    levels.builder.AlsoAfter(all);
  }
  return std::move(levels.builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind != CollectiveKind::kGather && kind != CollectiveKind::kScatter &&
         kind != CollectiveKind::kAllToAllV;
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1 && Reduces(spec.kind)) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(spec);
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(spec);
    case CollectiveKind::kBroadcast:
      return Broadcast(spec);
    case CollectiveKind::kReduce:
      return Reduce(spec);
    case CollectiveKind::kAllToAll:
      return AllToAll(spec);
    case CollectiveKind::kBarrier:
      return Barrier(spec);
    default:
      return AllGather(spec);
  }
}

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 1; }

// With m ranks on the largest of H hosts and L rails.
Cost CostOf(const CollectiveSpec& spec) {
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
      cost.turns_across = place.hosts.size() <= kHostsAtOnce ? 2 * outside : 2 * others;
      cost.turns = 2 * inside + cost.turns_across;
      cost.messages = rounds * (m + rails - 2 + 2 * others);
      cost.elements = part * (m + rails - 2 + passes);
      cost.reduced = part * (m - 1 + passes / 2);
      cost.elements_across = count * passes;
      cost.fill = (cost.turns > 2 ? 2 : 0) * chunk;
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
      cost.fill = inside * outside * std::min(static_cast<double>(spec.chunk), length);
      break;
    }
    case CollectiveKind::kBroadcast:
      cost.turns = (1 + outside) * inside + others, cost.turns_across = others;
      cost.messages =
          (m - 1) * std::ceil(count / static_cast<double>(spec.chunk)) + rounds * outside;
      cost.elements = (m - 1) * count + outside * part;
      cost.copied = count;
      cost.elements_across = outside * count;
      cost.fill = std::max(cost.turns - 1, 0.0) * chunk;
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
      cost.fill = std::max(cost.turns - 1, 0.0) * chunk;
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
  return cost;
}

}  // namespace

const Algorithm kHierarchical{"hierarchical", &Has, &Build, &CostOf};

}  // namespace weft::collectives
