#include "collectives/algorithms/levels.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace weft::collectives {
namespace {

// Turns of a stage: more than any algorithm of one level has, 2(n-1) at most; and those of a stage
// whose rails have three such stages.
constexpr uint32_t kStageTurns = 1 << 22, kRailTurns = 1 << 24;
static_assert(3 * kStageTurns < kRailTurns);

}  // namespace

Levels::Levels(const CollectiveSpec& whole, bool by_switch)
    : spec(whole),
      place(PlaceOf(whole)),
      host(place.host[static_cast<size_t>(whole.rank)]),
      local(place.local[static_cast<size_t>(whole.rank)]),
      rails(place.ranks_min),
      here(place.hosts[static_cast<size_t>(host)]),
      builder(whole.kind == CollectiveKind::kBarrier) {
  if (!by_switch || place.switches.size() < 2) return;
  switches_ = std::make_shared<const GroupPlace>(place.OfSwitches());
}

std::vector<int> Levels::Rail(int rail) const {
  std::vector<int> ranks;
  for (const std::vector<int>& ranks_there : place.hosts) {
    ranks.push_back(ranks_there[static_cast<size_t>(rail) % ranks_there.size()]);
  }
  return ranks;
}

std::vector<int> Levels::Owners(bool reduces) const {
  std::vector<int> owners(static_cast<size_t>(spec.size));
  std::iota(owners.begin(), owners.end(), 0);
  if (switches_ == nullptr) return owners;
  const int switches = static_cast<int>(place.switches.size());
  const int own = place.switch_of[static_cast<size_t>(host)];
  const auto hops = [&](int owner) {  // of the part of `owner`, before it is here
    const int owner_host = place.host[static_cast<size_t>(owner)];
    const int theirs = place.switch_of[static_cast<size_t>(owner_host)];
    return (reduces ? theirs - 1 - own + switches : own - theirs + switches) % switches;
  };
  std::stable_sort(owners.begin(), owners.end(), [&](int a, int b) { return hops(a) < hops(b); });
  return owners;
}

Steps Levels::Part(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& ranks,
                   int root, uint64_t count, bool averages, bool in_place, Place input,
                   Place output, std::shared_ptr<const GroupPlace> place_of_part,
                   const Steps& after) {
  CollectiveSpec part{.kind = kind,
                      .size = static_cast<int>(ranks.size()),
                      .count = count,
                      .chunk = spec.chunk,
                      .place = std::move(place_of_part),
                      .average = averages,
                      .rounds_once = spec.rounds_once,
                      .in_place = in_place};
  for (int i = 0; i < part.size; ++i) {
    if (ranks[static_cast<size_t>(i)] == spec.rank) part.rank = i;
    if (ranks[static_cast<size_t>(i)] == root) part.root = i;
  }
  const RankSchedule built = algorithm.build(part);
  const Steps ends = builder.Embed(built, ranks, input, output, after);
  SetTurns(built);
  return ends;
}

void Levels::Begin(uint64_t stage) {
  SetTurns({});
  stage_turn_ = static_cast<uint32_t>(stage) * (switches_ == nullptr ? kStageTurns : kRailTurns);
}

void Levels::SetTurns(const RankSchedule& part) {
  // Steps that no part has are of the stage's first turn, or of the last one that they come after.
  const RankSchedule& all = builder.schedule();
  while (turns_.size() + part.steps.size() < all.steps.size()) {
    uint32_t turn = stage_turn_;
    for (uint32_t before : all.After(all.steps[turns_.size()])) {
      turn = std::max(turn, turns_[before]);
    }
    turns_.push_back(turn);
  }
  // Where it has no turns, the k-th message to or from a rank is of turn k, and a step that is no
  // message of the last turn that it comes after.
  std::map<std::pair<int32_t, bool>, uint32_t> messages;
  std::vector<uint32_t> own;
  for (size_t id = 0; id < part.steps.size(); ++id) {
    const Step& step = part.steps[id];
    uint32_t turn = 0;
    if (!part.turns.empty()) {
      turn = part.turns[id];
    } else {
      if (step.peer >= 0) {
        turn = messages[{step.peer, step.kind == StepKind::kSend}]++;
      } else {
        for (uint32_t before : part.After(step)) turn = std::max(turn, own[before]);
      }
    }
    own.push_back(turn);
    turns_.push_back(stage_turn_ + turn);
  }
}

RankSchedule Levels::Finish() && {
  SetTurns({});
  builder.SortByTurn(std::move(turns_));
  return std::move(builder).Finish();
}

Steps Levels::Inside(CollectiveKind kind, const std::vector<int>& ranks, int root, uint64_t count,
                     bool in_place, Place input, Place output, const Steps& after) {
  return Part(kDirect, kind, ranks, root, count, /*averages=*/false, in_place, input, output,
              nullptr, after);
}

Steps Levels::Across(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& rail,
                     int root, uint64_t count, bool in_place, Place input, Place output,
                     const Steps& after) {
  const bool averages = spec.average && Reduces(kind);
  Steps ends = Part(switches_ == nullptr ? algorithm : kHierarchical, kind, rail, root, count,
                    averages, in_place, input, output, switches_, after);
  if (!averages || rail.size() > 1) return ends;
  // One host: its own reduction was the last one.
  const uint32_t scaled = builder.Scale(output, count);
  builder.AlsoAfter(ends);
  return scaled == kNone ? ends : Steps{scaled};
}

Stretch Levels::RailPart(uint64_t round, int rail) const {
  const Stretch all = Round(round);
  const Stretch part = PartOf(all.length, rails, rail);
  return {all.offset + part.offset, part.length};
}

}  // namespace weft::collectives
