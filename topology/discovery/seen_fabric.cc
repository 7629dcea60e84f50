#include "topology/discovery/seen_fabric.h"

#include <algorithm>

namespace weft::topology {

std::map<SeenNic, int> LeavesOf(const SeenFabric& seen) {
  std::map<SeenNic, SeenNic> parent;
  const auto root = [&](SeenNic nic) {
    while (parent.at(nic) != nic) nic = parent.at(nic);
    return nic;
  };
  const auto join = [&](SeenNic one, SeenNic other) {
    const SeenNic a = root(one), b = root(other);
    parent[std::max(a, b)] = std::min(a, b);
  };
  for (size_t host = 0; host < seen.hosts.size(); ++host) {
    for (size_t nic = 0; nic < seen.hosts[host].addresses.size(); ++nic) {
      const SeenNic own{static_cast<int>(host), static_cast<int>(nic)};
      parent[own] = own;
    }
  }
  for (const SeenPair& pair : seen.pairs) {
    if (!pair.heard || pair.routers > 1) continue;
    // Switches that count no hops tell leaves apart by LLDP alone.
    const auto a = seen.neighbors.find(pair.source), b = seen.neighbors.find(pair.target);
    if (pair.routers == 0 && a != seen.neighbors.end() && b != seen.neighbors.end()) continue;
    join(pair.source, pair.target);
  }
  std::map<std::string, SeenNic> first;
  for (const auto& [nic, name] : seen.neighbors) {
    join(nic, first.try_emplace(name, nic).first->second);
  }
  std::map<SeenNic, int> number;
  std::map<SeenNic, int> out;
  for (const auto& [nic, _] : parent) {
    out[nic] = number.try_emplace(root(nic), static_cast<int>(number.size())).first->second;
  }
  return out;
}

}  // namespace weft::topology
