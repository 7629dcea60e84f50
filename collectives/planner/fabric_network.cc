#include "collectives/planner/fabric_network.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives::planner {
namespace {

using topology::Fabric;
using topology::FabricLink;
using topology::NodeKind;

// One way from `source` to every node over the fewest links, the shortest of them; < 0:
// unreachable.
std::vector<absl::Duration> DelaysFrom(const Fabric& fabric, NodeId source) {
  const absl::Duration unknown = -absl::InfiniteDuration();
  std::vector<absl::Duration> delays(static_cast<size_t>(fabric.nodes()), unknown);
  delays[source.index()] = absl::ZeroDuration();
  std::vector<NodeId> reached{source};
  while (!reached.empty()) {
    std::map<NodeId, absl::Duration> next;
    for (NodeId at : reached) {
      const bool forwards = at == source || fabric.node(at).kind == NodeKind::kSwitch;
      for (LinkId id : forwards ? fabric.LinksFrom(at) : absl::Span<const LinkId>()) {
        const FabricLink& link = fabric.link(id);
        if (!link.up || delays[link.target.index()] != unknown) continue;
        const absl::Duration delay =
            delays[at.index()] + link.delay + fabric.node(link.target).latency;
        const auto [entry, is_new] = next.emplace(link.target, delay);
        if (!is_new) entry->second = std::min(entry->second, delay);
      }
    }
    reached.clear();
    for (const auto& [node, delay] : next) {
      delays[node.index()] = delay;
      reached.push_back(node);
    }
  }
  return delays;
}

// Rates of a host's NICs, and the switch of the first.
absl::Status AddHost(const Fabric& fabric, NodeId host, FabricNetwork& network) {
  Bandwidth together;
  NodeId first;
  for (int nic = 0; nic < fabric.nics(host); ++nic) {
    Bandwidth rate;
    for (LinkId id : fabric.Ports({host, nic})) {
      const FabricLink& link = fabric.link(id);
      if (!link.up) continue;
      rate = Bandwidth::BytesPerSecond(rate.bytes_per_second() + link.bandwidth.bytes_per_second());
      if (first == NodeId()) first = link.target;
    }
    if (rate == Bandwidth()) continue;
    together = Bandwidth::BytesPerSecond(together.bytes_per_second() + rate.bytes_per_second());
    network.nic = network.nic == Bandwidth() ? rate : std::min(network.nic, rate);
  }
  if (first == NodeId()) {
    return absl::FailedPreconditionError(
        absl::StrCat("host ", fabric.node(host).name, " has no link that is up"));
  }
  const bool is_first = network.switches.empty();
  network.nics = is_first ? fabric.nics(host) : std::min(network.nics, fabric.nics(host));
  network.host = is_first ? together : std::min(network.host, together);
  network.switches.push_back(fabric.node(first).name);
  return absl::OkStatus();
}

Bandwidth BeyondSwitch(const Fabric& fabric, const FabricNetwork& network) {
  std::map<std::string, double> served;
  for (const std::string& name : network.switches) served[name] += 1;
  Bandwidth least = network.host;
  if (served.size() < 2) return least;
  for (const auto& [name, hosts] : served) {
    double out = 0;
    for (LinkId id : fabric.LinksFrom(*fabric.Find(name))) {
      const FabricLink& link = fabric.link(id);
      const bool away = fabric.node(link.target).kind == NodeKind::kSwitch;
      if (away && link.up) out += link.bandwidth.bytes_per_second();
    }
    if (out > 0) least = std::min(least, Bandwidth::BytesPerSecond(out / hosts));
  }
  return least;
}

}  // namespace

absl::StatusOr<FabricNetwork> NetworkOf(const Fabric& fabric, absl::Span<const NodeId> hosts) {
  FabricNetwork network;
  if (hosts.empty()) return absl::InvalidArgumentError("a group without hosts");
  for (NodeId host : hosts) WEFT_RETURN_IF_ERROR(AddHost(fabric, host, network));
  const std::vector<absl::Duration> delays = DelaysFrom(fabric, hosts[0]);
  for (size_t i = 1; i < hosts.size(); ++i) {
    const absl::Duration delay = delays[hosts[i].index()];
    if (delay < absl::ZeroDuration()) {
      return absl::FailedPreconditionError(absl::StrCat("no path leads from host ",
                                                        fabric.node(hosts[0]).name, " to host ",
                                                        fabric.node(hosts[i]).name));
    }
    network.delay = std::max(network.delay, delay);
    if (network.switches[i] == network.switches[0]) network.nearest = delay;
  }
  network.beyond_switch = BeyondSwitch(fabric, network);
  return network;
}

CostTable OnNetwork(CostTable table, const FabricNetwork& network) {
  // ns for a byte.
  const double nic = 1e9 / network.nic.bytes_per_second();
  const double host = 1e9 / network.host.bytes_per_second();
  table.across.byte = std::max(table.across.byte, nic);
  table.across.host_byte = host;
  table.across.latency += absl::ToDoubleNanoseconds(network.delay);
  return table;
}

}  // namespace weft::collectives::planner
