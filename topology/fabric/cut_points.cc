#include "topology/fabric/cut_points.h"

#include <algorithm>

namespace weft::topology {
namespace {

class Search {
 public:
  explicit Search(const Fabric& fabric)
      : fabric_(fabric), of_(static_cast<size_t>(fabric.nodes())) {}

  std::vector<CutPoint> Run() {
    for (NodeId node : fabric_.switches()) {
      if (Of(node).order == 0) SearchFrom(node);
    }
    std::stable_sort(found_.begin(), found_.end(), [](const CutPoint& a, const CutPoint& b) {
      return (a.cable == LinkId()) > (b.cable == LinkId());
    });
    return std::move(found_);
  }

 private:
  struct State {
    int order = 0;        // of discovery, from 1
    int low = 0;          // the earliest that its subtree reaches other than by its tree link
    int64_t own = 0;      // host ports
    int64_t below = 0;    // those of its subtree, its own included
    int64_t cut_off = 0;  // of subtrees that nothing but this node joins to the rest
    int cut_parts = 0;    // such subtrees that have hosts
  };
  struct Frame {
    NodeId at;
    LinkId from;  // the tree link that leads here
    size_t next = 0;
  };
  State& Of(NodeId node) { return of_[node.index()]; }

  void Enter(NodeId node, LinkId from) {
    State& state = Of(node);
    state.order = state.low = ++counter_;
    members_.push_back(node);
    stack_.push_back({node, from});
  }

  // Depth first, without recursion: a chain of switches may be as long as a fabric is large.
  void SearchFrom(NodeId root) {
    members_.clear();
    std::vector<LinkId> bridges;
    Enter(root, LinkId());
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      absl::Span<const LinkId> links = fabric_.LinksFrom(frame.at);
      if (frame.next < links.size()) {
        Look(links[frame.next++]);
        continue;
      }
      const Frame done = frame;
      stack_.pop_back();
      if (!stack_.empty()) Leave(done, Of(stack_.back().at), bridges);
    }
    Report(root, bridges);
  }

  void Look(LinkId id) {
    const Frame& frame = stack_.back();
    State& state = Of(frame.at);
    const FabricLink& link = fabric_.link(id);
    if (!link.up) return;
    if (link.nic >= 0) {
      ++state.own;
      ++state.below;
    } else if (Of(link.target).order == 0) {
      Enter(link.target, id);
    } else if (frame.from == LinkId() || link.reverse != frame.from) {
      state.low = std::min(state.low, Of(link.target).order);
    }
  }

  void Leave(const Frame& done, State& parent, std::vector<LinkId>& bridges) {
    const State& child = Of(done.at);
    parent.low = std::min(parent.low, child.low);
    parent.below += child.below;
    if (child.below == 0) return;
    if (child.low > parent.order) bridges.push_back(done.from);
    if (child.low < parent.order) return;
    parent.cut_off += child.below;
    ++parent.cut_parts;
  }

  void Report(NodeId root, const std::vector<LinkId>& bridges) {
    const int64_t total = Of(root).below;
    for (NodeId node : members_) {
      const State& state = Of(node);
      bool has_rest = total > state.own + state.cut_off;
      int parts = state.cut_parts + (has_rest ? 1 : 0);
      if (parts > 1) found_.push_back({node, LinkId(), parts, total, 0});
    }
    for (LinkId bridge : bridges) {
      int64_t below = Of(fabric_.link(bridge).target).below;
      if (below < total) found_.push_back({NodeId(), bridge, 2, total, below});
    }
  }

  const Fabric& fabric_;
  std::vector<State> of_;  // [node]
  int counter_ = 0;
  std::vector<Frame> stack_;
  std::vector<NodeId> members_;  // of the network that is being searched
  std::vector<CutPoint> found_;
};

}  // namespace

std::vector<CutPoint> FindCutPoints(const Fabric& fabric) { return Search(fabric).Run(); }

}  // namespace weft::topology
