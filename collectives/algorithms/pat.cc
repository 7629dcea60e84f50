// Parallel aggregated trees: each part travels along a binomial tree of its own, all n trees at
// once, the farthest hops first (Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter
// operations at scale", 2025). log2(n) turns for any number of ranks, as Bruck; but the far hops
// carry one part, and the near ones many. Parts of one turn to one rank travel in one message as
// long as they fit into a chunk, else each in a message of its own, from where it lies to where it
// belongs. Reduce-scatter is the same backwards: nearest hops first, partial sums towards the
// owner. Departure from the paper: the buffers for aggregation are one chunk a message, not a fixed
// pool.
#include <cmath>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"

namespace weft::collectives {
namespace {

// The parts that travel from rank `upper` to the rank `hop` on, or, in a reduction, the other way
// round; cut into messages. A part belongs to the rank at a multiple of 2 hops before `upper`.
std::vector<std::vector<int>> Messages(const std::vector<Stretch>& parts, int upper, int hop,
                                       uint64_t chunk) {
  const int n = static_cast<int>(parts.size());
  std::vector<std::vector<int>> messages;
  uint64_t length = 0;
  for (int offset = 0; offset + hop < n; offset += 2 * hop) {
    const int owner = Around(upper, -offset, n);
    if (parts[owner].length == 0) continue;
    if (messages.empty() || length + parts[owner].length > chunk) {
      messages.emplace_back();
      length = 0;
    }
    messages.back().push_back(owner);
    length += parts[owner].length;
  }
  return messages;
}

uint64_t LengthOf(const std::vector<Stretch>& parts, const std::vector<int>& which) {
  uint64_t length = 0;
  for (int part : which) length += parts[part].length;
  return length;
}

// Where each part lies, and the step after which it is there.
struct Held {
  Place at;
  uint32_t since = kNone;
};

void Send(ScheduleBuilder& builder, int peer, const std::vector<Stretch>& parts,
          const std::vector<Held>& held, const std::vector<int>& which) {
  if (which.size() == 1) {
    builder.Send(peer, held[which[0]].at, parts[which[0]].length, {held[which[0]].since});
    return;
  }
  const uint64_t length = LengthOf(parts, which);
  Place packed = builder.Scratch(length);
  std::vector<uint32_t> copies;
  uint64_t offset = 0;
  for (int part : which) {
    copies.push_back(
        builder.Copy(packed + offset, held[part].at, parts[part].length, {held[part].since}));
    offset += parts[part].length;
  }
  builder.Send(peer, packed, length);
  builder.AlsoAfter(copies);
}

RankSchedule AllGather(const CollectiveSpec& spec) {
  const int n = spec.size, rank = spec.rank;
  ScheduleBuilder builder;
  const std::vector<Stretch> parts = GatheredParts(spec);
  std::vector<Held> held(n);
  held[rank].at = Input(0);
  if (!spec.in_place) builder.Copy(Output(parts[rank].offset), Input(0), parts[rank].length);
  for (int hop = (1 << Log2Ceil(n)) / 2; hop >= 1; hop /= 2) {
    for (const auto& which : Messages(parts, rank, hop, spec.chunk)) {
      Send(builder, Around(rank, hop, n), parts, held, which);
    }
    const int from = Around(rank, -hop, n);
    for (const auto& which : Messages(parts, from, hop, spec.chunk)) {
      if (which.size() == 1) {
        Held& part = held[which[0]];
        part.at = Output(parts[which[0]].offset);
        part.since = builder.Receive(from, part.at, parts[which[0]].length);
        continue;
      }
      const Place packed = builder.Scratch(LengthOf(parts, which));
      const uint32_t arrival = builder.Receive(from, packed, LengthOf(parts, which));
      uint64_t offset = 0;
      for (int part : which) {
        held[part].at = Output(parts[part].offset);
        held[part].since =
            builder.Copy(held[part].at, packed + offset, parts[part].length, {arrival});
        offset += parts[part].length;
      }
    }
  }
  return std::move(builder).Finish();
}

RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  const int n = spec.size, rank = spec.rank;
  const uint64_t count = spec.count;
  ScheduleBuilder builder;
  std::vector<Stretch> parts(n);
  std::vector<Held> held(n);
  for (int r = 0; r < n; ++r) {
    parts[r] = {static_cast<uint64_t>(r) * count, count};
    held[r].at = Input(parts[r].offset);
  }
  // Where the sum so far of an owner's part goes.
  auto place = [&](int owner) {
    if (held[owner].at.buffer != Buffer::kInput) return held[owner].at;
    return owner == rank ? Output(0) : builder.Scratch(count);
  };
  for (int hop = 1; hop < n; hop *= 2) {
    const int to = Around(rank, -hop, n), from = Around(rank, hop, n);
    for (const auto& which : Messages(parts, to, hop, spec.chunk)) {
      Send(builder, to, parts, held, which);
    }
    for (const auto& which : Messages(parts, rank, hop, spec.chunk)) {
      Place packed;
      uint32_t arrival = kNone;
      if (which.size() > 1) {
        packed = builder.Scratch(which.size() * count);
        arrival = builder.Receive(from, packed, which.size() * count);
      }
      for (size_t i = 0; i < which.size(); ++i) {
        Held& sum = held[which[i]];
        const Place out = place(which[i]);
        sum.since = which.size() == 1 ? builder.ReceiveReduce(from, out, sum.at, count, {sum.since})
                                      : builder.Reduce(out, sum.at, packed + i * count, count,
                                                       {sum.since, arrival});
        sum.at = out;
      }
    }
  }
  builder.Average(spec, held[rank].since);
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllGatherV ||
         kind == CollectiveKind::kReduceScatter;
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.kind != CollectiveKind::kReduceScatter) return AllGather(spec);
  return spec.size == 1 ? CopyAlone(spec) : ReduceScatter(spec);
}

Cost CostOf(const CollectiveSpec& spec) {
  const int n = spec.size;
  const bool reduces = spec.kind == CollectiveKind::kReduceScatter;
  const uint64_t count =
      spec.kind == CollectiveKind::kAllGatherV ? LongestOf(GatheredParts(spec)) : spec.count;
  const std::vector<Stretch> parts(static_cast<size_t>(n), Stretch{0, count});
  Cost cost{.turns = static_cast<double>(Log2Ceil(n))};
  double moved = 0, copied = reduces ? 0 : 1, from_input = 0;  // parts
  for (int hop = 1; hop < n; hop *= 2) {
    for (const auto& which : Messages(parts, 0, hop, spec.chunk)) {
      const double size = static_cast<double>(which.size());
      cost.messages += 1;
      moved += size;
      if (which.size() > 1) copied += 2 * size;
      if (which.size() > 1 || which[0] != 0) continue;
      from_input += 1;  // the own part, as it is
      // Its sum so far is what the next contribution is added to on arrival.
      if (reduces && hop > 1) cost.posts += 1;
    }
  }
  cost.staged = reduces || moved == 0 ? 1 : 1 - from_input / moved;
  cost.elements = moved * static_cast<double>(count);
  cost.copied = copied * static_cast<double>(count);
  if (reduces) cost.reduced = cost.elements;
  cost = SpreadOverHosts(cost, spec);
  BetweenSwitches between(spec);
  for (int hop = 1; hop < n && between.any(); hop *= 2) {
    const double carried = std::ceil(static_cast<double>(n - hop) / (2 * hop));  // parts
    for (int rank = 0; rank < n; ++rank) {
      const int other = Around(rank, reduces ? -hop : hop, n);
      between.Add(rank, other, carried * static_cast<double>(count));
    }
    between.EndExchange(carried * static_cast<double>(count), cost);
  }
  return cost;
}

}  // namespace

const Algorithm kPat{"pat", &Has, &Build, &CostOf};

}  // namespace weft::collectives
