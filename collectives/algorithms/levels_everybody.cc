// All-reduce, all-gather and reduce-scatter by levels.
#include <utility>
#include <vector>

#include "collectives/algorithms/levels.h"

namespace weft::collectives {

// Inside each host the rails' ranks reduce a part each; each rail reduces its part over the hosts;
// inside each host the parts go to everybody.
RankSchedule LevelsAllReduce(const CollectiveSpec& spec, bool by_switch) {
  Levels levels(spec, by_switch);
  const Algorithm& outside = ExchangesAtOnce(levels.place) ? kDirect : kRing;
  const bool alone = levels.here.size() == 1;              // its input goes out as it is
  std::vector<std::vector<Steps>> given(levels.Rounds());  // by round and rail
  std::vector<Steps> whole(levels.Rounds());
  ForEachStage(levels, levels.Rounds(), 3, [&](uint64_t stage, uint64_t round) {
    if (stage == 1) {
      if (levels.local >= levels.rails) return;
      const Stretch part = levels.RailPart(round, levels.local);
      const Place at = Output(part.offset);
      whole[round] =
          levels.Across(outside, CollectiveKind::kAllReduce, levels.Rail(levels.local), -1,
                        part.length, !alone || spec.in_place, alone ? Input(part.offset) : at, at,
                        given[round][static_cast<size_t>(levels.local)]);
      return;
    }
    for (int rail = 0; rail < levels.rails; ++rail) {
      const Stretch part = levels.RailPart(round, rail);
      const int owner = levels.here[static_cast<size_t>(rail)];
      const Place in = Input(part.offset), out = Output(part.offset);
      if (stage == 0) {
        given[round].push_back(alone ? Steps{}
                                     : levels.Inside(CollectiveKind::kReduce, levels.here, owner,
                                                     part.length, spec.in_place, in, out));
      } else if (!alone) {
        const bool own = owner == spec.rank;
        const Steps& after = own ? whole[round] : given[round][static_cast<size_t>(rail)];
        levels.Inside(CollectiveKind::kBroadcast, levels.here, owner, part.length, true, out, out,
                      own || spec.in_place ? after : Steps{});
      }
    }
  });
  return std::move(levels).Finish();
}

// Each part goes to one rank of every other host, and from there to the others on it.
RankSchedule LevelsAllGather(const CollectiveSpec& spec, bool by_switch) {
  Levels levels(spec, by_switch);
  const std::vector<Stretch> parts = GatheredParts(spec);
  const Stretch mine = parts[static_cast<size_t>(spec.rank)];
  if (!spec.in_place) levels.builder.Copy(Output(mine.offset), Input(0), mine.length);
  const uint64_t rounds = ChunkCount(LongestOf(parts), spec.chunk);
  const size_t n = static_cast<size_t>(spec.size);
  std::vector<Steps> arrived(rounds * n);
  const std::vector<int> owners = levels.Owners(/*reduces=*/false);
  ForEachStage(levels, rounds, 2, [&](uint64_t stage, uint64_t round) {
    for (const int owner : owners) {
      const std::vector<int> rail = levels.RailOf(owner);
      const int stand_in = rail[static_cast<size_t>(levels.host)];
      const Stretch piece = ChunkOf(parts[static_cast<size_t>(owner)], spec.chunk, round);
      const Place out = Output(piece.offset);
      const Place in = owner == spec.rank ? Input(piece.offset - mine.offset) : out;
      Steps& here = arrived[round * n + static_cast<size_t>(owner)];
      if (stage == 0 && stand_in == spec.rank) {
        here = levels.Across(kDirect, CollectiveKind::kBroadcast, rail, owner, piece.length, true,
                             in, out);
      } else if (stage == 1) {
        const bool passes_on = stand_in == spec.rank && owner != spec.rank;
        levels.Inside(CollectiveKind::kBroadcast, levels.here, stand_in, piece.length, true, in,
                      out, passes_on ? here : Steps{});
      }
    }
  });
  return std::move(levels).Finish();
}

// AllGather backwards: each part is reduced to one rank of every host, and from those to its owner.
RankSchedule LevelsReduceScatter(const CollectiveSpec& spec, bool by_switch) {
  Levels levels(spec, by_switch);
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
  const std::vector<int> owners = levels.Owners(/*reduces=*/true);
  ForEachStage(levels, rounds, 2, [&](uint64_t stage, uint64_t round) {
    const Stretch piece = ChunkOf({0, spec.count}, spec.chunk, round);
    for (const int owner : owners) {
      const std::vector<int> rail = levels.RailOf(owner);
      const int stand_in = rail[static_cast<size_t>(levels.host)];
      const Place sum = sums[static_cast<size_t>(owner)] + piece.offset;
      Steps& here = reduced[round * n + static_cast<size_t>(owner)];
      if (stage == 0 && !alone) {
        const Place in = Input(static_cast<uint64_t>(owner) * spec.count + piece.offset);
        here = levels.Inside(CollectiveKind::kReduce, levels.here, stand_in, piece.length,
                             spec.in_place, in, sum);
      } else if (stage == 1 && stand_in == spec.rank) {
        const Place out = owner == spec.rank ? Output(piece.offset) : sum;
        levels.Across(kDirect, CollectiveKind::kReduce, rail, owner, piece.length,
                      spec.in_place || sum == out, sum, out, here);
      }
    }
  });
  return std::move(levels).Finish();
}

}  // namespace weft::collectives
