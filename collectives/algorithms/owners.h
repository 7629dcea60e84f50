// Reductions by owners: each part has one, which reduces the contributions of all ranks to it,
// chunk by chunk, and sends results on. Direct and gather_reduce differ in how it reduces a chunk
// (contributions.h).
//
// A Reducer is made from (ScheduleBuilder&, spec, elements of the longest chunk). Its
// Reduce(out, own, length) appends the steps for a chunk of this rank's part, of which `own` is
// this rank's contribution, and returns the step that the result is after.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_OWNERS_H_
#define WEFT_COLLECTIVES_ALGORITHMS_OWNERS_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/algorithms/parts.h"
#include "collectives/schedule.h"

namespace weft::collectives {

// How many chunks the reductions run ahead of the distribution of results: enough that an owner
// never waits for a result to leave before it takes the next contribution.
inline constexpr uint64_t kRunAhead = 2;

template <typename Reducer>
RankSchedule AllReduceByOwners(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder;
  const uint64_t longest = PartOf(spec.count, n, 0).length;
  const uint64_t rounds = ChunkCount(longest, spec.chunk);
  auto piece = [&](int owner, uint64_t round) {
    return ChunkOf(PartOf(spec.count, n, owner), spec.chunk, round);
  };
  // For each round: when the own chunk was reduced, and when the contribution to a peer's has left.
  std::vector<uint32_t> reduced(rounds, kNone);
  Reducer reducer(builder, spec, std::min(longest, spec.chunk));
  std::vector<uint32_t> sent(rounds * static_cast<uint64_t>(n), kNone);
  for (uint64_t round = 0; round < rounds + kRunAhead; ++round) {
    if (round < rounds) {
      for (int d = 1; d < n; ++d) {
        const int peer = Around(spec.rank, -d, n);
        const Stretch theirs = piece(peer, round);
        sent[round * n + peer] = builder.Send(peer, Input(theirs.offset), theirs.length);
      }
      const Stretch own = piece(spec.rank, round);
      reduced[round] = reducer.Reduce(Output(own.offset), Input(own.offset), own.length);
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

template <typename Reducer>
RankSchedule ReduceScatterByOwners(const CollectiveSpec& spec) {
  const int n = spec.size;
  ScheduleBuilder builder;
  auto part = [&](int rank) { return static_cast<uint64_t>(rank) * spec.count; };
  Reducer reducer(builder, spec, std::min(spec.count, spec.chunk));
  for (uint64_t round = 0; round < ChunkCount(spec.count, spec.chunk); ++round) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, round);
    for (int d = 1; d < n; ++d) {
      const int peer = Around(spec.rank, -d, n);
      builder.Send(peer, Input(part(peer) + chunk.offset), chunk.length);
    }
    reducer.Reduce(Output(chunk.offset), Input(part(spec.rank) + chunk.offset), chunk.length);
  }
  return std::move(builder).Finish();
}

// The root owns all.
template <typename Reducer>
RankSchedule ReduceByOwner(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const bool is_root = spec.rank == spec.root;
  Reducer reducer(builder, spec, is_root ? std::min(spec.count, spec.chunk) : 0);
  for (uint64_t round = 0; round < ChunkCount(spec.count, spec.chunk); ++round) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, round);
    if (is_root) {
      reducer.Reduce(Output(chunk.offset), Input(chunk.offset), chunk.length);
    } else {
      builder.Send(spec.root, Input(chunk.offset), chunk.length);
    }
  }
  return std::move(builder).Finish();
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_OWNERS_H_
