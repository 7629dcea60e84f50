// Direct: every rank talks to every other. Each part has an owner, which reduces the contributions
// in the order owner, owner+1, ... (round), straight from the transport into the output, one chunk
// behind the other; a reduced chunk goes out to the others while the next ones come in, so that it
// is still in cache. Where 16-bit floats are to be rounded once, an owner stores the contributions
// of a chunk and reduces them together, which costs a copy of them.
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/contributions.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/owners.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"

namespace weft::collectives {
namespace {

RankSchedule AllGather(const CollectiveSpec& spec) {
  const int n = spec.size;
  const std::vector<Stretch> parts = GatheredParts(spec);
  ScheduleBuilder builder;
  const Stretch mine = parts[spec.rank];
  if (!spec.in_place) builder.Copy(Output(mine.offset), Input(0), mine.length);
  for (uint64_t round = 0; round < ChunkCount(LongestOf(parts), spec.chunk); ++round) {
    const Stretch own = ChunkOf({0, mine.length}, spec.chunk, round);
    for (int d = 1; d < n; ++d) {
      builder.Send(Around(spec.rank, -d, n), Input(own.offset), own.length);
    }
    for (int d = 1; d < n; ++d) {
      const int peer = Around(spec.rank, d, n);
      const Stretch theirs = ChunkOf(parts[peer], spec.chunk, round);
      builder.Receive(peer, Output(theirs.offset), theirs.length);
    }
  }
  return std::move(builder).Finish();
}

RankSchedule Broadcast(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder;
  const bool is_root = spec.rank == spec.root;
  for (uint64_t round = 0; round < ChunkCount(spec.count, spec.chunk); ++round) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, round);
    if (!is_root) {
      builder.Receive(spec.root, Output(chunk.offset), chunk.length);
      continue;
    }
    for (int d = 1; d < n; ++d) {
      builder.Send(Around(spec.rank, d, n), Input(chunk.offset), chunk.length);
    }
    if (!spec.in_place) builder.Copy(Output(chunk.offset), Input(chunk.offset), chunk.length);
  }
  return std::move(builder).Finish();
}

RankSchedule Gather(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  if (spec.rank != spec.root) {
    builder.Send(spec.root, Input(0), spec.count);
    return std::move(builder).Finish();
  }
  auto part = [&](int rank) { return Output(static_cast<uint64_t>(rank) * spec.count); };
  for (int d = 1; d < spec.size; ++d) {
    const int peer = Around(spec.rank, d, spec.size);
    builder.Receive(peer, part(peer), spec.count);
  }
  if (!spec.in_place) builder.Copy(part(spec.rank), Input(0), spec.count);
  return std::move(builder).Finish();
}

RankSchedule Scatter(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  if (spec.rank != spec.root) {
    builder.Receive(spec.root, Output(0), spec.count);
    return std::move(builder).Finish();
  }
  auto part = [&](int rank) { return Input(static_cast<uint64_t>(rank) * spec.count); };
  for (int d = 1; d < spec.size; ++d) {
    const int peer = Around(spec.rank, d, spec.size);
    builder.Send(peer, part(peer), spec.count);
  }
  if (!spec.in_place) builder.Copy(Output(0), part(spec.rank), spec.count);
  return std::move(builder).Finish();
}

// Up to 8 ranks one turn, everybody to everybody; beyond that dissemination (Hensgen, Finkel,
// Manber, "Two algorithms for barrier synchronization", 1988): ceil(log2 n) turns of one message.
constexpr int kBarrierAtOnce = 8;

RankSchedule Barrier(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder(true);
  const bool disseminates = n > kBarrierAtOnce;
  std::vector<uint32_t> arrivals;
  for (int d = 1; d < n; d = disseminates ? 2 * d : d + 1) {
    builder.Send(Around(spec.rank, d, n), Input(0), 0);
    if (disseminates) {  // what is passed on includes all that came before
      for (uint32_t arrival : arrivals) builder.AlsoAfter(arrival);
    }
    arrivals.push_back(builder.Receive(Around(spec.rank, -d, n), Output(0), 0));
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind) { return true; }

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1 && Reduces(spec.kind)) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduceByOwners<ReducerFromOwner>(spec);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherV:
      return AllGather(spec);
    case CollectiveKind::kReduceScatter:
      return ReduceScatterByOwners<ReducerFromOwner>(spec);
    case CollectiveKind::kBroadcast:
      return Broadcast(spec);
    case CollectiveKind::kReduce:
      return ReduceByOwner<ReducerFromOwner>(spec);
    case CollectiveKind::kGather:
      return Gather(spec);
    case CollectiveKind::kScatter:
      return Scatter(spec);
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllToAllV:
      return ExchangeAll(spec, spec.size);
    case CollectiveKind::kBarrier:
      return Barrier(spec);
    case CollectiveKind::kSendReceive:  // no collective
      break;
  }
  return {};
}

Cost CostOf(const CollectiveSpec& spec) {
  const double n = spec.size, count = static_cast<double>(spec.count);
  Cost cost{.turns = 1};
  auto chunks = [&](uint64_t length) {
    return static_cast<double>(ChunkCount(length, spec.chunk));
  };
  switch (spec.kind) {
    case CollectiveKind::kAllReduce: {
      const Stretch part = PartOf(spec.count, spec.size, 0);
      cost.turns = 2;
      cost.messages = 2 * (n - 1) * chunks(part.length);
      cost.reduced = (n - 1) * static_cast<double>(part.length);
      cost.elements = 2 * cost.reduced;
      break;
    }
    case CollectiveKind::kReduceScatter:
      cost.messages = (n - 1) * chunks(spec.count);
      cost.elements = cost.reduced = (n - 1) * count;
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherV: {
      const std::vector<Stretch> parts = GatheredParts(spec);
      cost.messages = (n - 1) * chunks(LongestOf(parts));
      cost.elements = (n - 1) * static_cast<double>(LongestOf(parts));
      cost.copied = static_cast<double>(LongestOf(parts));
      break;
    }
    case CollectiveKind::kReduce:
      cost.reduced = (n - 1) * count;
      [[fallthrough]];
    case CollectiveKind::kBroadcast:
      cost.messages = (n - 1) * chunks(spec.count);
      cost.elements = (n - 1) * count;
      if (spec.kind == CollectiveKind::kBroadcast) cost.copied = cost.received = count;
      cost.balance = 1 / n;
      break;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      cost.balance = 1 / n;
      if (spec.kind == CollectiveKind::kScatter) cost.received = count;
      [[fallthrough]];
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllToAllV:  // every part as the typical one
      cost.messages = n - 1;
      cost.elements = (n - 1) * count;
      cost.copied = count;
      break;
    case CollectiveKind::kBarrier:
      cost.turns = spec.size > kBarrierAtOnce ? Log2Ceil(spec.size) : 1;
      cost.messages = spec.size > kBarrierAtOnce ? cost.turns : n - 1;
      break;
    case CollectiveKind::kSendReceive:  // no collective
      break;
  }
  cost = SpreadOverHosts(cost, spec);
  BetweenSwitches between(spec);
  if (HasRoot(spec.kind) && between.any()) {
    for (int rank = 0; rank < spec.size; ++rank) between.Add(spec.root, rank, count);
    cost.elements_beyond = between.Most();
  }
  // Results are half of what an all-reduce sends.
  return WithContributions(cost, spec, spec.kind == CollectiveKind::kAllReduce ? 0.5 : 0);
}

}  // namespace

const Algorithm kDirect{"direct", &Has, &Build, &CostOf};

}  // namespace weft::collectives
