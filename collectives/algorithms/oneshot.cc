// One shot: contributions go whole to every rank that needs them, into scratch, all receives posted
// at once; then they are reduced locally by one step, in the order of ranks.
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"

namespace weft::collectives {
namespace {

// output[0, length) = contributions of ranks 0 .. n-1, in this order. The own one is at `own`; the
// others are received. `sends`: steps that read what the output overlays when in place.
void GatherAndReduce(ScheduleBuilder& builder, const CollectiveSpec& spec, Place own,
                     uint64_t length, const std::vector<uint32_t>& sends) {
  const int n = spec.size;
  std::vector<Place> from(static_cast<size_t>(n), own);
  std::vector<uint32_t> arrival(static_cast<size_t>(n), kNone);
  for (int d = 1; d < n; ++d) {
    const int peer = Around(spec.rank, d, n);
    from[peer] = builder.Scratch(length);
    arrival[peer] = builder.Receive(peer, from[peer], length);
  }
  if (n == 1) {
    if (!spec.in_place) builder.Copy(Output(0), own, length);
    return;
  }
  const uint32_t last = builder.ReduceAll(Output(0), from, length);
  builder.AlsoAfter(arrival);
  if (spec.in_place) builder.AlsoAfter(sends);
  builder.Average(spec, last);
}

RankSchedule AllReduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  std::vector<uint32_t> sends;
  for (int d = 1; d < spec.size; ++d) {
    sends.push_back(builder.Send(Around(spec.rank, -d, spec.size), Input(0), spec.count));
  }
  GatherAndReduce(builder, spec, Input(0), spec.count, sends);
  return std::move(builder).Finish();
}

RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  auto part = [&](int rank) { return Input(static_cast<uint64_t>(rank) * spec.count); };
  for (int d = 1; d < spec.size; ++d) {
    const int peer = Around(spec.rank, -d, spec.size);
    builder.Send(peer, part(peer), spec.count);
  }
  GatherAndReduce(builder, spec, part(spec.rank), spec.count, {});
  return std::move(builder).Finish();
}

RankSchedule Reduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  if (spec.rank == spec.root) {
    GatherAndReduce(builder, spec, Input(0), spec.count, {});
  } else {
    builder.Send(spec.root, Input(0), spec.count);
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) { return Reduces(kind); }

RankSchedule Build(const CollectiveSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(spec);
    case CollectiveKind::kReduce:
      return Reduce(spec);
    default:
      return AllReduce(spec);
  }
}

Cost CostOf(const CollectiveSpec& spec) {
  const double others = spec.size - 1, whole = others * static_cast<double>(spec.count);
  const bool all = spec.kind == CollectiveKind::kAllReduce && others > 0;
  return SpreadOverHosts({.turns = 1,
                          .messages = others,
                          .elements = whole,
                          .reduced = whole,
                          .copied = whole,
                          .rewritten = all ? static_cast<double>(spec.count) : 0,
                          .balance = spec.kind == CollectiveKind::kReduce ? 1.0 / spec.size : 1},
                         spec);
}

}  // namespace

const Algorithm kOneShot{"oneshot", &Has, &Build, &CostOf};

}  // namespace weft::collectives
