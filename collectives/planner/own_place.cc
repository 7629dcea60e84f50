#include "collectives/planner/own_place.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/first_line.h"
#include "base/host_name.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/tcp/planned_ways.h"
#include "topology/host/cpu_mask.h"
#include "topology/plan/connection_plan.h"
#if WEFT_HAS_FABRICS
#include "collectives/planner/fabric_network.h"
#include "topology/fabric/load.h"
#endif

namespace weft::collectives::planner {
namespace {

// `setting`: what named the file.
absl::StatusOr<RankPlace> OnFabric(absl::string_view setting, const std::string& file,
                                   const std::string& wanted) {
#if WEFT_HAS_FABRICS
  WEFT_ASSIGN_OR_RETURN(const topology::Fabric fabric, topology::LoadFabric(file));
  const std::string name = wanted.empty() ? HostName() : wanted;
  absl::StatusOr<NodeId> host = fabric.Find(name);
  if (!host.ok() && wanted.empty()) host = fabric.Find(name.substr(0, name.find('.')));
  if (!host.ok()) {
    return Annotate(host.status(),
                    absl::StrCat(setting, "=", file, " lacks this host, \"", name,
                                 "\"; collective.fabric_host says what it is called there"));
  }
  return PlaceOnFabric(fabric, *host);
#else
  (void)wanted;
  return absl::UnimplementedError(
      absl::StrCat(setting, "=", file, ": this build has no fabrics (WEFT_PLANNING)"));
#endif
}

// The fabric that a plan directory was made for, and what this host is called in it: the host of
// paths.txt that has one of this machine's addresses. What cannot be read, or is for other hosts,
// is refused by the transports, which go by the same directory; here nothing is known then.
absl::StatusOr<RankPlace> OnPlan(const std::string& folder, const std::string& wanted) {
  const std::string file = absl::StrCat(folder, "/fabric.toml");
  std::error_code error;
  if (WEFT_HAS_FABRICS == 0 || !std::filesystem::exists(file, error)) return RankPlace();
  std::string host = wanted;
  if (host.empty()) {
    const auto plan = topology::ConnectionPlan::Load(folder);
    const auto interfaces = net::ListInterfaces();
    if (!plan.ok() || !interfaces.ok()) return RankPlace();
    for (const net::Interface& interface : *interfaces) {
      const auto found = (*plan)->HostOf(net::ToIpAddress(interface.address));
      if (found.ok()) host = *found;
    }
    if (host.empty()) return RankPlace();
  }
  return OnFabric("plan", file, host);
}

}  // namespace

int NumaNodeOf(const CpuSet& cpus, const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    absl::string_view number = name;
    int node = 0;
    if (!absl::ConsumePrefix(&number, "node") || !absl::SimpleAtoi(number, &node)) continue;
    const std::optional<CpuSet> of_node =
        topology::ParseCpuMask(FirstLine((entry.path() / "cpumap").string()));
    if (cpus.empty() || !of_node.has_value()) continue;
    if (std::includes(of_node->begin(), of_node->end(), cpus.begin(), cpus.end())) return node;
  }
  return -1;
}

absl::StatusOr<RankPlace> OwnPlace(const Settings& settings) {
  RankPlace place;
  if (const std::string& file = settings.Text("collective.fabric"); !file.empty()) {
    WEFT_ASSIGN_OR_RETURN(
        place, OnFabric("collective.fabric", file, settings.Text("collective.fabric_host")));
  } else if (const std::string& plan = settings.Text("plan"); !plan.empty()) {
    WEFT_ASSIGN_OR_RETURN(place, OnPlan(plan, settings.Text("collective.fabric_host")));
  }
  const absl::StatusOr<CpuSet> cpus = AllowedCpus();
  if (cpus.ok()) place.numa = NumaNodeOf(*cpus, "/sys/devices/system/node");
  return place;
}

}  // namespace weft::collectives::planner
