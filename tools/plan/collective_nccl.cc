#include "tools/plan/collective_nccl.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "collectives/planner/fabric_network.h"
#include "collectives/planner/nccl_times.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;
namespace planner = collectives::planner;
using planner::NcclAlgorithm;
using planner::NcclProtocol;

struct NcclTime {
  std::string name;  // "Ring/LL128"
  double microseconds;
};

// What NCCL has for this kind and size, the fastest first.
std::vector<NcclTime> TimesOf(const planner::NcclTimes& times, collectives::CollectiveKind kind,
                              int64_t bytes) {
  std::vector<NcclTime> out;
  for (NcclAlgorithm algorithm :
       {NcclAlgorithm::kRing, NcclAlgorithm::kTree, NcclAlgorithm::kPat}) {
    for (NcclProtocol protocol : {NcclProtocol::kLl, NcclProtocol::kLl128, NcclProtocol::kSimple}) {
      const auto time = times.Predict(kind, static_cast<uint64_t>(bytes), algorithm, protocol);
      if (!time.has_value()) continue;
      out.push_back({absl::StrCat(ToString(algorithm), "/", ToString(protocol)),
                     absl::ToDoubleMicroseconds(*time)});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const NcclTime& a, const NcclTime& b) {
    return a.microseconds < b.microseconds;
  });
  return out;
}

}  // namespace

absl::Status PlanNccl(const CollectiveGroup& group, absl::Span<const int64_t> sizes,
                      const std::string& json) {
  if (!group.network.has_value()) {
    return absl::InvalidArgumentError("--nccl needs the fabric between the hosts: --fabric");
  }
  if (group.hosts < 2) {
    return absl::InvalidArgumentError("--nccl: no network is between the ranks of one host");
  }
  WEFT_ASSIGN_OR_RETURN(const planner::FabricNetwork network,
                        planner::NetworkOf(*group.network, group.nodes));
  const planner::NcclTimes times(
      group.ranks, group.hosts,
      {.nics = network.nics, .nic = network.nic, .delay = network.delay, .hosts = network.places});
  ordered_json result{{"collective", ToString(group.kind)},
                      {"ranks", group.ranks},
                      {"hosts", group.hosts},
                      {"fabric", group.fabric},
                      {"sizes", ordered_json::array()}};
  std::string table = absl::StrFormat(
      "%s by NCCL: %d ranks on %d hosts of %s\n\n%10s  %-14s %12s  %s\n", ToString(group.kind),
      group.ranks, group.hosts, group.fabric, "size", "fastest", "time (us)", "then");
  for (int64_t bytes : sizes) {
    const std::vector<NcclTime> found = TimesOf(times, group.kind, bytes);
    if (found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nccl: NCCL chooses nothing for ", ToString(group.kind),
                       "; it does for all_reduce, all_gather, reduce_scatter, broadcast, reduce"));
    }
    ordered_json of_size{{"bytes", bytes}, {"times", ordered_json::array()}};
    std::string then;
    for (size_t i = 0; i < found.size(); ++i) {
      of_size["times"].push_back({{"name", found[i].name}, {"time_us", found[i].microseconds}});
      if (i == 0) continue;
      absl::StrAppendFormat(&then, "%s%s %.1f", i > 1 ? ", " : "", found[i].name,
                            found[i].microseconds);
    }
    result["sizes"].push_back(std::move(of_size));
    absl::StrAppendFormat(&table, "%10s  %-14s %12.1f  %s\n", ToString(Bytes(bytes)), found[0].name,
                          found[0].microseconds, then);
  }
  if (json != "-") absl::PrintF("%s", table);
  return json.empty() ? absl::OkStatus() : WriteOutput(json, JsonText(result, 2) + "\n");
}

}  // namespace weft::plan
