#include "topology/discovery/path_checks.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// Fewer flows between two leaves that told nothing, by number or share, count as lost.
constexpr int kSilentFlows = 3;
constexpr double kSilentShare = 0.03;
// Flows between two NICs that all took one way of two or more; by chance less than one in a
// thousand times where ports count.
constexpr int kFlowsOfOneWay = 12;

// A switch between two leaves carries flows either way, unless it has two numbers.
absl::Status CheckBothWays(const SeenFabric& seen, const Leaves& leaves, const Switches& switches) {
  std::map<LeafPair, std::set<int>> first;
  for (const SeenFlow& flow : seen.flows) {
    if (leaves.RoutersOf(flow) != 3) continue;
    const int at = switches.SwitchAt(flow, 1);
    if (at >= 0) first[{leaves.Of(flow.source), leaves.Of(flow.target)}].insert(at);
  }
  for (const auto& [between, there] : first) {
    auto back = first.find({between.second, between.first});
    if (back == first.end()) continue;
    std::vector<int> common;
    std::set_intersection(there.begin(), there.end(), back->second.begin(), back->second.end(),
                          std::back_inserter(common));
    if (!common.empty()) continue;
    return absl::UnavailableError(absl::StrCat(
        "leaf", between.first, " and leaf", between.second, " each see ", there.size(),
        " routers above them, but by names of their own, and nothing tells which are the same: "
        "routers do not record routes, and answer from another address to each side; write the "
        "fabric file by hand or from LLDP (docs/fabric-format.md)"));
  }
  return absl::OkStatus();
}

// Switches that hash no ports send all flows between two NICs one way, so that more ports tell of
// no other path, and no port chooses one.
absl::Status CheckPortsCount(const SeenFabric& seen, const Leaves& leaves,
                             const Switches& switches) {
  struct Ways {
    std::map<std::pair<SeenNic, SeenNic>, std::map<int, int>> flows;  // [NICs][first switch]
    std::set<int> switches;
  };
  std::map<LeafPair, Ways> by_leaves;
  for (const SeenFlow& flow : seen.flows) {
    if (leaves.RoutersOf(flow) < 3) continue;
    const int at = switches.SwitchAt(flow, 1);
    if (at < 0) continue;
    Ways& all = by_leaves[{leaves.Of(flow.source), leaves.Of(flow.target)}];
    ++all.flows[{flow.source, flow.target}][at];
    all.switches.insert(at);
  }
  for (const auto& [between, all] : by_leaves) {
    int pairs = 0, flows = 0;
    bool is_one_way = all.switches.size() > 1;
    for (const auto& [_, ways] : all.flows) {
      is_one_way = is_one_way && ways.size() == 1;
      if (ways.begin()->second < kFlowsOfOneWay) continue;
      ++pairs;
      flows += ways.begin()->second;
    }
    if (!is_one_way || pairs < 2) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "leaf", between.first, " (", leaves.ExampleOf(between.first), ") has ", all.switches.size(),
        " ways to leaf", between.second,
        ", but sends all flows between two NICs over one of "
        "them, whatever their ports (",
        flows, " flows of ", pairs,
        " pairs): it hashes addresses alone, as Linux does with fib_multipath_hash_policy 0, so "
        "that no source port chooses a path; have it hash ports too (Linux: policy 1)"));
  }
  return absl::OkStatus();
}

// Paths between two leaves, and flows that told theirs.
using PathsSeen = std::map<LeafPair, std::pair<std::set<std::vector<int>>, int>>;

// Flows that told nothing, more than losses explain, may all have passed one silent switch.
absl::Status CheckSilence(const SeenFabric& seen, const Leaves& leaves, const PathsSeen& paths) {
  std::map<LeafPair, int> asked;
  for (const AskedFlows& one : seen.asked) {
    asked[{leaves.Of(one.source), leaves.Of(one.target)}] += one.flows;
  }
  for (const auto& [between, flows] : asked) {
    auto found = paths.find(between);
    const int silent = flows - (found == paths.end() ? 0 : found->second.second);
    if (silent < kSilentFlows || silent < kSilentShare * flows) continue;
    return absl::UnavailableError(absl::StrCat(
        silent, " of ", flows, " flows from leaf", between.first, " (",
        leaves.ExampleOf(between.first), ") to leaf", between.second, " (",
        leaves.ExampleOf(between.second),
        ") told nothing of their way, though asked again: a switch on it is silent, or limits "
        "its "
        "answers, and would be missed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PathCounts> CheckSure(const SeenFabric& seen, const Leaves& leaves,
                                     const Switches& switches, double missed_max) {
  PathsSeen paths;
  for (const SeenFlow& flow : seen.flows) {
    const size_t routers = leaves.RoutersOf(flow);
    std::vector<int> path;
    for (size_t i = 1; i + 1 < routers; ++i) path.push_back(switches.SwitchAt(flow, i));
    if (path.empty() || std::find(path.begin(), path.end(), -1) != path.end()) continue;
    auto& one = paths[{leaves.Of(flow.source), leaves.Of(flow.target)}];
    one.first.insert(std::move(path));
    ++one.second;
  }
  for (int a = 0; a < leaves.count(); ++a) {
    for (int b = a + 1; b < leaves.count(); ++b) {
      const int routers = leaves.Routers(a, b);
      if (routers == 0) continue;
      if (routers == 2) {
        return absl::FailedPreconditionError(
            absl::StrCat("leaf", a, " and leaf", b,
                         " have no router between them: a fabric "
                         "without spines is not one that this finds"));
      }
      // Towards one leaf alone, load has told of all.
      if (paths.count({a, b}) + paths.count({b, a}) > 0 || !seen.loaded.empty()) continue;
      return absl::UnavailableError(absl::StrCat(
          "between leaf", a, " (", leaves.ExampleOf(a), ") and leaf", b, " (", leaves.ExampleOf(b),
          ") are ", routers,
          " routers, but none records a route or answers when the time to "
          "live runs out, so that the number of paths stays unknown; write the fabric file by "
          "hand or from LLDP (docs/fabric-format.md)"));
    }
  }
  WEFT_RETURN_IF_ERROR(CheckSilence(seen, leaves, paths));
  PathCounts counts;
  for (const auto& [_, one] : paths) {
    const double ways = static_cast<double>(one.first.size()) + 1;
    counts.missed = std::max(counts.missed, std::pow(1 - 1 / ways, one.second));
    counts.fewest = std::min<int>(counts.fewest, one.second);
    counts.paths_most = std::max(counts.paths_most, one.first.size());
  }
  if (counts.missed <= missed_max) return counts;
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d probes between two leaves, with up to %d paths, leave a chance of %.2g that a path was "
      "missed, more than the %.2g that is allowed: probe more ports",
      counts.fewest, counts.paths_most, counts.missed, missed_max));
}

}  // namespace

absl::StatusOr<PathCounts> CheckPaths(const SeenFabric& seen, const Leaves& leaves,
                                      const Switches& switches, double missed_max) {
  WEFT_RETURN_IF_ERROR(CheckBothWays(seen, leaves, switches));
  WEFT_RETURN_IF_ERROR(CheckPortsCount(seen, leaves, switches));
  return CheckSure(seen, leaves, switches, missed_max);
}

}  // namespace weft::topology
