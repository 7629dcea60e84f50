// Direct: every rank talks to every other. Each part has an owner, which reduces the contributions
// in the order owner, owner+1, ... (round), straight from the transport into the output, one chunk
// behind the other; a reduced chunk goes out to the others while the next ones come in, so that it
// is still in cache.
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"

namespace weft::collectives {
namespace {

// How many chunks the reductions run ahead of the distribution of results: enough that an owner
// never waits for a result to leave before it takes the next contribution.
constexpr uint64_t kRunAhead = 2;

// Reduces one chunk at its owner: chain of receives, each after the former.
uint32_t ReduceChunk(ScheduleBuilder& builder, const CollectiveSpec& spec, Place out, Place own,
                     uint64_t length) {
  uint32_t last = kNone;
  for (int d = 1; d < spec.size; ++d) {
    last = builder.ReceiveReduce(Around(spec.rank, d, spec.size), out, d == 1 ? own : out, length,
                                 {last});
  }
  if (spec.average) last = builder.Scale(out, length, {last});
  return last;
}

RankSchedule AllReduce(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder;
  if (n == 1) {
    if (!spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
    return std::move(builder).Finish();
  }
  const uint64_t rounds = ChunkCount(PartOf(spec.count, n, 0).length, spec.chunk);
  auto piece = [&](int owner, uint64_t round) {
    return ChunkOf(PartOf(spec.count, n, owner), spec.chunk, round);
  };
  // Of each round: when the own chunk was reduced, and when the contribution to a peer's has left.
  std::vector<uint32_t> reduced(rounds, kNone);
  std::vector<uint32_t> sent(rounds * static_cast<uint64_t>(n), kNone);
  for (uint64_t round = 0; round < rounds + kRunAhead; ++round) {
    if (round < rounds) {
      for (int d = 1; d < n; ++d) {
        const int peer = Around(spec.rank, -d, n);
        const Stretch theirs = piece(peer, round);
        sent[round * n + peer] = builder.Send(peer, Input(theirs.offset), theirs.length);
      }
      const Stretch own = piece(spec.rank, round);
      reduced[round] =
          ReduceChunk(builder, spec, Output(own.offset), Input(own.offset), own.length);
    }
    if (round < kRunAhead) continue;
    const uint64_t ready = round - kRunAhead;
    const Stretch own = piece(spec.rank, ready);
    for (int d = 1; d < n; ++d) {
      builder.Send(Around(spec.rank, -d, n), Output(own.offset), own.length, {reduced[ready]});
    }
    for (int d = 1; d < n; ++d) {
      const int peer = Around(spec.rank, d, n);
      const Stretch theirs = piece(peer, ready);
      builder.Receive(peer, Output(theirs.offset), theirs.length,
                      {spec.in_place ? sent[ready * n + peer] : kNone});
    }
  }
  return std::move(builder).Finish();
}

RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder;
  auto part = [&](int rank) { return static_cast<uint64_t>(rank) * spec.count; };
  if (n == 1 && !spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
  if (n == 1) return std::move(builder).Finish();
  for (uint64_t round = 0; round < ChunkCount(spec.count, spec.chunk); ++round) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, round);
    for (int d = 1; d < n; ++d) {
      const int peer = Around(spec.rank, -d, n);
      builder.Send(peer, Input(part(peer) + chunk.offset), chunk.length);
    }
    ReduceChunk(builder, spec, Output(chunk.offset), Input(part(spec.rank) + chunk.offset),
                chunk.length);
  }
  return std::move(builder).Finish();
}

RankSchedule Reduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const bool is_root = spec.rank == spec.root;
  if (spec.size == 1 && !spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
  if (spec.size == 1) return std::move(builder).Finish();
  for (uint64_t round = 0; round < ChunkCount(spec.count, spec.chunk); ++round) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, round);
    if (is_root) {
      ReduceChunk(builder, spec, Output(chunk.offset), Input(chunk.offset), chunk.length);
    } else {
      builder.Send(spec.root, Input(chunk.offset), chunk.length);
    }
  }
  return std::move(builder).Finish();
}

// All-gather with any counts: rank r's part lies at offsets[r].
RankSchedule AllGather(const CollectiveSpec& spec, const std::vector<uint64_t>& counts,
                       const std::vector<uint64_t>& offsets) {
  const int n = spec.size;
  ScheduleBuilder builder;
  uint64_t longest = 0;
  for (uint64_t count : counts) longest = std::max(longest, count);
  if (!spec.in_place) builder.Copy(Output(offsets[spec.rank]), Input(0), counts[spec.rank]);
  for (uint64_t round = 0; round < ChunkCount(longest, spec.chunk); ++round) {
    auto piece = [&](int rank) { return ChunkOf({0, counts[rank]}, spec.chunk, round); };
    const Stretch own = piece(spec.rank);
    for (int d = 1; d < n; ++d) {
      builder.Send(Around(spec.rank, -d, n), Input(own.offset), own.length);
    }
    for (int d = 1; d < n; ++d) {
      const int peer = Around(spec.rank, d, n);
      builder.Receive(peer, Output(offsets[peer] + piece(peer).offset), piece(peer).length);
    }
  }
  return std::move(builder).Finish();
}

RankSchedule EvenAllGather(const CollectiveSpec& spec) {
  std::vector<uint64_t> counts(static_cast<size_t>(spec.size), spec.count);
  std::vector<uint64_t> offsets(counts.size());
  for (size_t r = 0; r < offsets.size(); ++r) offsets[r] = r * spec.count;
  return AllGather(spec, counts, offsets);
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

// In place, parts overlay those that they replace: the input goes to scratch first.
RankSchedule AllToAll(const CollectiveSpec& spec, const std::vector<Stretch>& from,
                      const std::vector<Stretch>& to, bool empty_messages) {
  const int n = spec.size;
  ScheduleBuilder builder(empty_messages);
  Place source = Input(0);
  uint32_t saved = kNone;
  if (spec.in_place) {
    source = builder.Scratch(InputLength(spec));
    saved = builder.Copy(source, Input(0), InputLength(spec));
  }
  for (int d = 1; d < n; ++d) {
    const int peer = Around(spec.rank, -d, n);
    builder.Send(peer, source + from[peer].offset, from[peer].length, {saved});
  }
  for (int d = 1; d < n; ++d) {
    const int peer = Around(spec.rank, d, n);
    builder.Receive(peer, Output(to[peer].offset), to[peer].length, {saved});
  }
  const Stretch own = from[spec.rank];
  if (!spec.in_place || own.offset != to[spec.rank].offset) {
    builder.Copy(Output(to[spec.rank].offset), source + own.offset, own.length, {saved});
  }
  return std::move(builder).Finish();
}

RankSchedule EvenAllToAll(const CollectiveSpec& spec) {
  std::vector<Stretch> parts(static_cast<size_t>(spec.size));
  for (size_t r = 0; r < parts.size(); ++r) parts[r] = {r * spec.count, spec.count};
  return AllToAll(spec, parts, parts, false);
}

RankSchedule UnevenAllToAll(const CollectiveSpec& spec) {
  std::vector<Stretch> from(static_cast<size_t>(spec.size)), to(from.size());
  for (size_t r = 0; r < from.size(); ++r) {
    from[r] = {spec.input_offsets[r], spec.input_counts[r]};
    to[r] = {spec.output_offsets[r], spec.output_counts[r]};
  }
  // Two ranks may disagree about a count; an empty message lets them find out.
  return AllToAll(spec, from, to, true);
}

// Up to 8 ranks one turn, everybody to everybody; beyond that dissemination (Hensgen, Finkel,
// Manber, "Two algorithms for barrier synchronization", 1988): ceil(log2 n) turns of one message.
RankSchedule Barrier(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder(true);
  const bool disseminates = n > 8;
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

}  // namespace

bool DirectHas(CollectiveKind) { return true; }

RankSchedule BuildDirect(const CollectiveSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(spec);
    case CollectiveKind::kAllGather:
      return EvenAllGather(spec);
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(spec);
    case CollectiveKind::kBroadcast:
      return Broadcast(spec);
    case CollectiveKind::kReduce:
      return Reduce(spec);
    case CollectiveKind::kGather:
      return Gather(spec);
    case CollectiveKind::kScatter:
      return Scatter(spec);
    case CollectiveKind::kAllToAll:
      return EvenAllToAll(spec);
    case CollectiveKind::kAllGatherV:
      return AllGather(spec, spec.output_counts, spec.output_offsets);
    case CollectiveKind::kAllToAllV:
      return UnevenAllToAll(spec);
    case CollectiveKind::kBarrier:
      return Barrier(spec);
  }
  return {};
}

}  // namespace weft::collectives
