#include "topology/sim/packet/forwarding.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace weft::topology::packet {

LinkNumbers::LinkNumbers(const Fabric& fabric) : numbers_(static_cast<size_t>(fabric.links())) {
  ids_.reserve(numbers_.size());
  for (int node = 0; node < fabric.nodes(); ++node) {
    absl::Span<const LinkId> links = fabric.LinksFrom(NodeId(node));
    ids_.insert(ids_.end(), links.begin(), links.end());
  }
  for (size_t i = 0; i < ids_.size(); ++i) numbers_[ids_[i].index()] = static_cast<uint32_t>(i);
}

Forwarding::Forwarding(const Fabric& fabric, const LinkNumbers& numbers)
    : fabric_(fabric),
      numbers_(numbers),
      switch_index_(static_cast<size_t>(fabric.nodes()), ~0u),
      endpoints_(fabric.Endpoints()) {
  uint32_t next = 0;
  for (NodeId node : fabric.switches()) switch_index_[node.index()] = next++;
}

Forwarding::Set Forwarding::MakeSet(absl::Span<const LinkId> links, int distance) {
  Set set;
  set.distance = static_cast<uint8_t>(distance);
  set.count = static_cast<uint16_t>(links.size());
  if (links.empty()) return set;
  std::vector<uint32_t> all;
  all.reserve(links.size());
  for (LinkId link : links) all.push_back(numbers_.Of(link));
  set.first = all[0];
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != all[0] + i) set.is_range = false;
  }
  if (!set.is_range) {
    set.first = static_cast<uint32_t>(members_.size());
    members_.insert(members_.end(), all.begin(), all.end());
  }
  return set;
}

// Endpoints that hang on the same switches are forwarded alike, but for the last hop.
void Forwarding::FindGroups(const Routes& routes) {
  places_.assign(endpoints_.size(), Place());
  representative_.clear();
  attached_switches_.clear();
  ports_.clear();
  ports_begin_.assign(1, 0);
  std::map<std::vector<uint32_t>, uint32_t> known;
  for (uint32_t i = 0; i < endpoints_.size(); ++i) {
    std::vector<uint32_t> at;
    for (LinkId port : fabric_.Ports(endpoints_[i])) {
      const FabricLink& link = fabric_.link(port);
      if (link.up) at.push_back(switch_index_[link.target.index()]);
    }
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    for (uint32_t one : at) {
      NodeId node = fabric_.switches()[one];
      ports_.push_back({one, MakeSet(routes.Next(node, endpoints_[i]), 0)});
    }
    ports_begin_.push_back(static_cast<uint32_t>(ports_.size()));
    if (at.empty()) continue;
    auto [entry, is_new] = known.emplace(at, static_cast<uint32_t>(representative_.size()));
    if (is_new) {
      representative_.push_back(i);
      attached_switches_.push_back(at);
    }
    places_[i].group = entry->second;
    if (at.size() > 1) continue;
    places_[i].at = at[0];
    places_[i].set = ports_.back().set;
  }
  group_count_ = static_cast<uint32_t>(representative_.size());
}

// [switch]: links to the nearest switch that the group hangs on.
std::vector<uint8_t> Forwarding::Distances(const Routes& routes, uint32_t group) const {
  constexpr uint8_t kUnknown = 255;
  std::vector<uint8_t> distances(fabric_.switches().size(), kUnknown);
  for (uint32_t at : attached_switches_[group]) distances[at] = 0;
  Endpoint target = endpoints_[representative_[group]];
  std::vector<uint32_t> way;
  for (uint32_t start = 0; start < distances.size(); ++start) {
    way.clear();
    uint32_t at = start;
    while (distances[at] == kUnknown) {
      absl::Span<const LinkId> next = routes.Next(fabric_.switches()[at], target);
      if (next.empty()) break;
      way.push_back(at);
      at = switch_index_[fabric_.link(next[0]).target.index()];
    }
    if (distances[at] == kUnknown) continue;
    for (uint8_t distance = distances[at]; !way.empty(); way.pop_back()) {
      distances[way.back()] = ++distance;
    }
  }
  return distances;
}

void Forwarding::Compute(const Routes& routes) {
  members_.clear();
  FindGroups(routes);
  size_t switches = fabric_.switches().size();
  table_.assign(switches * group_count_, Set());
  std::vector<std::map<std::pair<uint8_t, std::vector<LinkId>>, Set>> known(switches);
  for (uint32_t group = 0; group < group_count_; ++group) {
    std::vector<uint8_t> distances = Distances(routes, group);
    for (size_t at = 0; at < switches; ++at) {
      absl::Span<const LinkId> next =
          routes.Next(fabric_.switches()[at], endpoints_[representative_[group]]);
      if (next.empty() || distances[at] == 0) continue;
      auto [entry, is_new] =
          known[at].try_emplace({distances[at], std::vector<LinkId>(next.begin(), next.end())});
      if (is_new) entry->second = MakeSet(next, distances[at]);
      table_[at * group_count_ + group] = entry->second;
    }
    for (uint32_t at : attached_switches_[group]) {
      table_[at * group_count_ + group].distance = kAttached;
    }
  }
}

Forwarding::Set Forwarding::Attached(uint32_t at, uint32_t target) const {
  for (uint32_t i = ports_begin_[target]; i < ports_begin_[target + 1]; ++i) {
    if (ports_[i].at == at) return ports_[i].set;
  }
  return Set();
}

}  // namespace weft::topology::packet
