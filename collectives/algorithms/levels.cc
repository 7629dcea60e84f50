#include "collectives/algorithms/levels.h"

#include <utility>

namespace weft::collectives {

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

Steps Levels::Part(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& ranks,
                   int root, uint64_t count, bool in_place, Place input, Place output,
                   std::shared_ptr<const GroupPlace> place_of_part, const Steps& after) {
  CollectiveSpec part{.kind = kind,
                      .size = static_cast<int>(ranks.size()),
                      .count = count,
                      .chunk = spec.chunk,
                      .place = std::move(place_of_part),
                      .in_place = in_place};
  for (int i = 0; i < part.size; ++i) {
    if (ranks[static_cast<size_t>(i)] == spec.rank) part.rank = i;
    if (ranks[static_cast<size_t>(i)] == root) part.root = i;
  }
  return builder.Embed(algorithm.build(part), ranks, input, output, after);
}

Steps Levels::Inside(CollectiveKind kind, const std::vector<int>& ranks, int root, uint64_t count,
                     bool in_place, Place input, Place output, const Steps& after) {
  return Part(kDirect, kind, ranks, root, count, in_place, input, output, nullptr, after);
}

Steps Levels::Across(const Algorithm& algorithm, CollectiveKind kind, const std::vector<int>& rail,
                     int root, uint64_t count, bool in_place, Place input, Place output,
                     const Steps& after) {
  return Part(switches_ == nullptr ? algorithm : kHierarchical, kind, rail, root, count, in_place,
              input, output, switches_, after);
}

void Levels::Scale(Place out, uint64_t length, Steps& after) {
  if (!spec.average) return;
  const uint32_t step = builder.Scale(out, length);
  builder.AlsoAfter(after);
  if (step != kNone) after = {step};
}

Stretch Levels::RailPart(uint64_t round, int rail) const {
  const Stretch all = Round(round);
  const Stretch part = PartOf(all.length, rails, rail);
  return {all.offset + part.offset, part.length};
}

}  // namespace weft::collectives
