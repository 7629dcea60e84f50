// Broadcast of large buffers by a binomial scatter and a ring all-gather (Barnett, Gupta, Payne,
// Shuler, van de Geijn, Watts, "Interprocessor collective communication library (InterCom)", 1994;
// Thakur, Rabenseifner, Gropp, 2005, section 4.3). Nodes are the ranks counted from the root round.
// What the scatter has given to a node, the ring does not give it again; the root gets nothing.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"

namespace weft::collectives {
namespace {

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1) return CopyAlone(spec);
  const int n = spec.size, node = Around(spec.rank, -spec.root, n);
  auto rank_of = [&](int which) { return Around(spec.root, which, n); };
  auto stretch = [&](int first, int parts) {
    const uint64_t begin = PartOf(spec.count, n, first).offset;
    const Stretch last = PartOf(spec.count, n, first + parts - 1);
    return Stretch{begin, last.offset + last.length - begin};
  };
  ScheduleBuilder builder;
  const TreeNode tree = BinomialNode(n, node);
  const int held = BinomialSubtree(n, node);
  uint32_t scattered = kNone;
  if (node != 0) {
    const Stretch own = stretch(node, held);
    scattered = builder.Receive(rank_of(tree.parent), Output(own.offset), own.length);
  }
  auto at = [&](uint64_t offset) { return node == 0 ? Input(offset) : Output(offset); };
  for (int child : tree.children) {
    const Stretch theirs = stretch(child, BinomialSubtree(n, child));
    builder.Send(rank_of(child), at(theirs.offset), theirs.length, {scattered});
  }
  if (node == 0 && !spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
  const uint64_t chunks = ChunkCount(PartOf(spec.count, n, 0).length, spec.chunk);
  std::vector<uint32_t> arrival(chunks, kNone);  // of the part that came last
  const int next = (node + 1) % n, previous = Around(node, -1, n);
  const int sends = n - BinomialSubtree(n, next), receives = n - held;
  for (int turn = 0; turn < std::max(sends, receives); ++turn) {
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      if (turn < sends) {
        const int index = Around(node, -turn, n);
        const Stretch part = ChunkOf(PartOf(spec.count, n, index), spec.chunk, chunk);
        const bool own = index >= node && index < node + held;
        builder.Send(rank_of(next), at(part.offset), part.length,
                     {own ? scattered : arrival[chunk]});
      }
      if (turn >= receives) continue;
      const Stretch part =
          ChunkOf(PartOf(spec.count, n, Around(node, -turn - 1, n)), spec.chunk, chunk);
      arrival[chunk] = builder.Receive(rank_of(previous), Output(part.offset), part.length);
    }
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) { return kind == CollectiveKind::kBroadcast; }

Cost CostOf(const CollectiveSpec& spec) {
  const double n = spec.size, count = static_cast<double>(spec.count);
  if (spec.size == 1) return {};
  const Stretch part = PartOf(spec.count, spec.size, 0);
  const double length = static_cast<double>(part.length);
  const double chunks = static_cast<double>(ChunkCount(part.length, spec.chunk));
  // The root sends n-1 parts in the scatter and as many round the ring; every other rank gets n
  // parts at most. What came late by the scatter has the shortest way left to go round.
  Cost cost{.turns = n - 1,
            .messages = Log2Ceil(spec.size) + (n - 1) * chunks,
            .elements = 2 * (n - 1) * length,
            .received = n * length,
            .copied = count,
            .balance = 0.5};
  // What the root sends, in the scatter and round the ring, lies in its input.
  double scattered = 0, turns = 0;  // parts of all ranks
  for (int node = 1; node < spec.size; ++node) scattered += BinomialSubtree(spec.size, node);
  for (int node = 0; node < spec.size; ++node) {
    turns += n - BinomialSubtree(spec.size, (node + 1) % spec.size);
  }
  const double by_root = 2 * n - 1 - BinomialSubtree(spec.size, 1 % spec.size);
  cost.staged = std::max(1 - by_root / (scattered + turns), 0.0);
  return SpreadOverHosts(cost, spec);
}

}  // namespace

const Algorithm kScatterAllGather{"scatter_allgather", &Has, &Build, &CostOf};

}  // namespace weft::collectives
