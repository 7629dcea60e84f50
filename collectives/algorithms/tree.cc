// Double binary tree, pipelined: chunks go up (reduce) and down (broadcast) one of two binary trees
// by turns; who has children in one tree is a leaf in the other, so that every rank's link is busy
// (Sanders, Speck, Traeff, 2009; paths.h). log2(n) turns and full bandwidth: for medium and large
// sizes on many ranks. With a root, the trees are those of the other ranks, and the root feeds, or
// empties, both.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"

namespace weft::collectives {
namespace {

// Chunks of a reduction to a root that a rank holds at once, in each tree.
constexpr uint64_t kSlots = 4;

// A hop takes no longer than this many chunks take to leave: 8 us, and four chunks that share the
// link, with the planner's shortest chunks (16 KiB) at 400 Gbit/s.
constexpr uint64_t kHopChunks = 28;

// Both trees have work: at least two chunks.
uint64_t ChunkLength(const CollectiveSpec& spec) {
  return std::max<uint64_t>(std::min(spec.chunk, (spec.count + 1) / 2), 1);
}

// The tree over all ranks, numbered as they are.
TreeNode NodeOf(const CollectiveSpec& spec, int rank, int which) {
  return DoubleTreeNode(spec.size, rank, which);
}

// With the root above the trees of the n-1 others, which are numbered from it round.
TreeNode RootedNodeOf(const CollectiveSpec& spec, int rank, int which) {
  const int n = spec.size, others = n - 1;
  auto number = [&](int node) { return Around(spec.root, node + 1, n); };
  if (rank == spec.root) return {.children = {number(DoubleTreeRoot(others, which))}};
  TreeNode node = DoubleTreeNode(others, Around(rank, -spec.root - 1, n), which);
  node.parent = node.parent < 0 ? spec.root : number(node.parent);
  for (int& child : node.children) child = number(child);
  return node;
}

RankSchedule AllReduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const TreeNode nodes[2] = {NodeOf(spec, spec.rank, 0), NodeOf(spec, spec.rank, 1)};
  const uint64_t length = ChunkLength(spec), chunks = ChunkCount(spec.count, length);
  // A result comes down when this many more chunks have gone up. A rank's parent in one tree may be
  // its child in the other, and what it is sent leaves in this order: a chunk would wait to go up
  // for a result that has still to come by way of the root, 2 * depth hops. In a round two chunks
  // leave, one up and one down.
  const uint64_t depth = static_cast<uint64_t>(DoubleTreeDepth(spec.size));
  const uint64_t lag = std::min(depth * kHopChunks, chunks);
  std::vector<uint32_t> up(chunks, kNone);  // what the chunk's result is after
  for (uint64_t round = 0; round < chunks + lag; ++round) {
    if (round < chunks) {
      const TreeNode& node = nodes[round % 2];
      const Stretch chunk = ChunkOf({0, spec.count}, length, round);
      uint32_t last = kNone;
      Place sum = Input(chunk.offset);
      for (int child : node.children) {
        last = builder.ReceiveReduce(child, Output(chunk.offset), sum, chunk.length, {last});
        sum = Output(chunk.offset);
      }
      if (node.parent >= 0) {
        const uint32_t send = builder.Send(node.parent, sum, chunk.length, {last});
        up[round] = sum.buffer == Buffer::kOutput || spec.in_place ? send : kNone;
      } else {
        up[round] = builder.Average(spec, last);
      }
    }
    if (round < lag) continue;
    const TreeNode& node = nodes[(round - lag) % 2];
    const Stretch chunk = ChunkOf({0, spec.count}, length, round - lag);
    uint32_t here = up[round - lag];
    if (node.parent >= 0) {
      here = builder.Receive(node.parent, Output(chunk.offset), chunk.length, {here});
    }
    for (int child : node.children) {
      builder.Send(child, Output(chunk.offset), chunk.length, {here});
    }
  }
  return std::move(builder).Finish();
}

RankSchedule Broadcast(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const TreeNode nodes[2] = {RootedNodeOf(spec, spec.rank, 0), RootedNodeOf(spec, spec.rank, 1)};
  const bool is_root = spec.rank == spec.root;
  const uint64_t length = ChunkLength(spec);
  for (uint64_t index = 0; index < ChunkCount(spec.count, length); ++index) {
    const TreeNode& node = nodes[index % 2];
    const Stretch chunk = ChunkOf({0, spec.count}, length, index);
    uint32_t here = kNone;
    if (!is_root) here = builder.Receive(node.parent, Output(chunk.offset), chunk.length);
    const Place from = is_root ? Input(chunk.offset) : Output(chunk.offset);
    for (int child : node.children) builder.Send(child, from, chunk.length, {here});
    if (is_root && !spec.in_place) {
      builder.Copy(Output(chunk.offset), Input(chunk.offset), chunk.length);
    }
  }
  return std::move(builder).Finish();
}

RankSchedule Reduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const TreeNode nodes[2] = {RootedNodeOf(spec, spec.rank, 0), RootedNodeOf(spec, spec.rank, 1)};
  const bool is_root = spec.rank == spec.root;
  const uint64_t length = ChunkLength(spec);
  const bool inner = !is_root && nodes[0].children.size() + nodes[1].children.size() > 0;
  const Place slots = builder.Scratch(inner ? 2 * kSlots * length : 0);
  std::vector<uint32_t> sent(2 * kSlots, kNone);
  for (uint64_t index = 0; index < ChunkCount(spec.count, length); ++index) {
    const TreeNode& node = nodes[index % 2];
    const Stretch chunk = ChunkOf({0, spec.count}, length, index);
    const size_t slot = index % (2 * kSlots);
    const Place out = is_root ? Output(chunk.offset) : slots + slot * length;
    Place sum = Input(chunk.offset);
    uint32_t last = sent[slot];
    for (int child : node.children) {
      last = builder.ReceiveReduce(child, out, sum, chunk.length, {last});
      sum = out;
    }
    if (is_root) {
      builder.Average(spec, last);
    } else {
      const bool leaf = node.children.empty();
      const uint32_t send = builder.Send(node.parent, sum, chunk.length, {leaf ? kNone : last});
      if (!leaf) sent[slot] = send;
    }
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kBroadcast;
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kReduce:
      return Reduce(spec);
    case CollectiveKind::kBroadcast:
      return Broadcast(spec);
    default:
      return AllReduce(spec);
  }
}

Cost CostOf(const CollectiveSpec& spec) {
  Cost cost;
  if (spec.size == 1) return cost;
  const bool all = spec.kind == CollectiveKind::kAllReduce;
  const uint64_t length = ChunkLength(spec), chunks = ChunkCount(spec.count, length);
  const double count = static_cast<double>(spec.count);
  const double depth = all ? DoubleTreeDepth(spec.size) : DoubleTreeDepth(spec.size - 1) + 1;
  const uint64_t evens = (chunks + 1) / 2;
  const double even_chunks = static_cast<double>(evens), all_chunks = static_cast<double>(chunks);
  const double carried[2] = {std::min(even_chunks * static_cast<double>(length), count),
                             (all_chunks - even_chunks) * static_cast<double>(length)};
  const double chunks_of[2] = {even_chunks, all_chunks - even_chunks};
  BetweenSwitches between(spec);
  double moved = 0;
  for (int rank = 0; rank < spec.size; ++rank) {
    double from_children = 0, from_parents = 0, messages = 0, messages_up = 0;  // elements
    for (int which = 0; which < 2; ++which) {
      const TreeNode node = all ? NodeOf(spec, rank, which) : RootedNodeOf(spec, rank, which);
      const double children = static_cast<double>(node.children.size());
      from_children += children * carried[which];
      for (size_t c = 0; c < node.children.size() && between.any(); ++c) {
        between.Add(node.children[c], rank, carried[which]);
        if (all) between.Add(rank, node.children[c], carried[which]);
      }
      messages += children * chunks_of[which];
      if (node.parent < 0) continue;
      from_parents += carried[which];
      messages_up += chunks_of[which];
    }
    const double taken = all ? from_children + from_parents : std::max(from_children, from_parents);
    cost.elements = std::max(cost.elements, taken);
    cost.messages =
        std::max(cost.messages, all ? messages + messages_up : std::max(messages, messages_up));
    moved += all ? from_children + from_parents : from_children;
    if (Reduces(spec.kind)) cost.reduced = std::max(cost.reduced, from_children);
  }
  cost.turns = all ? 2 * depth : depth;
  cost.fill = (cost.turns - 1) * static_cast<double>(length);
  // Of a broadcast only the root's messages, to one rank in all, leave from the input.
  const double others = spec.size - 1;
  cost.staged = Reduces(spec.kind) ? 1 : (others - 1) / others;
  // At each node the second child's receive is posted when the first child's has arrived. The root
  // of a tree of a power of two has one child.
  const int nodes = all ? spec.size : spec.size - 1;
  const int twos = DoubleTreeDepth(nodes) - ((nodes & (nodes - 1)) == 0 ? 1 : 0);
  if (Reduces(spec.kind)) cost.posts = 2 * std::max(twos, 0);
  if (spec.kind == CollectiveKind::kBroadcast) cost.copied = cost.received = count;
  cost.balance = cost.elements > 0 ? moved / (cost.elements * spec.size) : 1;
  cost = SpreadOverHosts(cost, spec);
  if (between.any()) cost.elements_beyond = between.Most();
  if (!Reduces(spec.kind) || cost.turns_across == 0) return cost;
  // At each node the second child's partial sum waits for the first's, and so the first chunk does;
  // and with it each slot is used by two receives and a send.
  cost.in_order = depth - 1;
  if (all) return cost;
  cost.fill += cost.in_order * static_cast<double>(length);
  if (evens > kSlots) cost.paths = 2;  // else it is over before the links are full
  return ThroughSlots(cost, evens, length, kSlots, 3);
}

}  // namespace

const Algorithm kTree{"tree", &Has, &Build, &CostOf};

}  // namespace weft::collectives
