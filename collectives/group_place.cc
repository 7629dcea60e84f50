#include "collectives/group_place.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "collectives/schedule.h"
#include "topology/job/binary_trees.h"

namespace weft::collectives {
namespace {

std::vector<RankPlace> OnHosts(absl::Span<const std::string> host_names) {
  std::vector<RankPlace> places(host_names.size());
  for (size_t rank = 0; rank < places.size(); ++rank) places[rank].host = host_names[rank];
  return places;
}

// The least of what all know; 0 where one does not.
template <typename Value>
Value Least(absl::Span<const RankPlace> places, Value RankPlace::*field) {
  Value least = places.empty() ? Value() : places[0].*field;
  for (const RankPlace& place : places) least = std::min(least, place.*field);
  return std::max(least, Value());
}

// Number of each name, in the order in which names come first.
class Numbers {
 public:
  int Of(const std::string& name) {
    return numbers_.emplace(name, static_cast<int>(numbers_.size())).first->second;
  }

 private:
  std::map<std::string, int> numbers_;
};

// By host: those to which any of its ranks has planned flows.
std::vector<std::vector<int>> HostsAlong(absl::Span<const int> host_of, size_t hosts,
                                         absl::Span<const std::vector<int>> planned) {
  std::vector<std::set<int>> next(hosts);
  for (size_t rank = 0; rank < planned.size(); ++rank) {
    for (int peer : planned[rank]) {
      const int from = host_of[rank], to = host_of[static_cast<size_t>(peer)];
      if (from != to) next[static_cast<size_t>(from)].insert(to);
    }
  }
  std::vector<std::vector<int>> out;
  for (const std::set<int>& one : next) out.emplace_back(one.begin(), one.end());
  return out;
}

// The flows of an all-to-all. Of two or three hosts a double tree has as many.
bool AreOfAllHosts(absl::Span<const std::vector<int>> along) {
  return along.size() > 3 && std::all_of(along.begin(), along.end(), [&](const auto& next) {
           return next.size() + 1 == along.size();
         });
}

// GroupPlace::planned_trees. `number`: by host in the order of the lowest ranks, its number.
std::vector<HostTree> TreesAlong(absl::Span<const int> number, const GroupPlace& place,
                                 absl::Span<const std::vector<int>> planned) {
  const size_t n = number.size();
  if (n < 2 || planned.size() != place.host.size()) return {};
  const auto has_flows = [&](int from, int to) {
    for (int i = 0; i < place.ranks_min; ++i) {
      const int rank = place.hosts[static_cast<size_t>(from)][static_cast<size_t>(i)];
      const int peer = place.hosts[static_cast<size_t>(to)][static_cast<size_t>(i)];
      const std::vector<int>& peers = planned[static_cast<size_t>(rank)];
      if (std::find(peers.begin(), peers.end(), peer) == peers.end()) return false;
    }
    return true;
  };
  const topology::BinaryTrees parents = topology::MakeBinaryTrees(static_cast<int>(n));
  std::vector<HostTree> trees;
  for (const std::vector<int>* parent_of : {&parents.first, &parents.second}) {
    HostTree tree{.parent = std::vector<int>(n, -1), .children = std::vector<std::vector<int>>(n)};
    for (size_t i = 0; i < n; ++i) {
      if ((*parent_of)[i] < 0) continue;
      const int host = number[i], parent = number[static_cast<size_t>((*parent_of)[i])];
      if (!has_flows(host, parent) || !has_flows(parent, host)) return {};
      tree.parent[static_cast<size_t>(host)] = parent;
      tree.children[static_cast<size_t>(parent)].push_back(host);
    }
    trees.push_back(std::move(tree));
  }
  return trees;
}

// The order in which hosts are numbered: by switch, and as they are; or along the ring, if that
// visits each switch once.
std::vector<int> OrderOf(absl::Span<const int> switch_of, std::vector<int> ring) {
  std::vector<int> order(switch_of.size());
  std::iota(order.begin(), order.end(), 0);
  const auto by_switch = [&](int host) { return switch_of[static_cast<size_t>(host)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return by_switch(a) < by_switch(b); });
  const int switches = order.empty() ? 0 : by_switch(order.back()) + 1;
  std::vector<size_t> entries;  // into a switch
  for (size_t i = 0; i < ring.size(); ++i) {
    const int before = ring[(i + ring.size() - 1) % ring.size()];
    if (by_switch(before) != by_switch(ring[i])) entries.push_back(i);
  }
  if (ring.empty() || static_cast<int>(std::max<size_t>(entries.size(), 1)) != switches) {
    return order;
  }
  // From the switch of host 0 on.
  for (size_t entry : entries) {
    if (by_switch(ring[entry]) != by_switch(0)) continue;
    std::rotate(ring.begin(), ring.begin() + static_cast<ptrdiff_t>(entry), ring.end());
    break;
  }
  return ring;
}

}  // namespace

std::vector<int> RingAlong(absl::Span<const std::vector<int>> next) {
  constexpr int kStepsMost = 100'000;
  const size_t n = next.size();
  if (n < 2) return {};
  std::vector<int> ring = {0};
  std::vector<size_t> tried = {0};  // by place in the ring: successors that were tried
  std::vector<bool> is_in(n);
  is_in[0] = true;
  for (int step = 0; !ring.empty() && step < kStepsMost; ++step) {
    const std::vector<int>& options = next[static_cast<size_t>(ring.back())];
    if (ring.size() == n && std::find(options.begin(), options.end(), 0) != options.end()) {
      return ring;
    }
    if (ring.size() == n || tried.back() == options.size()) {
      is_in[static_cast<size_t>(ring.back())] = false;
      ring.pop_back();
      tried.pop_back();
      continue;
    }
    const int to = options[tried.back()++];
    if (is_in[static_cast<size_t>(to)]) continue;
    is_in[static_cast<size_t>(to)] = true;
    ring.push_back(to);
    tried.push_back(0);
  }
  return {};
}

std::string ToWord(const RankPlace& place) {
  return absl::StrFormat("%d,%d,%a,%a,%a,%s,%s", place.numa, place.nics, place.nic_rate,
                         place.host_rate, place.switch_rate,
                         absl::BytesToHexString(place.switch_name),
                         absl::BytesToHexString(place.plan));
}

absl::StatusOr<RankPlace> RankPlaceFromWord(absl::string_view word) {
  RankPlace place;
  const std::vector<std::string> parts = absl::StrSplit(word, ',');
  bool right = parts.size() == 7 && absl::SimpleAtoi(parts[0], &place.numa) &&
               absl::SimpleAtoi(parts[1], &place.nics) && place.nics >= 0;
  double* const rates[] = {&place.nic_rate, &place.host_rate, &place.switch_rate};
  for (size_t i = 0; right && i < 3; ++i) {
    char* end = nullptr;
    *rates[i] = std::strtod(parts[i + 2].c_str(), &end);
    right = end != parts[i + 2].c_str() && *end == '\0' && *rates[i] >= 0 && *rates[i] < 1e18;
  }
  if (!right) {
    return absl::DataLossError(
        absl::StrCat("\"", absl::CHexEscape(word), "\" does not say where a rank stands"));
  }
  place.switch_name = absl::HexStringToBytes(parts[5]);
  place.plan = absl::HexStringToBytes(parts[6]);
  return place;
}

GroupPlace::GroupPlace(absl::Span<const std::string> host_names)
    : GroupPlace(OnHosts(host_names)) {}

GroupPlace::GroupPlace(absl::Span<const RankPlace> places,
                       absl::Span<const std::vector<int>> planned)
    : nics(Least(places, &RankPlace::nics)),
      nic_rate(Least(places, &RankPlace::nic_rate)),
      host_rate(Least(places, &RankPlace::host_rate)),
      switch_rate(Least(places, &RankPlace::switch_rate)) {
  const bool known = std::none_of(places.begin(), places.end(),
                                  [](const RankPlace& place) { return place.switch_name.empty(); });
  // Hosts in the order of their lowest ranks; a host is where its lowest rank is.
  Numbers host_numbers, switch_numbers;
  std::vector<int> first_host;  // by rank
  std::vector<int> switch_of_host;
  for (const RankPlace& place : places) {
    first_host.push_back(host_numbers.Of(place.host));
    if (first_host.back() < static_cast<int>(switch_of_host.size())) continue;
    switch_of_host.push_back(switch_numbers.Of(known ? place.switch_name : ""));
  }
  const std::vector<std::vector<int>> along =
      HostsAlong(first_host, switch_of_host.size(), planned);
  const std::vector<int> ring = RingAlong(along);
  const std::vector<int> order = OrderOf(switch_of_host, ring);
  std::vector<int> number(order.size());
  for (size_t h = 0; h < order.size(); ++h) {
    number[static_cast<size_t>(order[h])] = static_cast<int>(h);
    const int at = switch_of_host[static_cast<size_t>(order[h])];
    if (h == 0 || at != switch_of_host[static_cast<size_t>(order[h - 1])]) switches.emplace_back();
    switches.back().push_back(static_cast<int>(h));
    switch_of.push_back(static_cast<int>(switches.size()) - 1);
    hosts_max = std::max(hosts_max, static_cast<int>(switches.back().size()));
  }
  for (int host : ring) planned_ring.push_back(number[static_cast<size_t>(host)]);
  if (!ring.empty()) {
    std::rotate(planned_ring.begin(), std::find(planned_ring.begin(), planned_ring.end(), 0),
                planned_ring.end());
  }
  hosts.resize(order.size());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    host.push_back(number[static_cast<size_t>(first_host[rank])]);
    std::vector<int>& ranks = hosts[static_cast<size_t>(host.back())];
    local.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
    numa.push_back(places[rank].numa);
  }
  for (const std::vector<int>& ranks : hosts) {
    const int count = static_cast<int>(ranks.size());
    ranks_min = ranks_min == 0 ? count : std::min(ranks_min, count);
    ranks_max = std::max(ranks_max, count);
  }
  if (!AreOfAllHosts(along)) planned_trees = TreesAlong(number, *this, planned);
}

GroupPlace GroupPlace::OfSwitches() const {
  std::vector<std::string> names;
  for (int at : switch_of) names.push_back(absl::StrCat(at));
  return GroupPlace(names);
}

GroupPlace PlaceOf(const CollectiveSpec& spec) {
  if (spec.place != nullptr) return *spec.place;
  return GroupPlace(std::vector<std::string>(static_cast<size_t>(spec.size)));
}

}  // namespace weft::collectives
