// All-to-all and barrier by two levels.
#include <utility>
#include <vector>

#include "collectives/algorithms/levels.h"

namespace weft::collectives {

// What the ranks of a host have for a rank of another goes there in one message, by the rank that
// stands for it on the sending host.
RankSchedule LevelsAllToAll(const CollectiveSpec& spec) {
  Levels levels(spec, false);
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

RankSchedule LevelsBarrier(const CollectiveSpec& spec) {
  Levels levels(spec, false);
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
  const Steps all = levels.Across(kDirect, CollectiveKind::kBarrier, levels.Rail(0), -1, 0, false,
                                  Input(0), Output(0), arrivals);
  for (size_t i = 1; i < levels.here.size(); ++i) {
    levels.builder.Send(levels.here[i], Input(0), 0);
    levels.builder.AlsoAfter(all);
  }
  return std::move(levels.builder).Finish();
}

}  // namespace weft::collectives
