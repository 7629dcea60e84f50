// Double binary tree, pipelined: chunks go up (reduce) and down (broadcast) one of two binary trees
// by turns; who has children in one tree is a leaf in the other, so that every rank's link is busy
// (Sanders, Speck, Traeff, 2009; paths.h). log2(n) turns and full bandwidth: for medium and large
// sizes on many ranks. With a root, the trees are those of the other ranks, and the root feeds, or
// empties, both. Where a plan has flows along two trees of the hosts
// (GroupPlace::planned_trees), an all-reduce goes along those, and along a chain inside each host.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/parts.h"
#include "collectives/algorithms/paths.h"
#include "collectives/algorithms/unplanned.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

// Chunks of a reduction to a root that a rank holds at once, in each tree.
constexpr uint64_t kSlots = 4;

// A hop takes no longer than this many chunks take to leave: 8 us, and four chunks that share the
// link, with the planner's shortest chunks (16 KiB) at 400 Gbit/s.
constexpr uint64_t kHopChunks = 28;

// Whether a plan has the trees: those of an all-reduce.
bool IsPlanned(const CollectiveSpec& spec) {
  return spec.kind == CollectiveKind::kAllReduce && spec.place != nullptr &&
         !spec.place->planned_trees.empty();
}

// Trees that chunks take by turns. Of a plan's two trees each is one on every rail, from the l-th
// rank of a host to those of others.
uint64_t TreeCount(const CollectiveSpec& spec) {
  return IsPlanned(spec) ? 2 * static_cast<uint64_t>(spec.place->ranks_min) : 2;
}

// All trees have work: at least a chunk each.
uint64_t ChunkLength(const CollectiveSpec& spec) {
  const uint64_t trees = TreeCount(spec);
  return std::max<uint64_t>(std::min(spec.chunk, (spec.count + trees - 1) / trees), 1);
}

// Edges from a root to the deepest rank: all of them, and those between hosts in a plan's trees.
int DepthAcross(const GroupPlace& place) { return Log2Ceil(static_cast<int>(place.hosts.size())); }
int Depth(const CollectiveSpec& spec) {
  if (!IsPlanned(spec)) return DoubleTreeDepth(spec.size);
  return DepthAcross(*spec.place) + spec.place->ranks_max - 1;
}

// In a plan's tree, on the rail of the ranks that head their hosts' chains. Other hosts come first
// among the children: they take longest.
TreeNode PlannedNodeOf(const GroupPlace& place, int rank, const HostTree& tree, size_t rail) {
  const size_t host = static_cast<size_t>(place.host[static_cast<size_t>(rank)]);
  const size_t local = static_cast<size_t>(place.local[static_cast<size_t>(rank)]);
  const std::vector<int>& here = place.hosts[host];
  const auto head = [&](int other) { return place.hosts[static_cast<size_t>(other)][rail]; };
  TreeNode node;
  if (local == rail) {
    if (tree.parent[host] >= 0) node.parent = head(tree.parent[host]);
    for (int child : tree.children[host]) node.children.push_back(head(child));
  } else {
    node.parent = here[(local + here.size() - 1) % here.size()];
  }
  const size_t next = (local + 1) % here.size();
  if (next != rail) node.children.push_back(here[next]);
  return node;
}

// By tree: the rank's place in it. The trees are those of a plan, or over all ranks, numbered as
// they are.
std::vector<TreeNode> NodesOf(const CollectiveSpec& spec, int rank) {
  if (!IsPlanned(spec)) {
    return {DoubleTreeNode(spec.size, rank, 0), DoubleTreeNode(spec.size, rank, 1)};
  }
  std::vector<TreeNode> nodes;
  for (size_t rail = 0; rail < static_cast<size_t>(spec.place->ranks_min); ++rail) {
    for (const HostTree& tree : spec.place->planned_trees) {
      nodes.push_back(PlannedNodeOf(*spec.place, rank, tree, rail));
    }
  }
  return nodes;
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
std::vector<TreeNode> RootedNodesOf(const CollectiveSpec& spec, int rank) {
  return {RootedNodeOf(spec, rank, 0), RootedNodeOf(spec, rank, 1)};
}

RankSchedule AllReduce(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  const std::vector<TreeNode> nodes = NodesOf(spec, spec.rank);
  const uint64_t length = ChunkLength(spec), chunks = ChunkCount(spec.count, length);
  // A result comes down when this many more chunks have gone up. A rank's parent in one tree may be
  // its child in the other, and what it is sent leaves in this order: a chunk would wait to go up
  // for a result that has still to come by way of the root, 2 * depth hops. In a round two chunks
  // leave, one up and one down.
  const uint64_t depth = static_cast<uint64_t>(Depth(spec));
  const uint64_t lag = std::min(depth * kHopChunks, chunks);
  std::vector<uint32_t> up(chunks, kNone);  // what the chunk's result is after
  for (uint64_t round = 0; round < chunks + lag; ++round) {
    if (round < chunks) {
      const TreeNode& node = nodes[round % nodes.size()];
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
    const TreeNode& node = nodes[(round - lag) % nodes.size()];
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
  const std::vector<TreeNode> nodes = RootedNodesOf(spec, spec.rank);
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
  const std::vector<TreeNode> nodes = RootedNodesOf(spec, spec.rank);
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

// Elements of an all-reduce along a plan's trees between hosts, as many each way.
class AcrossHosts {
 public:
  explicit AcrossHosts(const GroupPlace& place)
      : place_(place), of_host_(place.hosts.size()), of_rank_(place.host.size()) {}
  void Add(int rank, int other, double elements) {
    const size_t from = HostOf(rank), to = HostOf(other);
    if (from == to) return;
    of_host_[from] += elements, of_host_[to] += elements;
    of_rank_[static_cast<size_t>(rank)] += elements;
    of_rank_[static_cast<size_t>(other)] += elements;
  }
  void Fill(Cost& cost) const {
    cost.turns_across = 2 * DepthAcross(place_);
    cost.elements_across = *std::max_element(of_host_.begin(), of_host_.end());
    const double of_rank = *std::max_element(of_rank_.begin(), of_rank_.end());
    if (of_rank > 0) cost.lanes = cost.elements_across / of_rank;
    cost.posts = 0;
  }

 private:
  size_t HostOf(int rank) const {
    return static_cast<size_t>(place_.host[static_cast<size_t>(rank)]);
  }
  const GroupPlace& place_;
  std::vector<double> of_host_, of_rank_;
};

Cost CostOf(const CollectiveSpec& spec) {
  Cost cost;
  if (spec.size == 1) return cost;
  const bool all = spec.kind == CollectiveKind::kAllReduce, planned = IsPlanned(spec);
  const uint64_t length = ChunkLength(spec), chunks = ChunkCount(spec.count, length);
  const uint64_t trees = TreeCount(spec);
  const double count = static_cast<double>(spec.count);
  const double depth = all ? Depth(spec) : DoubleTreeDepth(spec.size - 1) + 1;
  std::vector<double> chunks_of(trees), carried(trees);  // elements
  for (uint64_t tree = 0; tree < trees; ++tree) {
    const uint64_t of_tree = (chunks + trees - 1 - tree) / trees;
    chunks_of[tree] = static_cast<double>(of_tree);
    carried[tree] = std::min(chunks_of[tree] * static_cast<double>(length), count);
  }
  const GroupPlace place = PlaceOf(spec);
  BetweenSwitches between(spec, planned ? 1 : UnplannedLoad(spec.place.get()));
  AcrossHosts across(place);
  double moved = 0;
  for (int rank = 0; rank < spec.size; ++rank) {
    double from_children = 0, from_parents = 0, messages = 0, messages_up = 0;  // elements
    const std::vector<TreeNode> nodes = all ? NodesOf(spec, rank) : RootedNodesOf(spec, rank);
    for (size_t tree = 0; tree < nodes.size(); ++tree) {
      const TreeNode& node = nodes[tree];
      const double children = static_cast<double>(node.children.size());
      from_children += children * carried[tree];
      for (int child : node.children) {
        if (planned) across.Add(rank, child, carried[tree]);
        if (!between.any()) continue;
        between.Add(child, rank, carried[tree]);
        if (all) between.Add(rank, child, carried[tree]);
      }
      messages += children * chunks_of[tree];
      if (node.parent < 0) continue;
      from_parents += carried[tree];
      messages_up += chunks_of[tree];
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
  // In a broadcast the root alone sends from its input, each chunk to one rank.
  const double others = spec.size - 1;
  cost.staged = Reduces(spec.kind) ? 1 : (others - 1) / others;
  // At each node the second child's receive is posted when the first child's has arrived. The root
  // of a tree of a power of two has one child.
  const int nodes = all ? spec.size : spec.size - 1;
  const int twos = DoubleTreeDepth(nodes) - ((nodes & (nodes - 1)) == 0 ? 1 : 0);
  if (Reduces(spec.kind)) cost.posts = 2 * std::max(twos, 0);
  if (spec.kind == CollectiveKind::kBroadcast) cost.copied = cost.received = count;
  cost.balance = cost.elements > 0 ? moved / (cost.elements * spec.size) : 1;
  if (planned) {
    across.Fill(cost);
    cost.fill_inside = (cost.turns - cost.turns_across) * static_cast<double>(length);
  } else {
    cost = SpreadOverHosts(cost, spec);
  }
  if (between.any()) cost.elements_beyond = between.Most();
  if (!Reduces(spec.kind) || cost.turns_across == 0) return cost;
  // At each node the second child's partial sum waits for the first's, and so the first chunk does;
  // and with it each slot is used by two receives and a send.
  cost.in_order = (planned ? DepthAcross(place) : depth) - 1;
  if (all) return cost;
  cost.fill += cost.in_order * static_cast<double>(length);
  const uint64_t evens = (chunks + 1) / 2;
  if (evens > kSlots) cost.paths = 2;  // else it is over before the links are full
  return ThroughSlots(cost, evens, length, kSlots, 3);
}

}  // namespace

const Algorithm kTree{"tree", &Has, &Build, &CostOf};

}  // namespace weft::collectives
