// Bruck: log2(n) turns for any number of ranks (Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient
// algorithms for all-to-all communications in multiport message-passing systems", 1997). For small
// sizes.
//
// All-gather (section 4): a rank that holds the parts of h ranks, from its own round, sends them h
// ranks back and gets as many from h ranks ahead. They lie in rank order, so that no rotation is
// needed in the end; a message is cut where its stretch passes the last rank.
// All-to-all (section 3): in turn k a rank passes on all blocks whose distance still to go has
// bit k, packed into one message: fewer messages, each block up to log2(n) times.
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"

namespace weft::collectives {
namespace {

// Parts one behind the other in the order of ranks, and the step that wrote each.
struct Row {
  Row(const std::vector<Stretch>& parts, Place buffer)
      : base(buffer), starts(1, 0), writers(parts.size(), kNone) {
    for (const Stretch& part : parts) starts.push_back(starts.back() + part.length);
  }
  uint64_t Length(int begin, int end) const { return starts[end] - starts[begin]; }
  Place At(int part) const { return base + starts[part]; }

  Place base;
  std::vector<uint64_t> starts;
  std::vector<uint32_t> writers;
};

// Parts [first, first + parts), round, in up to two messages, when those of the last turn have
// gone: a turn that shared the wire with the next would make all that wait for it later.
void SendParts(ScheduleBuilder& builder, const Row& row, int peer, int first, int parts,
               std::vector<uint32_t>& turn) {
  const int n = static_cast<int>(row.writers.size()), end = std::min(first + parts, n);
  const std::pair<int, int> runs[2] = {{first, end}, {0, first + parts - end}};
  std::vector<uint32_t> sent;
  for (const auto& [begin, limit] : runs) {
    sent.push_back(builder.Send(peer, row.At(begin), row.Length(begin, limit)));
    builder.AlsoAfter(turn);
    uint32_t last = kNone;
    for (int part = begin; part < limit; ++part) {
      if (row.writers[part] != last) builder.AlsoAfter(row.writers[part]);
      last = row.writers[part];
    }
  }
  turn = std::move(sent);
}

void ReceiveParts(ScheduleBuilder& builder, Row& row, int peer, int first, int parts) {
  const int n = static_cast<int>(row.writers.size()), end = std::min(first + parts, n);
  const std::pair<int, int> runs[2] = {{first, end}, {0, first + parts - end}};
  for (const auto& [begin, limit] : runs) {
    const uint32_t step = builder.Receive(peer, row.At(begin), row.Length(begin, limit));
    for (int part = begin; part < limit; ++part) row.writers[part] = step;
  }
}

RankSchedule AllGather(const CollectiveSpec& spec) {
  const int n = spec.size, rank = spec.rank;
  ScheduleBuilder builder;
  const std::vector<Stretch> parts = GatheredParts(spec);
  const bool even = spec.kind == CollectiveKind::kAllGather;
  const Stretch own = parts[rank];
  Row row(parts, even ? Output(0) : builder.Scratch(LengthOf(parts)));
  if (!spec.in_place || !even) {
    row.writers[rank] = builder.Copy(row.At(rank), Input(0), own.length);
  }
  std::vector<uint32_t> turn;  // sends of the last one
  for (int have = 1; have < n; have *= 2) {
    const int more = std::min(have, n - have);
    SendParts(builder, row, Around(rank, -have, n), rank, more, turn);
    ReceiveParts(builder, row, Around(rank, have, n), Around(rank, have, n), more);
  }
  if (even) return std::move(builder).Finish();
  for (int part = 0; part < n; ++part) {
    if (part == rank && spec.in_place) continue;
    builder.Copy(Output(parts[part].offset), row.At(part), parts[part].length, {row.writers[part]});
  }
  return std::move(builder).Finish();
}

// A block under way: where it is, the step that wrote it there, and the first step that read it.
struct Block {
  Place at;
  uint32_t written = kNone, read = kNone;
};

// Packs blocks `which` into scratch; neighbours in one copy. A single block stays where it is.
Place Pack(ScheduleBuilder& builder, std::vector<Block>& blocks, const std::vector<int>& which,
           uint64_t count, std::vector<uint32_t>& after) {
  if (which.size() == 1) {
    after.push_back(blocks[which[0]].written);
    return blocks[which[0]].at;
  }
  const Place packed = builder.Scratch(which.size() * count);
  for (size_t i = 0; i < which.size();) {
    const Block& first = blocks[which[i]];
    size_t run = 1;
    for (; i + run < which.size(); ++run) {
      const Block& next = blocks[which[i + run]];
      if (!(next.at == first.at + run * count) || next.written != first.written) break;
    }
    const uint32_t copy = builder.Copy(packed + i * count, first.at, run * count, {first.written});
    after.push_back(copy);
    for (size_t k = 0; k < run; ++k) blocks[which[i + k]].read = copy;
    i += run;
  }
  return packed;
}

RankSchedule AllToAll(const CollectiveSpec& spec) {
  const int n = spec.size, rank = spec.rank;
  const uint64_t count = spec.count;
  ScheduleBuilder builder;
  std::vector<Block> blocks(n);  // by distance; in the end: from the rank that far back
  for (int i = 0; i < n; ++i) {
    blocks[i].at = Input(static_cast<uint64_t>(Around(rank, i, n)) * count);
  }
  std::vector<uint32_t> read(n, kNone);  // by distance: the step that read the input's block
  for (int bit = 1; bit < n; bit *= 2) {
    std::vector<int> which;
    for (int i = bit; i < n; ++i) {
      if (i & bit) which.push_back(i);
    }
    std::vector<uint32_t> after;
    const uint64_t length = which.size() * count;
    const Place going = Pack(builder, blocks, which, count, after);
    const uint32_t send = builder.Send(Around(rank, bit, n), going, length);
    builder.AlsoAfter(after);
    const Place coming = builder.Scratch(length);
    const uint32_t arrival = builder.Receive(Around(rank, -bit, n), coming, length);
    for (size_t k = 0; k < which.size(); ++k) {
      Block& block = blocks[which[k]];
      if (block.at.buffer == Buffer::kInput) read[which[k]] = which.size() == 1 ? send : block.read;
      block = {coming + k * count, arrival};
    }
  }
  for (int i = spec.in_place ? 1 : 0; i < n; ++i) {
    // In place, a block replaces the one that was to go there.
    builder.Copy(Output(static_cast<uint64_t>(Around(rank, -i, n)) * count), blocks[i].at, count,
                 {blocks[i].written, spec.in_place ? read[n - i] : kNone});
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllGatherV ||
         kind == CollectiveKind::kAllToAll;
}

RankSchedule Build(const CollectiveSpec& spec) {
  return spec.kind == CollectiveKind::kAllToAll ? AllToAll(spec) : AllGather(spec);
}

Cost CostOf(const CollectiveSpec& spec) {
  const int n = spec.size;
  Cost cost{.turns = static_cast<double>(Log2Ceil(n))};
  double blocks = 0, packed = 0;
  for (int bit = 1; bit < n; bit *= 2) {
    const int gathered = std::min(bit, n - bit);
    int passed = 0;
    for (int i = bit; i < n; ++i) passed += (i & bit) != 0;
    const bool gathers = spec.kind != CollectiveKind::kAllToAll;
    cost.messages += gathers && gathered > 1 ? 2 : 1;
    blocks += gathers ? gathered : passed;
    packed += passed > 1 ? passed : 0;
  }
  double count = static_cast<double>(spec.count);
  cost.staged = 1;  // a rank sends what it has packed, or copied to the output
  if (spec.kind == CollectiveKind::kAllToAll) {
    cost.copied = (packed + n) * count;
    cost.staged = blocks > 0 ? packed / blocks : 0;
  } else if (spec.kind == CollectiveKind::kAllGather) {
    cost.copied = count;
  } else {
    const std::vector<Stretch> parts = GatheredParts(spec);
    count = static_cast<double>(LongestOf(parts));
    cost.copied = count + static_cast<double>(LengthOf(parts));
  }
  cost.elements = blocks * count;
  return SpreadOverHosts(cost, spec);
}

}  // namespace

const Algorithm kBruck{"bruck", &Has, &Build, &CostOf};

}  // namespace weft::collectives
