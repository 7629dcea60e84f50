#include "tools/plan/collective_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "collectives/planner/fabric_network.h"
#include "topology/fabric/load.h"
#include "topology/job/hostlist.h"
#include "topology/order/find_hosts.h"

namespace weft::plan {

namespace planner = collectives::planner;

std::string CollectiveGroup::Describe() const {
  std::string switches;
  if (place != nullptr && place->switches.size() >= 2) {
    switches = absl::StrCat(" under ", place->switches.size(), " switches");
  }
  return absl::StrCat(
      ranks, ranks == 1 ? " rank" : " ranks", " on ", hosts, hosts == 1 ? " host" : " hosts",
      switches, fabric.empty() ? "" : " of ", fabric, ", ", table.cores,
      table.cores == 1 ? " core" : " cores", " each with a cache of ",
      ToString(Bytes(static_cast<int64_t>(table.cache_bytes))), "; costs: ", table.source);
}

absl::StatusOr<std::vector<collectives::RankPlace>> PlacesOnFabric(const std::string& name,
                                                                   const std::string& hosts,
                                                                   CollectiveGroup& group) {
  WEFT_ASSIGN_OR_RETURN(topology::Fabric fabric, topology::LoadFabric(name));
  std::vector<NodeId> nodes(fabric.hosts().begin(), fabric.hosts().end());
  if (size_t number = 0; absl::SimpleAtoi(hosts, &number)) {
    if (number < 1 || number > nodes.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--hosts ", hosts, ": the fabric ", name,
                                                     " has 1 to ", nodes.size(), " hosts to take"));
    }
    nodes.resize(number);
  } else if (!hosts.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> wanted, topology::ExpandHostlist(hosts));
    WEFT_ASSIGN_OR_RETURN(nodes, topology::FindHosts(fabric, wanted));
  }
  WEFT_ASSIGN_OR_RETURN(planner::FabricNetwork network, planner::NetworkOf(fabric, nodes));
  group.software_latency = group.table.across.latency;
  group.table.across.latency += absl::ToDoubleNanoseconds(network.delay);
  group.fabric = name;
  group.network = std::move(fabric);
  group.nodes = std::move(nodes);
  return std::move(network.places);
}

absl::StatusOr<std::vector<collectives::RankPlace>> PlacesByNumber(const std::string& hosts) {
  int number = 1;
  if (!hosts.empty() && (!absl::SimpleAtoi(hosts, &number) || number < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hosts '", hosts, "' is no number of hosts; names of hosts need --fabric"));
  }
  if (number > kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hosts ", number, ": a group has at most ", kRanksMax, " ranks"));
  }
  std::vector<collectives::RankPlace> places(static_cast<size_t>(number));
  for (int h = 0; h < number; ++h) places[static_cast<size_t>(h)].host = absl::StrCat("h", h);
  return places;
}

absl::Status Spread(absl::Span<const collectives::RankPlace> hosts, int ranks_per_host,
                    CollectiveGroup& group) {
  if (ranks_per_host == 0) ranks_per_host = std::max(hosts[0].nics, 1);
  const int64_t ranks = static_cast<int64_t>(hosts.size()) * ranks_per_host;
  if (ranks > kRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat(hosts.size(), " hosts with --ranks-per-host ",
                                                   ranks_per_host, " are ", ranks,
                                                   " ranks; a group has at most ", kRanksMax));
  }
  std::vector<collectives::RankPlace> places;
  for (const collectives::RankPlace& host : hosts) {
    places.insert(places.end(), static_cast<size_t>(ranks_per_host), host);
  }
  group.hosts = static_cast<int>(hosts.size());
  group.ranks = static_cast<int>(places.size());
  if (group.hosts > 1) group.place = std::make_shared<const collectives::GroupPlace>(places);
  if (group.root >= 0 && group.root < group.ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--root ", group.root, " of a group of ", group.ranks, " ranks"));
}

}  // namespace weft::plan
