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

// Bytes a second of the links that are up and lead to switches.
double RateToSwitches(const Fabric& fabric, absl::Span<const LinkId> links) {
  double rate = 0;
  for (LinkId id : links) {
    const FabricLink& link = fabric.link(id);
    const bool counts = link.up && fabric.node(link.target).kind == NodeKind::kSwitch;
    if (counts) rate += link.bandwidth.bytes_per_second();
  }
  return rate;
}

}  // namespace

absl::StatusOr<RankPlace> PlaceOnFabric(const Fabric& fabric, NodeId host) {
  RankPlace place;
  place.host = fabric.node(host).name;
  if (fabric.node(host).kind != NodeKind::kHost) {
    return absl::InvalidArgumentError(absl::StrCat(place.host, " is a switch, not a host"));
  }
  place.nics = fabric.nics(host);
  for (int nic = 0; nic < place.nics; ++nic) {
    const double rate = RateToSwitches(fabric, fabric.Ports({host, nic}));
    if (rate == 0) continue;
    place.host_rate += rate;
    place.nic_rate = place.nic_rate == 0 ? rate : std::min(place.nic_rate, rate);
    for (LinkId id : fabric.Ports({host, nic})) {
      const FabricLink& link = fabric.link(id);
      if (!link.up || !place.switch_name.empty()) continue;
      place.switch_name = fabric.node(link.target).name;
      place.switch_rate = RateToSwitches(fabric, fabric.LinksFrom(link.target));
    }
  }
  if (place.host_rate > 0) return place;
  return absl::FailedPreconditionError(
      absl::StrCat("host ", place.host, " has no link that is up"));
}

absl::StatusOr<FabricNetwork> NetworkOf(const Fabric& fabric, absl::Span<const NodeId> hosts) {
  FabricNetwork network;
  if (hosts.empty()) return absl::InvalidArgumentError("a group without hosts");
  for (NodeId host : hosts) {
    WEFT_ASSIGN_OR_RETURN(RankPlace place, PlaceOnFabric(fabric, host));
    network.places.push_back(std::move(place));
  }
  const GroupPlace group(network.places);
  network.nics = group.nics;
  network.nic = Bandwidth::BytesPerSecond(group.nic_rate);
  network.host = Bandwidth::BytesPerSecond(group.host_rate);
  const std::vector<absl::Duration> delays = DelaysFrom(fabric, hosts[0]);
  for (size_t i = 1; i < hosts.size(); ++i) {
    const absl::Duration delay = delays[hosts[i].index()];
    if (delay < absl::ZeroDuration()) {
      return absl::FailedPreconditionError(absl::StrCat("no path leads from host ",
                                                        fabric.node(hosts[0]).name, " to host ",
                                                        fabric.node(hosts[i]).name));
    }
    network.delay = std::max(network.delay, delay);
  }
  return network;
}

}  // namespace weft::collectives::planner
