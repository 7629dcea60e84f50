// Ring: every rank sends to the next and receives from the one before, part by part, chunk by chunk
// (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
// A chunk moves on as soon as it has come, while the part's next chunk comes in.
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"

namespace weft::collectives {
namespace {

struct Ring {
  explicit Ring(const CollectiveSpec& spec)
      : n(spec.size), rank(spec.rank), next(Around(rank, 1, n)), previous(Around(rank, -1, n)) {}
  int n, rank, next, previous;
};

// Turn t of 2(n-1): rank r sends part r-t and receives part r-t-1; in the first n-1 turns parts are
// reduced on their way, so that rank r ends with part r+1 whole; in the others they are stored.
RankSchedule AllReduce(const CollectiveSpec& spec) {
  const Ring ring(spec);
  const int n = ring.n;
  ScheduleBuilder builder;
  if (n == 1) {
    if (!spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
    return std::move(builder).Finish();
  }
  const uint64_t chunks = ChunkCount(PartOf(spec.count, n, 0).length, spec.chunk);
  auto piece = [&](int turn, uint64_t chunk) {
    return ChunkOf(PartOf(spec.count, n, Around(ring.rank, -turn, n)), spec.chunk, chunk);
  };
  // By part and chunk: the last step that wrote it, and the last that sent it.
  std::vector<uint32_t> written(static_cast<size_t>(n) * chunks, kNone), sent = written;
  for (int turn = 0; turn < 2 * (n - 1); ++turn) {
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      const size_t out = static_cast<size_t>(Around(ring.rank, -turn, n)) * chunks + chunk;
      const Stretch going = piece(turn, chunk);
      const Place from = turn == 0 ? Input(going.offset) : Output(going.offset);
      const uint32_t send = builder.Send(ring.next, from, going.length, {written[out]});
      // Before the part's result overwrites it.
      if (turn > 0 || spec.in_place) sent[out] = send;

      const size_t in = static_cast<size_t>(Around(ring.rank, -turn - 1, n)) * chunks + chunk;
      const Stretch coming = piece(turn + 1, chunk);
      if (turn < n - 1) {
        written[in] = builder.ReceiveReduce(ring.previous, Output(coming.offset),
                                            Input(coming.offset), coming.length);
        if (spec.average && turn == n - 2) {
          written[in] = builder.Scale(Output(coming.offset), coming.length, {written[in]});
        }
      } else {
        written[in] =
            builder.Receive(ring.previous, Output(coming.offset), coming.length, {sent[in]});
      }
    }
  }
  return std::move(builder).Finish();
}

// As the first half of AllReduce, one part further on, so that rank r ends with its own. What is on
// its way lies in two scratch parts, used in turns.
RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  const Ring ring(spec);
  const int n = ring.n;
  ScheduleBuilder builder;
  if (n == 1) {
    if (!spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
    return std::move(builder).Finish();
  }
  const uint64_t chunks = ChunkCount(spec.count, spec.chunk);
  Place scratch[2] = {};
  for (int i = 0; i < 2 && i < n - 2; ++i) scratch[i] = builder.Scratch(spec.count);
  std::vector<uint32_t> written[2], sent[2];
  for (int i = 0; i < 2; ++i) written[i].assign(chunks, kNone), sent[i].assign(chunks, kNone);
  for (int turn = 0; turn < n - 1; ++turn) {
    const int to = turn % 2, from = 1 - to;  // scratch parts of this turn
    for (uint64_t index = 0; index < chunks; ++index) {
      const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, index);
      const uint64_t first = static_cast<uint64_t>(Around(ring.rank, -1, n)) * spec.count;
      const Place going = turn == 0 ? Input(first) : scratch[from];
      const uint32_t send = builder.Send(ring.next, going + chunk.offset, chunk.length,
                                         {turn == 0 ? kNone : written[from][index]});
      if (turn > 0) sent[from][index] = send;  // before its scratch is used again
      const uint64_t part = static_cast<uint64_t>(Around(ring.rank, -turn - 2, n)) * spec.count;
      const bool last = turn == n - 2;
      const Place out = (last ? Output(0) : scratch[to]) + chunk.offset;
      written[to][index] = builder.ReceiveReduce(ring.previous, out, Input(part) + chunk.offset,
                                                 chunk.length, {last ? kNone : sent[to][index]});
      if (last && spec.average) builder.Scale(out, chunk.length, {written[to][index]});
    }
  }
  return std::move(builder).Finish();
}

RankSchedule AllGather(const CollectiveSpec& spec) {
  const Ring ring(spec);
  const int n = ring.n;
  ScheduleBuilder builder;
  auto part = [&](int turn) {
    return static_cast<uint64_t>(Around(ring.rank, -turn, n)) * spec.count;
  };
  if (!spec.in_place) builder.Copy(Output(part(0)), Input(0), spec.count);
  const uint64_t chunks = ChunkCount(spec.count, spec.chunk);
  std::vector<uint32_t> arrival(chunks, kNone);
  for (int turn = 0; turn < n - 1; ++turn) {
    for (uint64_t index = 0; index < chunks; ++index) {
      const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, index);
      const Place from = turn == 0 ? Input(0) : Output(part(turn));
      builder.Send(ring.next, from + chunk.offset, chunk.length, {arrival[index]});
      arrival[index] =
          builder.Receive(ring.previous, Output(part(turn + 1)) + chunk.offset, chunk.length);
    }
  }
  return std::move(builder).Finish();
}

// A chain from the root round to the rank before it.
RankSchedule Broadcast(const CollectiveSpec& spec) {
  const Ring ring(spec);
  ScheduleBuilder builder;
  const bool is_root = spec.rank == spec.root;
  const bool is_last = ring.next == spec.root;
  for (uint64_t index = 0; index < ChunkCount(spec.count, spec.chunk); ++index) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, index);
    uint32_t here = kNone;
    if (!is_root) here = builder.Receive(ring.previous, Output(chunk.offset), chunk.length);
    const Place from = is_root ? Input(chunk.offset) : Output(chunk.offset);
    if (!is_last) builder.Send(ring.next, from, chunk.length, {here});
    if (is_root && !spec.in_place) {
      builder.Copy(Output(chunk.offset), Input(chunk.offset), chunk.length);
    }
  }
  return std::move(builder).Finish();
}

}  // namespace

bool RingHas(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllGather || kind == CollectiveKind::kBroadcast;
}

RankSchedule BuildRing(const CollectiveSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(spec);
    case CollectiveKind::kAllGather:
      return AllGather(spec);
    case CollectiveKind::kBroadcast:
      return Broadcast(spec);
    default:
      return AllReduce(spec);
  }
}

}  // namespace weft::collectives
