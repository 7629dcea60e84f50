// Binomial tree: whole buffers along a tree whose root sends to the nodes that are n/2, n/4, ..., 1
// away. log2(n) turns: for small sizes with a root. A node's subtree is a stretch of nodes, so that
// gather and scatter move the parts of a subtree in one message (two where the stretch passes the
// last rank).
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"

namespace weft::collectives {
namespace {

// The tree's nodes are the ranks counted from the root round.
struct Tree {
  explicit Tree(const CollectiveSpec& spec)
      : n(spec.size),
        root(spec.root),
        node(Around(spec.rank, -spec.root, spec.size)),
        links(BinomialNode(n, node)) {}
  int RankOf(int which) const { return Around(root, which, n); }
  int parent() const { return RankOf(links.parent); }
  bool is_root() const { return node == 0; }
  // Nodes of `first`'s subtree that come before rank 0, and from there on.
  int Before(int first) const { return std::min(BinomialSubtree(n, first), n - RankOf(first)); }
  int After(int first) const { return BinomialSubtree(n, first) - Before(first); }

  int n, root, node;
  TreeNode links;
};

RankSchedule Broadcast(const CollectiveSpec& spec) {
  const Tree tree(spec);
  ScheduleBuilder builder;
  uint32_t here = kNone;
  if (!tree.is_root()) here = builder.Receive(tree.parent(), Output(0), spec.count);
  for (int child : tree.links.children) {
    builder.Send(tree.RankOf(child), tree.is_root() ? Input(0) : Output(0), spec.count, {here});
  }
  if (tree.is_root() && !spec.in_place) builder.Copy(Output(0), Input(0), spec.count);
  return std::move(builder).Finish();
}

RankSchedule Reduce(const CollectiveSpec& spec) {
  const Tree tree(spec);
  ScheduleBuilder builder;
  const std::vector<int>& children = tree.links.children;
  Place sum = Input(0), out = Output(0);
  if (!tree.is_root() && !children.empty()) out = builder.Scratch(spec.count);
  uint32_t last = kNone;
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    last = builder.ReceiveReduce(tree.RankOf(*child), out, sum, spec.count, {last});
    sum = out;
  }
  if (!tree.is_root()) builder.Send(tree.parent(), sum, spec.count, {last});
  if (tree.is_root()) builder.Average(spec, last);
  return std::move(builder).Finish();
}

// Where the part of a node of the own subtree lies: at the root where its rank's part does, else in
// scratch, in the order of nodes.
Place PartAt(const CollectiveSpec& spec, const Tree& tree, Place buffer, int node) {
  const int part = tree.is_root() ? tree.RankOf(node) : node - tree.node;
  return buffer + static_cast<uint64_t>(part) * spec.count;
}

RankSchedule Gather(const CollectiveSpec& spec) {
  const Tree tree(spec);
  const uint64_t count = spec.count;
  ScheduleBuilder builder;
  const bool leaf = tree.links.children.empty() && !tree.is_root();
  if (leaf) {
    builder.Send(tree.parent(), Input(0), count);
    return std::move(builder).Finish();
  }
  const uint64_t nodes = static_cast<uint64_t>(BinomialSubtree(tree.n, tree.node));
  const Place parts = tree.is_root() ? Output(0) : builder.Scratch(nodes * count);
  uint32_t own = kNone;
  if (!tree.is_root() || !spec.in_place) {
    own = builder.Copy(PartAt(spec, tree, parts, tree.node), Input(0), count);
  }
  std::vector<uint32_t> before{own}, after;  // what wrote the parts before rank 0's, and the others
  for (auto child = tree.links.children.rbegin(); child != tree.links.children.rend(); ++child) {
    const int first = *child, split = tree.Before(first), rank = tree.RankOf(first);
    // Both sides of rank 0's part, as the own message to the parent will have them.
    const bool passed = first - tree.node >= tree.Before(tree.node);
    (passed ? after : before)
        .push_back(builder.Receive(rank, PartAt(spec, tree, parts, first),
                                   static_cast<uint64_t>(split) * count));
    after.push_back(builder.Receive(rank, PartAt(spec, tree, parts, (first + split) % tree.n),
                                    static_cast<uint64_t>(tree.After(first)) * count));
  }
  if (tree.is_root()) return std::move(builder).Finish();
  const uint64_t split = static_cast<uint64_t>(tree.Before(tree.node)) * count;
  builder.Send(tree.parent(), parts, split);
  builder.AlsoAfter(before);
  builder.Send(tree.parent(), parts + split, nodes * count - split);
  builder.AlsoAfter(after);
  return std::move(builder).Finish();
}

RankSchedule Scatter(const CollectiveSpec& spec) {
  const Tree tree(spec);
  const uint64_t count = spec.count;
  ScheduleBuilder builder;
  const bool leaf = tree.links.children.empty() && !tree.is_root();
  if (leaf) {
    builder.Receive(tree.parent(), Output(0), count);
    return std::move(builder).Finish();
  }
  const uint64_t nodes = static_cast<uint64_t>(BinomialSubtree(tree.n, tree.node));
  const Place parts = tree.is_root() ? Input(0) : builder.Scratch(nodes * count);
  uint32_t before = kNone, after = kNone;
  if (!tree.is_root()) {
    const uint64_t split = static_cast<uint64_t>(tree.Before(tree.node)) * count;
    before = builder.Receive(tree.parent(), parts, split);
    after = builder.Receive(tree.parent(), parts + split, nodes * count - split);
  }
  for (int first : tree.links.children) {
    const int split = tree.Before(first), rank = tree.RankOf(first);
    const bool passed = first - tree.node >= tree.Before(tree.node);
    builder.Send(rank, PartAt(spec, tree, parts, first), static_cast<uint64_t>(split) * count,
                 {passed ? after : before});
    builder.Send(rank, PartAt(spec, tree, parts, (first + split) % tree.n),
                 static_cast<uint64_t>(tree.After(first)) * count, {after});
  }
  if (!tree.is_root() || !spec.in_place) {
    builder.Copy(Output(0), PartAt(spec, tree, parts, tree.node), count, {before});
  }
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) { return HasRoot(kind); }

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1) return CopyAlone(spec);
  switch (spec.kind) {
    case CollectiveKind::kReduce:
      return Reduce(spec);
    case CollectiveKind::kGather:
      return Gather(spec);
    case CollectiveKind::kScatter:
      return Scatter(spec);
    default:
      return Broadcast(spec);
  }
}

Cost CostOf(const CollectiveSpec& spec) {
  const double n = spec.size, log = Log2Ceil(spec.size), count = static_cast<double>(spec.count);
  Cost cost{.turns = log, .messages = log, .elements = log * count, .copied = count};
  cost.balance = log > 0 ? (n - 1) / (n * log) : 1;
  if (spec.kind == CollectiveKind::kBroadcast) cost.received = count;
  cost.staged = n > 1 ? (n - 1 - log) / (n - 1) : 0;  // what the root does not send
  if (spec.kind == CollectiveKind::kReduce) {
    cost.reduced = log * count, cost.copied = 0;
    cost.staged = 1;
    cost.posts = std::max(log - 1, 0.0);
  }
  if (spec.kind == CollectiveKind::kGather || spec.kind == CollectiveKind::kScatter) {
    cost.elements = (n - 1) * count;
    double moved = 0;  // parts
    double leaves = 0;
    for (int node = 1; node < spec.size; ++node) {
      moved += BinomialSubtree(spec.size, node);
      leaves += BinomialSubtree(spec.size, node) == 1 ? 1 : 0;
    }
    cost.balance = n > 1 ? moved / (n * (n - 1)) : 1;
    // What leaves from an input is read: in a gather the leaves send theirs, in a scatter the root.
    cost.staged =
        moved > 0 ? 1 - (spec.kind == CollectiveKind::kGather ? leaves : n - 1) / moved : 0;
    for (int child : BinomialNode(spec.size, 0).children) {  // a stretch may pass the last rank
      if (spec.kind == CollectiveKind::kScatter) {
        cost.received = std::max(cost.received, BinomialSubtree(spec.size, child) * count);
      }
      const int passed = spec.size - spec.root - child;
      cost.messages += passed > 0 && passed < BinomialSubtree(spec.size, child) ? 1 : 0;
    }
  }
  cost = SpreadOverHosts(cost, spec);
  BetweenSwitches between(spec);
  const bool parts = spec.kind == CollectiveKind::kGather || spec.kind == CollectiveKind::kScatter;
  for (int node = 1; node < spec.size && between.any(); ++node) {
    const int parent = Around(spec.root, BinomialNode(spec.size, node).parent, spec.size);
    between.Add(parent, Around(spec.root, node, spec.size),
                count * (parts ? BinomialSubtree(spec.size, node) : 1));
  }
  if (between.any()) cost.elements_beyond = between.Most();
  // A rank's sends share its link, so that its first child, which has as many to do but one, has
  // the buffer only when its last child has.
  if (spec.kind == CollectiveKind::kBroadcast && cost.turns_across > 0) {
    cost.fill += log * (log - 1) / 2 * count;
  }
  return cost;
}

}  // namespace

const Algorithm kBinomial{"binomial", &Has, &Build, &CostOf};

}  // namespace weft::collectives
