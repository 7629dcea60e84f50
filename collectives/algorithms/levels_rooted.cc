// Broadcast and reduce by levels.
#include <utility>
#include <vector>

#include "collectives/algorithms/levels.h"

namespace weft::collectives {

// The root gives all to the ranks of its host; each rail carries a part from host to host; inside
// each other host the parts go to everybody.
RankSchedule LevelsBroadcast(const CollectiveSpec& spec, bool by_switch) {
  Levels levels(spec, by_switch);
  const int root_host = levels.place.host[static_cast<size_t>(spec.root)];
  const bool at_root = levels.host == root_host, is_root = spec.rank == spec.root;
  std::vector<Steps> here(levels.Rounds());
  ForEachStage(levels, levels.Rounds(), 3, [&](uint64_t stage, uint64_t round) {
    const Stretch all = levels.Round(round);
    if (stage == 0 && at_root) {
      here[round] = levels.Inside(CollectiveKind::kBroadcast, levels.here, spec.root, all.length,
                                  spec.in_place, Input(all.offset), Output(all.offset));
      if (is_root) here[round].clear();  // what it sends is there
    }
    for (int rail = 0; rail < levels.rails; ++rail) {
      const Stretch part = levels.RailPart(round, rail);
      const std::vector<int> ranks = levels.Rail(rail);
      const Place out = Output(part.offset), in = is_root ? Input(part.offset) : out;
      if (stage == 1 && rail == levels.local) {
        here[round] = levels.Across(kChain, CollectiveKind::kBroadcast, ranks,
                                    ranks[static_cast<size_t>(root_host)], part.length, true, in,
                                    out, here[round]);
      }
      if (stage == 2 && !at_root) {
        levels.Inside(CollectiveKind::kBroadcast, levels.here,
                      levels.here[static_cast<size_t>(rail)], part.length, true, out, out,
                      rail == levels.local ? here[round] : Steps{});
      }
    }
  });
  return std::move(levels).Finish();
}

// Broadcast backwards.
RankSchedule LevelsReduce(const CollectiveSpec& spec, bool by_switch) {
  Levels levels(spec, by_switch);
  const int root_host = levels.place.host[static_cast<size_t>(spec.root)];
  const bool is_root = spec.rank == spec.root, alone = levels.here.size() == 1;
  const bool owns = levels.local < levels.rails;
  const Place scratch = levels.builder.Scratch(owns && !alone && !is_root ? spec.count : 0);
  std::vector<std::vector<Steps>> given(levels.Rounds());  // by round and rail
  std::vector<Steps> reduced(levels.Rounds());
  ForEachStage(levels, levels.Rounds(), 3, [&](uint64_t stage, uint64_t round) {
    for (int rail = 0; rail < levels.rails; ++rail) {
      const Stretch part = levels.RailPart(round, rail);
      const std::vector<int> ranks = levels.Rail(rail);
      const int owner = levels.here[static_cast<size_t>(rail)];
      const int last = ranks[static_cast<size_t>(root_host)];  // where the rail ends
      const Place in = Input(part.offset), out = Output(part.offset);
      const Place sum = is_root ? out : alone ? in : scratch + part.offset;
      if (stage == 0) {
        given[round].push_back(alone ? Steps{}
                                     : levels.Inside(CollectiveKind::kReduce, levels.here, owner,
                                                     part.length, spec.in_place, in, sum));
      } else if (stage == 1 && owner == spec.rank) {
        const bool from_input = alone && is_root;
        reduced[round] = levels.Across(kChain, CollectiveKind::kReduce, ranks, last, part.length,
                                       !from_input || spec.in_place, from_input ? in : sum, sum,
                                       given[round][static_cast<size_t>(rail)]);
      } else if (stage == 2 && last != spec.root && owner == last) {
        if (owner == spec.rank) {
          levels.builder.Send(spec.root, sum, part.length);
          levels.builder.AlsoAfter(reduced[round]);
        } else if (is_root) {
          levels.builder.Receive(last, out, part.length);
          if (spec.in_place) levels.builder.AlsoAfter(given[round][static_cast<size_t>(rail)]);
        }
      }
    }
  });
  return std::move(levels).Finish();
}

}  // namespace weft::collectives
