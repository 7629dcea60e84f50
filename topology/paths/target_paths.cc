#include "topology/paths/target_paths.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "topology/fabric/union_find.h"
#include "topology/paths/balanced_colouring.h"

namespace weft::topology {
namespace {

// Ratios of bandwidths are told by numbers up to this; bandwidths that differ by less are alike.
constexpr int kPartsMost = 16;
constexpr double kAlike = 0.06;

class Chooser {
 public:
  Chooser(const Routes& routes, std::vector<Subflow>& subflows)
      : routes_(routes), fabric_(routes.fabric()), subflows_(subflows) {}

  void Choose() {
    Classify();
    for (Subflow& subflow : subflows_) subflow.wanted = {};
    for (size_t stage = 0; stage < 2; ++stage) {
      members_.clear();
      for (Subflow& subflow : subflows_) Enter(subflow, stage);
      for (auto& group : Groups()) Colour(group, stage);
    }
  }

 private:
  struct Member {
    Subflow* subflow = nullptr;
    NodeId at;                 // where the choice is made
    NodeId mirror;             // where the reverse direction would make it
    std::vector<int> classes;  // of the switches that can be chosen, in order
  };

  NodeId OnlySwitch(Endpoint near, Endpoint far) const {
    absl::Span<const LinkId> ports = routes_.First(near, far);
    return ports.size() == 1 ? fabric_.link(ports[0]).target : NodeId();
  }

  void Enter(Subflow& subflow, size_t stage) {
    int hops = routes_.Hops(subflow.source, subflow.target);
    if (hops < (stage == 0 ? 4 : 6)) return;
    Member member{&subflow,
                  OnlySwitch(subflow.source, subflow.target),
                  OnlySwitch(subflow.target, subflow.source),
                  {}};
    if (member.at == NodeId() || member.mirror == NodeId()) return;
    if (stage == 1) {
      // Behind the chosen switch; its mirror is the one of its class near the target.
      if (subflow.wanted[0] == NodeId()) return;
      member.mirror = OfClass(member.mirror, subflow.source, Class(subflow.wanted[0]));
      member.at = subflow.wanted[0];
      if (member.mirror == NodeId()) return;
    }
    member.classes = Classes(member.at, subflow.target);
    if (member.classes.size() >= 2) members_.push_back(std::move(member));
  }

  // Switches of different pods with the same neighbours above them are of one class, the n-th of a
  // pod with the n-th of another; without any above, each is of its own.
  void Classify() {
    class_of_.assign(static_cast<size_t>(fabric_.nodes()), -1);
    std::map<std::pair<std::vector<NodeId>, int>, int> of_pod;
    std::map<std::pair<std::vector<NodeId>, int>, int> known;
    for (NodeId node : fabric_.switches()) {
      std::vector<NodeId> above;
      for (LinkId id : fabric_.LinksFrom(node)) {
        NodeId target = fabric_.link(id).target;
        if (fabric_.node(target).tier > fabric_.node(node).tier) above.push_back(target);
      }
      std::sort(above.begin(), above.end());
      above.erase(std::unique(above.begin(), above.end()), above.end());
      int number = 0;
      if (above.empty()) {
        above = {node};
        number = -1;
      } else {
        number = of_pod[{above, fabric_.node(node).pod}]++;
      }
      auto [found, _] = known.try_emplace({std::move(above), number}, classes_);
      class_of_[node.index()] = found->second;
      classes_ = std::max(classes_, found->second + 1);
    }
  }
  int Class(NodeId node) const { return class_of_[node.index()]; }

  std::vector<int> Classes(NodeId at, Endpoint target) {
    std::vector<int> out;
    for (LinkId link : routes_.Next(at, target)) out.push_back(Class(fabric_.link(link).target));
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  NodeId OfClass(NodeId at, Endpoint target, int wanted) {
    for (LinkId link : routes_.Next(at, target)) {
      NodeId next = fabric_.link(link).target;
      if (Class(next) == wanted) return next;
    }
    return NodeId();
  }

  // Members that compete, through classes that they share. What one group chooses is nothing to
  // another.
  std::vector<std::vector<Member*>> Groups() {
    UnionFind shared(static_cast<size_t>(classes_));
    for (const Member& member : members_) {
      for (int one : member.classes) shared.Join(member.classes[0], one);
    }
    std::map<int32_t, std::vector<Member*>> by_root;
    for (Member& member : members_) by_root[shared.Find(member.classes[0])].push_back(&member);
    std::vector<std::vector<Member*>> out;
    out.reserve(by_root.size());
    for (auto& [_, group] : by_root) out.push_back(std::move(group));
    return out;
  }

  void Colour(const std::vector<Member*>& group, size_t stage) {
    std::vector<char> used(static_cast<size_t>(classes_), 0);
    for (const Member* member : group) {
      for (int one : member->classes) used[static_cast<size_t>(one)] = 1;
    }
    std::vector<int> colours;
    for (size_t one = 0; one < used.size(); ++one) {
      if (used[one]) colours.push_back(static_cast<int>(one));
    }
    colours = InProportion(colours, group);
    std::vector<ColouredEdge> edges;
    for (const Member* member : group) {
      const Subflow& subflow = *member->subflow;
      bool far = stage == 0 && routes_.Hops(subflow.source, subflow.target) > 4;
      edges.push_back({Sets(member->at, far), Sets(member->mirror, far), subflow.bytes});
    }
    BalanceColours(edges, static_cast<int>(colours.size()));
    for (size_t i = 0; i < group.size(); ++i) {
      int wanted = colours[static_cast<size_t>(edges[i].colour)];
      Subflow& subflow = *group[i]->subflow;
      subflow.wanted[stage] = OfClass(group[i]->at, subflow.target, wanted);
    }
  }

  // Each class as often as its bandwidth is a multiple of the least, so that a class with half the
  // bandwidth gets half the flows; once each where all are alike.
  std::vector<int> InProportion(const std::vector<int>& colours,
                                const std::vector<Member*>& group) const {
    // By a cable that nothing has degraded: local search plans around those that are.
    std::vector<double> bandwidth(static_cast<size_t>(classes_));
    for (const Member* member : group) {
      std::map<int, double> of_class;
      for (LinkId id : routes_.Next(member->at, member->subflow->target)) {
        const FabricLink& link = fabric_.link(id);
        of_class[Class(link.target)] += link.bandwidth.bytes_per_second();
      }
      for (const auto& [one, sum] : of_class) {
        double& most = bandwidth[static_cast<size_t>(one)];
        most = std::max(most, sum);
      }
    }
    double least = 0;
    for (int one : colours) {
      const double own = bandwidth[static_cast<size_t>(one)];
      if (own > 0 && (least == 0 || own < least)) least = own;
    }
    if (least == 0) return colours;
    for (int parts = 1; parts <= kPartsMost; ++parts) {
      std::vector<int> out;
      bool fits = true;
      for (int one : colours) {
        const double wanted = parts * bandwidth[static_cast<size_t>(one)] / least;
        const int count = static_cast<int>(std::lround(wanted));
        fits = fits && std::abs(count - wanted) <= kAlike * wanted && count <= kPartsMost;
        out.insert(out.end(), static_cast<size_t>(std::clamp(count, 1, kPartsMost)), one);
      }
      if (fits) {
        // Alike: as without any proportion.
        return out.size() == parts * colours.size() ? colours : out;
      }
    }
    return colours;
  }

  // Flows that go further than the pod compete once more there: they are balanced among themselves
  // first, then all of the leaf, then those of the pod.
  std::array<int32_t, 3> Sets(NodeId at, bool far) const {
    return {at.value() * 2 + (far ? 1 : 0), at.value(), fabric_.node(at).pod};
  }

  const Routes& routes_;
  const Fabric& fabric_;
  std::vector<Subflow>& subflows_;
  std::vector<Member> members_;
  std::vector<int> class_of_;  // [node]
  int classes_ = 0;
};

}  // namespace

void ChooseTargetPaths(const Routes& routes, std::vector<Subflow>& subflows) {
  Chooser(routes, subflows).Choose();
}

}  // namespace weft::topology
