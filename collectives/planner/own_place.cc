#include "collectives/planner/own_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/first_line.h"
#include "base/status.h"
#include "topology/host/cpu_mask.h"
#if WEFT_HAS_FABRICS
#include "base/read_file.h"
#include "collectives/planner/fabric_network.h"
#include "topology/fabric/load.h"
#include "topology/order/rank_files.h"
#endif

namespace weft::collectives::planner {
namespace {

constexpr const char* kRankFile = "ranks.txt";  // of a plan directory

#if WEFT_HAS_FABRICS
absl::StatusOr<std::string> KernelsHostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return ErrnoStatus(errno, "ask the kernel for this host's name");
  }
  return std::string(name.data());
}
#endif

absl::StatusOr<RankPlace> OnFabric(const std::string& file, const std::string& wanted) {
#if WEFT_HAS_FABRICS
  WEFT_ASSIGN_OR_RETURN(const topology::Fabric fabric, topology::LoadFabric(file));
  std::string name = wanted;
  if (name.empty()) {
    WEFT_ASSIGN_OR_RETURN(name, KernelsHostName());
  }
  absl::StatusOr<NodeId> host = fabric.Find(name);
  if (!host.ok() && wanted.empty()) host = fabric.Find(name.substr(0, name.find('.')));
  if (!host.ok()) {
    return Annotate(host.status(),
                    absl::StrCat("collective.fabric=", file, " lacks this host, \"", name,
                                 "\"; collective.fabric_host says what it is called there"));
  }
  return PlaceOnFabric(fabric, *host);
#else
  (void)wanted;
  return absl::UnimplementedError(
      absl::StrCat("collective.fabric=", file, ": this build has no fabrics (WEFT_PLANNING)"));
#endif
}

// On the host that the plan's launchers place it on.
absl::StatusOr<RankPlace> OnPlan(const std::string& fabric_file, const std::string& rank_file,
                                 Rank rank) {
#if WEFT_HAS_FABRICS
  WEFT_ASSIGN_OR_RETURN(const topology::Fabric fabric, topology::LoadFabric(fabric_file));
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(rank_file));
  WEFT_ASSIGN_OR_RETURN(const topology::RankTable ranks, topology::ParseRankFile(text, rank_file));
  if (rank.index() >= ranks.size()) {
    return absl::NotFoundError(
        absl::StrCat(rank_file, " has ", ranks.size(), " ranks, and not rank ", rank.value()));
  }
  WEFT_ASSIGN_OR_RETURN(const NodeId host, fabric.Find(ranks[rank.index()].host));
  return PlaceOnFabric(fabric, host);
#else
  (void)fabric_file, (void)rank_file, (void)rank;
  return RankPlace();  // transports alone use the plan
#endif
}

}  // namespace

std::string PlannedFabric(const Settings& settings) {
  const std::filesystem::path folder = settings.Text("plan");
  if (folder.empty()) return "";
  std::error_code error;
  const bool ordered = std::filesystem::exists(folder / kRankFile, error);
  const std::filesystem::path fabric = folder / "fabric.toml";
  return ordered && std::filesystem::exists(fabric, error) ? fabric.string() : "";
}

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

absl::StatusOr<RankPlace> OwnPlace(const Settings& settings, Rank rank) {
  RankPlace place;
  if (const std::string& file = settings.Text("collective.fabric"); !file.empty()) {
    WEFT_ASSIGN_OR_RETURN(place, OnFabric(file, settings.Text("collective.fabric_host")));
  } else if (const std::string planned = PlannedFabric(settings); !planned.empty()) {
    const std::filesystem::path ranks = std::filesystem::path(settings.Text("plan")) / kRankFile;
    WEFT_ASSIGN_OR_RETURN(place, OnPlan(planned, ranks.string(), rank));
  }
  const absl::StatusOr<CpuSet> cpus = AllowedCpus();
  if (cpus.ok()) place.numa = NumaNodeOf(*cpus, "/sys/devices/system/node");
  return place;
}

}  // namespace weft::collectives::planner
