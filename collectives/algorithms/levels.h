// What the algorithms of several levels are composed of: the ranks of this rank's host, the rails
// between hosts, and the algorithms of one level that run among either. For algorithms/ only.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_LEVELS_H_
#define WEFT_COLLECTIVES_ALGORITHMS_LEVELS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/group_place.h"
#include "collectives/schedule.h"

namespace weft::collectives {

using Steps = std::vector<uint32_t>;

// Whether hosts exchange with all others at once; else round a ring, which takes fewer pairs of
// hosts: where there are many, or where a plan directory has flows along one.
inline bool ExchangesAtOnce(const GroupPlace& place) {
  return place.hosts.size() <= 4 && place.planned_ring.empty();
}

class Levels {
 public:
  // `by_switch`: rails are collectives of two levels themselves, whose hosts are the switches.
  Levels(const CollectiveSpec& whole, bool by_switch);

  // Rail l: the l-th rank of every host, in the order of the hosts.
  std::vector<int> Rail(int rail) const;
  // The ranks that stand for `rank` on each host; itself on its own.
  std::vector<int> RailOf(int rank) const { return Rail(place.local[static_cast<size_t>(rank)]); }

  // All ranks, in the order in which their parts come to this rank's switch along the chains that
  // lead from each switch to the next: first those of its own ranks, then those of the switch
  // before it. With `reduces`: chains lead back to a part's owner, from the switch before the
  // owner's; those that begin here come first, and the own ranks' last. Messages between two ranks
  // go in this order at both ends, so that none waits for one that has further to come.
  std::vector<int> Owners(bool reduces) const;

  // A collective of some ranks of this host, this one among them, as a part of the whole.
  Steps Inside(CollectiveKind kind, const std::vector<int>& ranks, int root, uint64_t count,
               bool in_place, Place input, Place output, const Steps& after = {});
  // Likewise of a rail: by the algorithm, or switch by switch. A reduction along a rail is the last
  // one, which averages where the whole does.
  Steps Across(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& rail,
               int root, uint64_t count, bool in_place, Place input, Place output,
               const Steps& after = {});
  // Steps from here on are of a stage, 0 to 2.
  void Begin(uint64_t stage);
  // The steps stage by stage, and turn by turn in a stage: sends to one rank leave in that order,
  // so that no round waits for what another one gets later.
  RankSchedule Finish() &&;

  // What of round `round` belongs to a rail.
  uint64_t Rounds() const { return ChunkCount(spec.count, RoundLength()); }
  Stretch RailPart(uint64_t round, int rail) const;
  Stretch Round(uint64_t round) const { return ChunkOf({0, spec.count}, RoundLength(), round); }

  const CollectiveSpec& spec;
  const GroupPlace place;
  const int host, local, rails;
  const std::vector<int>& here;  // the ranks of this host
  ScheduleBuilder builder;

 private:
  uint64_t RoundLength() const { return spec.chunk * static_cast<uint64_t>(rails); }
  // Gives the steps that lack a turn that of `part`'s steps in this stage.
  void SetTurns(const RankSchedule& part);
  Steps Part(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& ranks,
             int root, uint64_t count, bool averages, bool in_place, Place input, Place output,
             std::shared_ptr<const GroupPlace> place_of_part, const Steps& after);

  std::shared_ptr<const GroupPlace> switches_;  // of a rail; null: by the algorithms of one level
  std::vector<uint32_t> turns_;                 // by step
  uint32_t stage_turn_ = 0;                     // the first of this stage
};

// Calls `run(stage, round)` for all stages of all rounds; a stage comes after the one before it.
template <typename Run>
void ForEachStage(Levels& levels, uint64_t rounds, uint64_t stages, const Run& run) {
  for (uint64_t stage = 0; stage < stages; ++stage) {
    levels.Begin(stage);
    for (uint64_t round = 0; round < rounds; ++round) run(stage, round);
  }
}

// Schedules of each kind, by two levels or, where `by_switch`, by three.
RankSchedule LevelsAllReduce(const CollectiveSpec& spec, bool by_switch);
RankSchedule LevelsAllGather(const CollectiveSpec& spec, bool by_switch);  // and kAllGatherV
RankSchedule LevelsReduceScatter(const CollectiveSpec& spec, bool by_switch);
RankSchedule LevelsBroadcast(const CollectiveSpec& spec, bool by_switch);
RankSchedule LevelsReduce(const CollectiveSpec& spec, bool by_switch);
RankSchedule LevelsAllToAll(const CollectiveSpec& spec);
RankSchedule LevelsBarrier(const CollectiveSpec& spec);

// With two levels.
Cost LevelsCost(const CollectiveSpec& spec);
// Cost::staged and Cost::posts of a schedule of two levels or three: what ranks of a host exchange.
double LevelsStaged(const CollectiveSpec& spec, const GroupPlace& place);
double LevelsPosts(const CollectiveSpec& spec, const GroupPlace& place);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_LEVELS_H_
