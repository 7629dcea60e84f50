// Flat tree: rank 0 takes from every rank and gives to every rank. Two turns and 2(n-1) messages of
// all ranks together, where oneshot has one turn and n(n-1): for small sizes where ranks outnumber
// cores. Reduces in the order of ranks 0, 1, ..., n-1.
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/contributions.h"
#include "collectives/algorithms/parts.h"

namespace weft::collectives {
namespace {

RankSchedule AllReduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  if (spec.rank != 0) {
    const uint32_t sent = builder.Send(0, Input(0), spec.count);
    builder.Receive(0, Output(0), spec.count, {spec.in_place ? sent : kNone});
    return std::move(builder).Finish();
  }
  ReducerFromOwner reducer(builder, spec, spec.count, /*held=*/1);
  const uint32_t last = reducer.Reduce(Output(0), Input(0), spec.count);
  for (int peer = 1; peer < spec.size; ++peer) {
    builder.Send(peer, Output(0), spec.count, {last});
  }
  return std::move(builder).Finish();
}

// What a rank has sent comes back to it with the rest.
RankSchedule AllGather(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const uint64_t whole = static_cast<uint64_t>(spec.size) * spec.count;
  if (spec.rank != 0) {
    const uint32_t sent = builder.Send(0, Input(0), spec.count);
    builder.Receive(0, Output(0), whole, {spec.in_place ? sent : kNone});
    return std::move(builder).Finish();
  }
  std::vector<uint32_t> parts;
  if (!spec.in_place) parts.push_back(builder.Copy(Output(0), Input(0), spec.count));
  for (int peer = 1; peer < spec.size; ++peer) {
    parts.push_back(
        builder.Receive(peer, Output(static_cast<uint64_t>(peer) * spec.count), spec.count));
  }
  for (int peer = 1; peer < spec.size; ++peer) {
    builder.Send(peer, Output(0), whole);
    builder.AlsoAfter(parts);
  }
  return std::move(builder).Finish();
}

RankSchedule Barrier(const CollectiveSpec& spec) {
  ScheduleBuilder builder(true);
  if (spec.rank != 0) {
    builder.Send(0, Input(0), 0);
    builder.Receive(0, Output(0), 0);
    return std::move(builder).Finish();
  }
  std::vector<uint32_t> arrivals;
  for (int peer = 1; peer < spec.size; ++peer) {
    arrivals.push_back(builder.Receive(peer, Output(0), 0));
  }
  for (int peer = 1; peer < spec.size; ++peer) {
    builder.Send(peer, Input(0), 0);
    builder.AlsoAfter(arrivals);
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kBarrier;
}

RankSchedule Build(const CollectiveSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return spec.size == 1 ? CopyAlone(spec) : AllReduce(spec);
    case CollectiveKind::kAllGather:
      return spec.size == 1 ? CopyAlone(spec) : AllGather(spec);
    default:
      return Barrier(spec);
  }
}

Cost CostOf(const CollectiveSpec& spec) {
  const double n = spec.size, others = n - 1, count = static_cast<double>(spec.count);
  Cost cost{.turns = 2, .messages = others, .elements = others * count, .balance = 2 / n};
  if (spec.kind == CollectiveKind::kAllReduce) {
    cost.reduced = cost.elements;
    cost.rewritten = others > 0 ? count : 0;  // by those whose input rank 0 has read
  }
  if (spec.kind == CollectiveKind::kAllGather) {
    cost.elements = others * n * count;
    cost.copied = count;
    cost.balance = (n + 1) / (n * n);
  }
  cost = SpreadOverHosts(cost, spec);
  cost.staged = n / (n + 1);  // of an all-gather all but what rank 0 takes
  return WithContributions(cost, spec, 0.5);
}

}  // namespace

const Algorithm kFlat{"flat", &Has, &Build, &CostOf};

}  // namespace weft::collectives
