// Ring: every rank sends to the next and receives from the one before, part by part, chunk by chunk
// (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
// A chunk moves on as soon as it has come, while the part's next chunk comes in. With several
// channels each carries a share of every part round a ring of its own (paths.h).
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"
#include "collectives/algorithms/unplanned.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

// One channel's ring, seen from this rank. Turn t of a walk: this rank sends what belongs to the
// rank t places before it, and receives what belongs to the rank t+1 places before it.
struct Ring {
  Ring(const CollectiveSpec& spec, int channel) : order(RingOrder(spec, channel)) {
    while (order[static_cast<size_t>(position)] != spec.rank) ++position;
  }
  int Before(int distance) const {
    const int n = static_cast<int>(order.size());
    return order[static_cast<size_t>(Around(position, -distance, n))];
  }
  std::vector<int> order;
  int position = 0;
};

std::vector<Ring> RingsOf(const CollectiveSpec& spec) {
  std::vector<Ring> rings;
  for (int c = 0; c < spec.channels; ++c) rings.emplace_back(spec, c);
  return rings;
}

// What of a part travels on a channel.
Stretch ShareOf(Stretch part, int channels, int channel) {
  const Stretch share = PartOf(part.length, channels, channel);
  return {part.offset + share.offset, share.length};
}

uint64_t ChunksOf(uint64_t part, const CollectiveSpec& spec) {
  return ChunkCount(PartOf(part, spec.channels, 0).length, spec.chunk);
}

// Calls `visit(turn, chunk, channel)` in the order in which every rank posts its messages.
template <typename Visit>
void Walk(int turns, uint64_t chunks, int channels, const Visit& visit) {
  for (int turn = 0; turn < turns; ++turn) {
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int channel = 0; channel < channels; ++channel) visit(turn, chunk, channel);
    }
  }
}

// 2(n-1) turns: in the first n-1 parts are reduced on their way, so that each ends whole at the
// rank before its own; in the others they are stored.
RankSchedule AllReduce(const CollectiveSpec& spec) {
  const int n = spec.size, channels = spec.channels;
  ScheduleBuilder builder;
  const std::vector<Ring> rings = RingsOf(spec);
  const uint64_t chunks = ChunksOf(PartOf(spec.count, n, 0).length, spec);
  auto piece = [&](int part, int channel, uint64_t chunk) {
    return ChunkOf(ShareOf(PartOf(spec.count, n, part), channels, channel), spec.chunk, chunk);
  };
  auto index = [&](int part, int channel, uint64_t chunk) {
    return (static_cast<size_t>(part) * static_cast<size_t>(channels) +
            static_cast<size_t>(channel)) *
               chunks +
           chunk;
  };
  // By part, channel and chunk: the last step that wrote it, and the last that sent it.
  std::vector<uint32_t> written(index(n, 0, 0), kNone), sent = written;
  Walk(2 * (n - 1), chunks, channels, [&](int turn, uint64_t chunk, int channel) {
    const Ring& ring = rings[static_cast<size_t>(channel)];
    const size_t out = index(ring.Before(turn), channel, chunk);
    const Stretch going = piece(ring.Before(turn), channel, chunk);
    const Place from = turn == 0 ? Input(going.offset) : Output(going.offset);
    const uint32_t send = builder.Send(ring.Before(-1), from, going.length, {written[out]});
    // Before the part's result overwrites it.
    if (turn > 0 || spec.in_place) sent[out] = send;

    const size_t in = index(ring.Before(turn + 1), channel, chunk);
    const Stretch coming = piece(ring.Before(turn + 1), channel, chunk);
    if (turn < n - 1) {
      written[in] = builder.ReceiveReduce(ring.Before(1), Output(coming.offset),
                                          Input(coming.offset), coming.length);
      if (turn == n - 2) written[in] = builder.Average(spec, written[in]);
    } else {
      written[in] =
          builder.Receive(ring.Before(1), Output(coming.offset), coming.length, {sent[in]});
    }
  });
  return std::move(builder).Finish();
}

// As the first half of AllReduce, one part further on, so that each rank ends with its own. What is
// on its way lies in two scratch parts, used in turns.
RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  const int n = spec.size, channels = spec.channels;
  ScheduleBuilder builder;
  const std::vector<Ring> rings = RingsOf(spec);
  const uint64_t chunks = ChunksOf(spec.count, spec);
  Place scratch[2] = {};
  for (int i = 0; i < 2 && i < n - 2; ++i) scratch[i] = builder.Scratch(spec.count);
  // By scratch part, and channel and chunk.
  std::vector<uint32_t> written[2], sent[2];
  for (int i = 0; i < 2; ++i) {
    written[i].assign(chunks * static_cast<uint64_t>(channels), kNone), sent[i] = written[i];
  }
  Walk(n - 1, chunks, channels, [&](int turn, uint64_t chunk, int channel) {
    const Ring& ring = rings[static_cast<size_t>(channel)];
    const int to = turn % 2, from = 1 - to;  // scratch parts of this turn
    const size_t index = static_cast<size_t>(channel) * chunks + chunk;
    const Stretch piece = ChunkOf(ShareOf({0, spec.count}, channels, channel), spec.chunk, chunk);
    auto input = [&](int owner) {
      return Input(static_cast<uint64_t>(owner) * spec.count + piece.offset);
    };
    const Place going = turn == 0 ? input(ring.Before(1)) : scratch[from] + piece.offset;
    const uint32_t send = builder.Send(ring.Before(-1), going, piece.length,
                                       {turn == 0 ? kNone : written[from][index]});
    if (turn > 0) sent[from][index] = send;  // before its scratch is used again
    const bool last = turn == n - 2;
    const Place out = (last ? Output(0) : scratch[to]) + piece.offset;
    written[to][index] = builder.ReceiveReduce(ring.Before(1), out, input(ring.Before(turn + 2)),
                                               piece.length, {last ? kNone : sent[to][index]});
    if (last) builder.Average(spec, written[to][index]);
  });
  return std::move(builder).Finish();
}

RankSchedule AllGather(const CollectiveSpec& spec) {
  const int n = spec.size, channels = spec.channels;
  ScheduleBuilder builder;
  const std::vector<Ring> rings = RingsOf(spec);
  const std::vector<Stretch> parts = GatheredParts(spec);
  const Stretch own = parts[static_cast<size_t>(spec.rank)];
  if (!spec.in_place) builder.Copy(Output(own.offset), Input(0), own.length);
  const uint64_t chunks = ChunksOf(LongestOf(parts), spec);
  std::vector<uint32_t> arrival(chunks * static_cast<uint64_t>(channels), kNone);
  Walk(n - 1, chunks, channels, [&](int turn, uint64_t chunk, int channel) {
    const Ring& ring = rings[static_cast<size_t>(channel)];
    uint32_t& arrived = arrival[static_cast<size_t>(channel) * chunks + chunk];
    auto piece = [&](Stretch part) {
      return ChunkOf(ShareOf(part, channels, channel), spec.chunk, chunk);
    };
    const Stretch going = piece(turn == 0 ? Stretch{0, own.length} : parts[ring.Before(turn)]);
    builder.Send(ring.Before(-1), turn == 0 ? Input(going.offset) : Output(going.offset),
                 going.length, {arrived});
    const Stretch coming = piece(parts[ring.Before(turn + 1)]);
    arrived = builder.Receive(ring.Before(1), Output(coming.offset), coming.length);
  });
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllGatherV;
}

RankSchedule Build(const CollectiveSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kReduceScatter:
      return spec.size == 1 ? CopyAlone(spec) : ReduceScatter(spec);
    case CollectiveKind::kAllReduce:
      return spec.size == 1 ? CopyAlone(spec) : AllReduce(spec);
    default:
      return AllGather(spec);
  }
}

Cost CostOf(const CollectiveSpec& spec) {
  const double n = spec.size;
  Cost cost{.turns = n - 1};
  uint64_t part = spec.count;
  if (spec.kind == CollectiveKind::kAllReduce) {
    cost.turns = 2 * (n - 1);
    part = PartOf(spec.count, spec.size, 0).length;
  } else if (spec.kind == CollectiveKind::kAllGatherV) {
    part = LongestOf(GatheredParts(spec));
  }
  cost.messages = cost.turns * spec.channels * static_cast<double>(ChunksOf(part, spec));
  cost.elements = cost.turns * static_cast<double>(part);
  if (Reduces(spec.kind)) cost.reduced = (n - 1) * static_cast<double>(part);
  if (!Reduces(spec.kind)) cost.copied = static_cast<double>(part);
  // Only what is gathered leaves from the input, in the first turn.
  cost.staged = Reduces(spec.kind) ? 1 : std::max(n - 2, 0.0) / std::max(n - 1, 1.0);
  if (spec.place != nullptr && spec.place->hosts.size() > 1) {
    // One of each channel's n links leaves each host.
    cost.turns_across = cost.turns * static_cast<double>(spec.place->hosts.size()) / n;
    cost.elements_across = cost.elements;
    // And of each switch, whose hosts follow each other.
    cost.elements_beyond = cost.elements * RingLoad(spec.place.get());
    cost.lanes = std::min(spec.channels, spec.place->ranks_min);
    // While a turn's first chunk is on its way, the others of the turn are sent.
    const double chunks = static_cast<double>(ChunksOf(part, spec));
    const double share = static_cast<double>(part) / spec.channels;
    if (chunks > 1) cost.ahead = cost.turns_across * share * (1 - 1 / chunks);
  }
  return cost;
}

// Rings leave each host by as many ranks as there are channels, and by a NIC each.
std::vector<int> Channels(const CollectiveSpec& spec) {
  constexpr int kMost = 4;
  std::vector<int> channels{1};
  if (spec.place == nullptr) return channels;
  int most = std::min(kMost, spec.place->ranks_min);
  if (spec.place->nics > 0) most = std::min(most, spec.place->nics);
  for (int c = 2; c <= most; c *= 2) channels.push_back(c);
  return channels;
}

}  // namespace

const Algorithm kRing{"ring", &Has, &Build, &CostOf, nullptr, &Channels};

}  // namespace weft::collectives
