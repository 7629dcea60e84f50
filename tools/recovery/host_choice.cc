#include "tools/recovery/host_choice.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace weft::recovery {
namespace {

// Hosts that run the last part of a self-test with the host that is suspected.
constexpr size_t kTestHelpers = 2;

// For so long a diagnosis that blames a host outdoes what ranks of others say of their devices.
constexpr absl::Duration kBlameLasts = absl::Minutes(1);

// How many of the switches above two hosts, from the hosts up, they do not share: 0 below the same
// one. Racks are named from the top down, "spine1.leaf3"; one that is not known is far from all.
int RackDistance(absl::string_view a, absl::string_view b) {
  const std::vector<absl::string_view> above_a = absl::StrSplit(a, '.');
  const std::vector<absl::string_view> above_b = absl::StrSplit(b, '.');
  if (a.empty() || b.empty()) return INT_MAX;
  size_t shared = 0;
  while (shared < std::min(above_a.size(), above_b.size()) && above_a[shared] == above_b[shared]) {
    ++shared;
  }
  return static_cast<int>(std::max(above_a.size(), above_b.size()) - shared);
}

bool IsBlamed(const HostState& host, absl::Time now) {
  return host.blamed != absl::UnixEpoch() && now - host.blamed < kBlameLasts;
}

}  // namespace

std::string SpareFor(const JobState& state, const std::string& rack) {
  const std::string* best = nullptr;
  std::pair<bool, int> least;
  for (const auto& [name, host] : state.hosts) {
    if (host.node >= 0 || host.evicted || host.test != 0) continue;
    const std::pair<bool, int> cost(host.cleared, RackDistance(rack, host.rack));
    if (best != nullptr && cost >= least) continue;
    best = &name;
    least = cost;
  }
  return best == nullptr ? "" : *best;
}

std::vector<std::string> TestHelpersFor(const JobState& state, const std::string& name,
                                        const HostState& suspect) {
  const auto distance = [&suspect](const HostState& host) {
    const bool other_rack = host.rack.empty() || host.rack != suspect.rack;
    const int nodes =
        host.node < 0 || suspect.node < 0 ? INT_MAX : std::abs(host.node - suspect.node);
    return std::pair(other_rack, nodes);
  };
  std::vector<std::string> names;
  for (const auto& [other, host] : state.hosts) {
    if (other != name && !host.evicted && host.test == 0) names.push_back(other);
  }
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return distance(state.hosts.at(a)) < distance(state.hosts.at(b));
  });
  names.resize(std::min(names.size(), kTestHelpers));
  return names;
}

std::vector<std::string> ReplayHosts(const JobState& state) {
  std::vector<std::string> hosts;
  for (const NodeState& node : state.nodes) {
    if (!node.host.empty() && state.hosts.at(node.host).test == 0) hosts.push_back(node.host);
  }
  for (const auto& [name, host] : state.hosts) {
    if (host.node < 0 && !host.evicted && host.test == 0) hosts.push_back(name);
  }
  return hosts;
}

std::string HostAtFault(const JobState& state, const std::string& name, absl::Time now) {
  const auto own = state.hosts.find(name);
  if (own != state.hosts.end() && IsBlamed(own->second, now)) return name;
  const auto blamed =
      std::find_if(state.hosts.begin(), state.hosts.end(),
                   [now](const auto& entry) { return IsBlamed(entry.second, now); });
  return blamed == state.hosts.end() ? name : blamed->first;
}

}  // namespace weft::recovery
