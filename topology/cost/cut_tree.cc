#include "topology/cost/cut_tree.h"

#include <algorithm>
#include <deque>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "topology/fabric/union_find.h"

namespace weft::topology {
CutTree::CutTree(const Fabric& fabric) : fabric_(fabric) {
  FindTiers();
  FindGroups();
  FindCuts();
  FindLatencies();
}

void CutTree::FindTiers() {
  tier_.assign(static_cast<size_t>(fabric_.nodes()), -1);
  std::deque<NodeId> queue;
  for (NodeId host : fabric_.hosts()) {
    tier_[host.index()] = 0;
    queue.push_back(host);
  }
  int highest = 0;
  while (!queue.empty()) {
    NodeId at = queue.front();
    queue.pop_front();
    for (LinkId id : fabric_.LinksFrom(at)) {
      const FabricLink& link = fabric_.link(id);
      if (!link.up || tier_[link.target.index()] >= 0) continue;
      tier_[link.target.index()] = tier_[at.index()] + 1;
      highest = std::max(highest, tier_[link.target.index()]);
      queue.push_back(link.target);
    }
  }
  levels_ = std::max(2, highest + 1);
}

void CutTree::FindGroups() {
  host_begin_.assign(static_cast<size_t>(fabric_.nodes()), 0);
  for (NodeId host : fabric_.hosts()) {
    host_begin_[host.index()] = endpoints_.size();
    for (int nic = 0; nic < fabric_.nics(host); ++nic) endpoints_.push_back({host, nic});
  }
  UnionFind joined(static_cast<size_t>(fabric_.nodes()));
  for (Endpoint endpoint : endpoints_) {
    NodeId first;
    for (LinkId id : fabric_.Ports(endpoint)) {
      const FabricLink& link = fabric_.link(id);
      if (!link.up) continue;
      if (first.value() < 0) first = link.target;
      joined.Join(first.value(), link.target.value());
    }
  }
  auto levels = static_cast<size_t>(levels_);
  path_.assign(endpoints_.size() * levels, -1);
  group_of_switch_.assign(levels, {});
  auto next = static_cast<int32_t>(endpoints_.size());
  for (size_t level = 1; level < levels; ++level) {
    if (level > 1) {
      for (int i = 0; i < fabric_.links(); ++i) {
        const FabricLink& link = fabric_.link(LinkId(i));
        int a = tier_[link.source.index()], b = tier_[link.target.index()];
        if (!link.up || a < 1 || b < 1 || std::max(a, b) > static_cast<int>(level)) continue;
        joined.Join(link.source.value(), link.target.value());
      }
    }
    std::vector<int32_t>& group = group_of_switch_[level];
    group.assign(static_cast<size_t>(fabric_.nodes()), -1);
    std::vector<int32_t> of_root(static_cast<size_t>(fabric_.nodes()), -1);
    for (NodeId node : fabric_.switches()) {
      int tier = tier_[node.index()];
      if (tier < 1 || tier > static_cast<int>(level)) continue;
      int32_t& number = of_root[static_cast<size_t>(joined.Find(node.value()))];
      if (number < 0) number = next++;
      group[node.index()] = number;
    }
  }
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    path_[i * levels] = static_cast<int32_t>(i);
    for (LinkId id : fabric_.Ports(endpoints_[i])) {
      const FabricLink& link = fabric_.link(id);
      if (!link.up) continue;
      for (size_t level = 1; level < levels; ++level) {
        path_[i * levels + level] = group_of_switch_[level][link.target.index()];
      }
      break;
    }
  }
  cuts_.resize(static_cast<size_t>(next));
}

void CutTree::FindCuts() {
  auto add = [&](int32_t group, int level, const FabricLink& link) {
    Cut& cut = cuts_[static_cast<size_t>(group)];
    double bandwidth = link.bandwidth.bytes_per_second();
    cut.slowest = cut.links == 0 ? bandwidth : std::min(cut.slowest, bandwidth);
    cut.fastest = std::max(cut.fastest, bandwidth);
    cut.capacity += bandwidth;
    cut.links += 1;
    cut.level = level;
  };
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    for (LinkId id : fabric_.Ports(endpoints_[i])) {
      if (fabric_.link(id).up) add(static_cast<int32_t>(i), 0, fabric_.link(id));
    }
  }
  for (int level = 1; level < levels_; ++level) {
    const std::vector<int32_t>& group = group_of_switch_[static_cast<size_t>(level)];
    for (NodeId node : fabric_.switches()) {
      if (group[node.index()] < 0) continue;
      cuts_[static_cast<size_t>(group[node.index()])].level = level;
      for (LinkId id : fabric_.LinksFrom(node)) {
        const FabricLink& link = fabric_.link(id);
        if (!link.up || tier_[link.target.index()] < 1) continue;
        if (group[link.target.index()] != group[node.index()]) {
          add(group[node.index()], level, link);
        }
      }
    }
  }
}

// Means over the fabric, tier by tier: a path that meets at level k climbs k cables, passes 2k - 1
// switches and climbs down again.
void CutTree::FindLatencies() {
  std::vector<absl::Duration> cable(static_cast<size_t>(levels_)),
      through(static_cast<size_t>(levels_));
  std::vector<int64_t> cables(cable.size()), switches(cable.size());
  for (int i = 0; i < fabric_.links(); ++i) {
    const FabricLink& link = fabric_.link(LinkId(i));
    int from = tier_[link.source.index()], to = tier_[link.target.index()];
    if (from < 0 || to != from + 1 || !link.up) continue;
    cable[static_cast<size_t>(from)] += link.delay;
    ++cables[static_cast<size_t>(from)];
  }
  for (NodeId node : fabric_.switches()) {
    int tier = tier_[node.index()];
    if (tier < 1) continue;
    through[static_cast<size_t>(tier)] += fabric_.node(node).latency;
    ++switches[static_cast<size_t>(tier)];
  }
  latency_.assign(cable.size(), absl::ZeroDuration());
  for (size_t level = 1; level < latency_.size(); ++level) {
    auto mean = [](absl::Duration sum, int64_t n) { return n == 0 ? sum : sum / n; };
    latency_[level] = latency_[level - 1] + 2 * mean(cable[level - 1], cables[level - 1]) +
                      mean(through[level], switches[level]);
    if (level > 1) latency_[level] += mean(through[level - 1], switches[level - 1]);
  }
}

int CutTree::MeetingLevel(Endpoint a, Endpoint b) const {
  absl::Span<const int32_t> left = Path(a), right = Path(b);
  for (int level = 0; level < levels_; ++level) {
    int32_t group = left[static_cast<size_t>(level)];
    if (group >= 0 && group == right[static_cast<size_t>(level)]) return level;
  }
  return -1;
}

std::string CutTree::Name(int group) const {
  if (group < static_cast<int>(endpoints_.size())) {
    Endpoint endpoint = endpoints_[static_cast<size_t>(group)];
    return absl::StrCat(fabric_.node(endpoint.host).name, " nic ", endpoint.nic);
  }
  int level = cut(group).level;
  NodeId first;
  int count = 0;
  for (NodeId node : fabric_.switches()) {
    if (tier_[node.index()] != level) continue;
    if (group_of_switch_[static_cast<size_t>(level)][node.index()] != group) continue;
    if (count++ == 0) first = node;
  }
  if (count == 0) return absl::StrCat("group ", group);
  std::string name = fabric_.node(first).name;
  if (level > 1) {
    int pod = fabric_.node(first).pod;
    name = pod >= 0 ? absl::StrCat("pod ", pod) : absl::StrCat("under ", name);
  } else if (count > 1) {
    absl::StrAppend(&name, " and ", count - 1, " more");
  }
  return name;
}

std::vector<LinkId> CutTree::UpLinks(int group) const {
  std::vector<LinkId> links;
  if (group < static_cast<int>(endpoints_.size())) {
    for (LinkId id : fabric_.Ports(endpoints_[static_cast<size_t>(group)])) {
      if (fabric_.link(id).up) links.push_back(id);
    }
    return links;
  }
  const std::vector<int32_t>& groups = group_of_switch_[static_cast<size_t>(cut(group).level)];
  for (NodeId node : fabric_.switches()) {
    if (groups[node.index()] != group) continue;
    for (LinkId id : fabric_.LinksFrom(node)) {
      const FabricLink& link = fabric_.link(id);
      if (link.up && tier_[link.target.index()] >= 1 && groups[link.target.index()] != group) {
        links.push_back(id);
      }
    }
  }
  return links;
}

std::vector<int32_t> CutTree::Signature(NodeId host, int level) const {
  std::vector<int32_t> signature;
  signature.reserve(static_cast<size_t>(fabric_.nics(host)));
  for (int nic = 0; nic < fabric_.nics(host); ++nic) {
    signature.push_back(Path({host, nic})[static_cast<size_t>(level)]);
  }
  return signature;
}

std::vector<NodeId> CutTree::InTreeOrder(std::vector<NodeId> hosts) const {
  std::vector<std::pair<std::vector<int32_t>, NodeId>> keyed;
  keyed.reserve(hosts.size());
  for (NodeId host : hosts) {
    std::vector<int32_t> key;
    for (int level = levels_ - 1; level > 0; --level) {
      std::vector<int32_t> part = Signature(host, level);
      key.insert(key.end(), part.begin(), part.end());
    }
    keyed.emplace_back(std::move(key), host);
  }
  std::sort(keyed.begin(), keyed.end());
  for (size_t i = 0; i < hosts.size(); ++i) hosts[i] = keyed[i].second;
  return hosts;
}

}  // namespace weft::topology
