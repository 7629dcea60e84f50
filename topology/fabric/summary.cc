#include "topology/fabric/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::topology {
namespace {

// Dinic's maximum flow, iterative. Capacities are whole bytes per second.
class MaxFlow {
 public:
  explicit MaxFlow(size_t nodes) : first_(nodes, -1) {}

  void Add(size_t from, size_t to, int64_t capacity) {
    for (auto [a, b, c] : {std::tuple{from, to, capacity}, std::tuple{to, from, int64_t{0}}}) {
      edges_.push_back({b, first_[a], c});
      first_[a] = static_cast<int>(edges_.size()) - 1;
    }
  }

  int64_t Run(size_t source, size_t target) {
    int64_t total = 0;
    while (Levels(source, target)) {
      next_ = first_;
      while (int64_t pushed = Push(source, target)) total += pushed;
    }
    return total;
  }

 private:
  struct Edge {
    size_t to;
    int next;  // of the same node; -1: none
    int64_t left;
  };
  Edge& At(int edge) { return edges_[static_cast<size_t>(edge)]; }

  bool Levels(size_t source, size_t target) {
    level_.assign(first_.size(), -1);
    level_[source] = 0;
    std::vector<size_t> queue = {source};
    for (size_t head = 0; head < queue.size(); ++head) {
      for (int e = first_[queue[head]]; e >= 0; e = At(e).next) {
        if (At(e).left <= 0 || level_[At(e).to] >= 0) continue;
        level_[At(e).to] = level_[queue[head]] + 1;
        queue.push_back(At(e).to);
      }
    }
    return level_[target] >= 0;
  }

  // One augmenting path of the level graph; 0: there is none left.
  int64_t Push(size_t source, size_t target) {
    std::vector<int> path;
    size_t at = source;
    while (at != target) {
      int& e = next_[at];
      while (e >= 0 && (At(e).left <= 0 || level_[At(e).to] != level_[at] + 1)) e = At(e).next;
      if (e >= 0) {
        path.push_back(e);
        at = At(e).to;
        continue;
      }
      if (path.empty()) return 0;
      level_[at] = -1;  // leads nowhere
      at = At(path.back() ^ 1).to;
      path.pop_back();
    }
    int64_t amount = std::numeric_limits<int64_t>::max();
    for (int e : path) amount = std::min(amount, At(e).left);
    for (int e : path) {
      At(e).left -= amount;
      At(e ^ 1).left += amount;
    }
    return amount;
  }

  std::vector<Edge> edges_;  // e and e ^ 1 are each other's reverse
  std::vector<int> first_, next_, level_;
};

int64_t BytesPerSecond(Bandwidth bandwidth) {
  return static_cast<int64_t>(std::llround(bandwidth.bytes_per_second()));
}

Bandwidth operator+(Bandwidth a, Bandwidth b) {
  return Bandwidth::BytesPerSecond(a.bytes_per_second() + b.bytes_per_second());
}

std::string Rate(Bandwidth bandwidth) {
  double gigabits = bandwidth.gigabits_per_second();
  return gigabits >= 10'000 ? absl::StrFormat("%.4g Tbps", gigabits / 1000) : ToString(bandwidth);
}

std::string Plural(int64_t count, absl::string_view noun) {
  bool is_switch = noun == "switch";
  return absl::StrCat(count, " ", noun, count == 1 ? "" : is_switch ? "es" : "s");
}

}  // namespace

Bandwidth BisectionBandwidth(const Fabric& fabric) {
  size_t hosts = fabric.hosts().size();
  if (hosts < 2) return {};
  // Hosts are drawn into the two ends: each switch has what its hosts of a half can send or take.
  auto nodes = static_cast<size_t>(fabric.nodes());
  size_t source = nodes;
  size_t target = nodes + 1;
  MaxFlow flow(nodes + 2);
  std::vector<int64_t> in(nodes, 0);
  std::vector<int64_t> out(nodes, 0);
  for (size_t i = 0; i < hosts; ++i) {
    for (LinkId id : fabric.LinksFrom(fabric.hosts()[i])) {
      const FabricLink& link = fabric.link(id);
      if (!link.up) continue;
      (i < hosts / 2 ? in : out)[link.target.index()] += BytesPerSecond(link.bandwidth);
    }
  }
  for (size_t i = 0; i < nodes; ++i) {
    if (in[i] > 0) flow.Add(source, i, in[i]);
    if (out[i] > 0) flow.Add(i, target, out[i]);
  }
  for (NodeId at : fabric.switches()) {
    // Parallel cables as one.
    std::map<NodeId, int64_t> to;
    for (LinkId id : fabric.LinksFrom(at)) {
      const FabricLink& link = fabric.link(id);
      if (link.up && link.nic < 0) to[link.target] += BytesPerSecond(link.bandwidth);
    }
    for (const auto& [other, capacity] : to) flow.Add(at.index(), other.index(), capacity);
  }
  return Bandwidth::BytesPerSecond(static_cast<double>(flow.Run(source, target)));
}

FabricSummary Summarise(const Fabric& fabric) {
  FabricSummary summary;
  summary.hosts = static_cast<int>(fabric.hosts().size());
  summary.nics = fabric.endpoints();
  std::set<int> pods;
  std::set<int> planes;
  std::map<int, TierSummary> tiers;
  for (int i = 0; i < fabric.nodes(); ++i) {
    const FabricNode& node = fabric.node(NodeId(i));
    if (node.pod >= 0) pods.insert(node.pod);
    if (node.plane >= 0) planes.insert(node.plane);
    if (node.kind == NodeKind::kSwitch) ++tiers[node.tier].switches;
  }
  summary.pods = static_cast<int>(pods.size());
  summary.planes = static_cast<int>(planes.size());

  std::map<std::tuple<int, int, double>, CableSummary> cables;
  for (int i = 0; i < fabric.links(); i += 2) {
    const FabricLink& link = fabric.link(LinkId(i));
    auto [lower, upper] =
        std::minmax({fabric.node(link.source).tier, fabric.node(link.target).tier});
    CableSummary& cable = cables[{lower, upper, link.nominal.bytes_per_second()}];
    cable.lower = lower;
    cable.upper = upper;
    cable.nominal = link.nominal;
    ++cable.count;
    if (link.nic >= 0) ++summary.ports;
    if (!link.up) {
      ++cable.down;
      continue;
    }
    if (link.bandwidth < link.nominal) ++cable.degraded;
    if (link.nic >= 0) summary.injection = summary.injection + link.bandwidth;
    if (lower == upper) continue;
    TierSummary& above = tiers[upper];
    above.down = above.down + link.bandwidth;
    ++above.cables_down;
    if (link.nic >= 0) continue;
    TierSummary& below = tiers[lower];
    below.up = below.up + link.bandwidth;
    ++below.cables_up;
  }
  for (auto& [number, tier] : tiers) {
    tier.tier = number;
    if (tier.up > Bandwidth()) tier.oversubscription = tier.down / tier.up;
    summary.tiers.push_back(tier);
  }
  for (const auto& [key, cable] : cables) summary.cables.push_back(cable);
  summary.bisection = BisectionBandwidth(fabric);
  return summary;
}

std::string ToText(const FabricSummary& summary) {
  std::string text = absl::StrCat(Plural(summary.hosts, "host"), ", ", Plural(summary.nics, "NIC"));
  if (summary.ports != summary.nics) absl::StrAppend(&text, ", ", Plural(summary.ports, "port"));
  if (summary.pods > 0) absl::StrAppend(&text, ", ", Plural(summary.pods, "pod"));
  if (summary.planes > 0) absl::StrAppend(&text, ", ", Plural(summary.planes, "plane"));
  absl::StrAppend(&text, "\n");
  for (auto tier = summary.tiers.rbegin(); tier != summary.tiers.rend(); ++tier) {
    absl::StrAppend(&text, "tier ", tier->tier, "  ", Plural(tier->switches, "switch"), ", ",
                    Rate(tier->down), " down");
    if (tier->oversubscription > 0) {
      absl::StrAppend(&text, ", ", Rate(tier->up),
                      " up: ", absl::StrFormat("%.3g", tier->oversubscription),
                      ":1 oversubscribed");
    }
    absl::StrAppend(&text, "\n");
  }
  for (const CableSummary& cable : summary.cables) {
    std::string lower = cable.lower == 0 ? "hosts" : absl::StrCat("tier ", cable.lower);
    absl::StrAppend(&text, "cables  ", lower, " to tier ", cable.upper, ": ", cable.count, " x ",
                    ToString(cable.nominal));
    if (cable.down > 0) absl::StrAppend(&text, ", ", cable.down, " down");
    if (cable.degraded > 0) absl::StrAppend(&text, ", ", cable.degraded, " degraded");
    absl::StrAppend(&text, "\n");
  }
  double ratio = summary.injection > Bandwidth() ? summary.bisection / summary.injection * 2 : 0;
  absl::StrAppend(&text, "injection  ", Rate(summary.injection), "\nbisection  ",
                  Rate(summary.bisection), absl::StrFormat(" (%.3g of full)\n", ratio));
  return text;
}

}  // namespace weft::topology
