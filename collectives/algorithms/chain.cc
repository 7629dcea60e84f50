// Chain: the buffer goes from rank to rank in chunks, each rank passing on a chunk while the next
// comes in. Broadcast from the root to the last rank; reduce from the last rank to the root. For
// large buffers: a rank's link carries each element once, however many ranks there are.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"
#include "collectives/algorithms/unplanned.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

// Chunks of a reduction that a rank between others holds at once.
constexpr uint64_t kSlots = 4;

// The neighbours towards the root and away from it; -1: none.
struct Links {
  explicit Links(const CollectiveSpec& spec) {
    std::vector<int> order = RingOrder(spec, 0);
    std::rotate(order.begin(), std::find(order.begin(), order.end(), spec.root), order.end());
    const size_t at =
        static_cast<size_t>(std::find(order.begin(), order.end(), spec.rank) - order.begin());
    if (at > 0) to_root = order[at - 1];
    if (at + 1 < order.size()) from_root = order[at + 1];
  }
  int to_root = -1, from_root = -1;
};

RankSchedule Broadcast(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const Links links(spec);
  const bool is_root = links.to_root < 0;
  for (uint64_t index = 0; index < ChunkCount(spec.count, spec.chunk); ++index) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, index);
    uint32_t here = kNone;
    if (!is_root) here = builder.Receive(links.to_root, Output(chunk.offset), chunk.length);
    const Place from = is_root ? Input(chunk.offset) : Output(chunk.offset);
    if (links.from_root >= 0) builder.Send(links.from_root, from, chunk.length, {here});
    if (is_root && !spec.in_place) {
      builder.Copy(Output(chunk.offset), Input(chunk.offset), chunk.length);
    }
  }
  return std::move(builder).Finish();
}

RankSchedule Reduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const Links links(spec);
  const bool between = links.to_root >= 0 && links.from_root >= 0;
  const uint64_t slot = std::min(spec.chunk, spec.count);
  const Place slots = builder.Scratch(between ? kSlots * slot : 0);
  std::vector<uint32_t> sent(kSlots, kNone);
  for (uint64_t index = 0; index < ChunkCount(spec.count, spec.chunk); ++index) {
    const Stretch chunk = ChunkOf({0, spec.count}, spec.chunk, index);
    const Place out = between ? slots + index % kSlots * slot : Output(chunk.offset);
    uint32_t here = kNone;
    if (links.from_root >= 0) {
      here = builder.ReceiveReduce(links.from_root, out, Input(chunk.offset), chunk.length,
                                   {sent[index % kSlots]});
    }
    if (links.to_root >= 0) {
      const uint32_t send =
          builder.Send(links.to_root, between ? out : Input(chunk.offset), chunk.length, {here});
      if (between) sent[index % kSlots] = send;
    } else {
      builder.Average(spec, here);
    }
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1) return CopyAlone(spec);
  return spec.kind == CollectiveKind::kReduce ? Reduce(spec) : Broadcast(spec);
}

Cost CostOf(const CollectiveSpec& spec) {
  const double n = spec.size, count = static_cast<double>(spec.count);
  const bool reduces = spec.kind == CollectiveKind::kReduce;
  Cost cost{.turns = n - 1,
            .messages = static_cast<double>(ChunkCount(spec.count, spec.chunk)),
            .elements = count,
            .staged = reduces ? 1 : std::max(n - 2, 0.0) / std::max(n - 1, 1.0),
            .reduced = reduces ? count : 0,
            .copied = reduces ? 0 : count,
            .fill = std::max(n - 2, 0.0) * static_cast<double>(std::min(spec.chunk, spec.count)),
            .balance = (n - 1) / n};
  if (spec.place != nullptr && spec.place->hosts.size() > 1) {
    const double hosts = static_cast<double>(spec.place->hosts.size());
    cost.turns_across = hosts - 1;
    cost.fill_inside = (n - hosts) * static_cast<double>(std::min(spec.chunk, spec.count));
    cost.elements_across = count;
    cost.elements_beyond = count * RingLoad(spec.place.get());
    if (reduces) {
      cost = ThroughSlots(cost, ChunkCount(spec.count, spec.chunk), spec.chunk, kSlots, 2);
    }
  }
  return cost;
}

}  // namespace

const Algorithm kChain{"chain", &Has, &Build, &CostOf};

}  // namespace weft::collectives
