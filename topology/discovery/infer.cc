#include "topology/discovery/infer.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "topology/discovery/leaves.h"
#include "topology/discovery/path_checks.h"
#include "topology/discovery/switches.h"

namespace weft::topology {
namespace {

constexpr absl::Duration kCableDelay = absl::Nanoseconds(500);

// (0, leaf, rank of spine) or (1, rank of spine, rank of core).
using CableEnds = std::tuple<int, int, int>;

// Interfaces of a cable's lower end, if `name` is of this cable alone; else 1.
size_t OwnedBy(const std::string& name, const CableEnds& key,
               const std::map<CableEnds, std::set<std::string>>& seen) {
  for (const auto& [other, names] : seen) {
    if (other != key && names.count(name) > 0) return 1;
  }
  return seen.at(key).size();
}

absl::Status CheckHosts(const SeenFabric& seen) {
  std::map<int, int> heard, asked;
  for (const SeenPair& pair : seen.pairs) {
    ++asked[pair.target.host];
    heard[pair.target.host] += pair.heard ? 1 : 0;
  }
  std::vector<std::string> silent;
  for (const auto& [host, count] : asked) {
    if (heard[host] == 0) silent.push_back(seen.hosts[static_cast<size_t>(host)].name);
  }
  if (silent.empty() && !seen.pairs.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      silent.empty()
          ? "one host alone has no fabric: start this on two at least"
          : absl::StrCat("no probe of any other host was answered by ", absl::StrJoin(silent, ", "),
                         ": is UDP between hosts let through, and are these its "
                         "addresses?"));
}

// What was found, as a fabric.
class Assembly {
 public:
  Assembly(const SeenFabric& seen, const InferOptions& options, const Leaves& leaves,
           const Switches& switches, const PathCounts& paths)
      : seen_(seen), options_(options), leaves_(leaves), switches_(switches), paths_(paths) {}

  // Every switch that --switch-bandwidth names must be there.
  absl::Status CheckBandwidths() const {
    for (const auto& [name, _] : options_.bandwidth_below) {
      const bool is_known = std::any_of(
          switches_.numbers().begin(), switches_.numbers().end(),
          [&](int root) { return name == switches_.at(root).name || switches_.Has(root, name); });
      if (is_known) continue;
      std::vector<std::string> names;
      for (int root : switches_.numbers()) names.push_back(switches_.at(root).name);
      return absl::InvalidArgumentError(absl::StrCat("--switch-bandwidth names ", name,
                                                     ", which is no switch above the leaves; "
                                                     "these are ",
                                                     absl::StrJoin(names, ", ")));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Fabric> Build() {
    FabricBuilder builder;
    std::map<int, NodeId> leaf_id, switch_id;
    std::vector<NodeId> host_id;
    for (const SeenHost& host : seen_.hosts) {
      FabricNode node;
      node.name = host.name;
      WEFT_ASSIGN_OR_RETURN(NodeId id, builder.Add(node));
      host_id.push_back(id);
    }
    for (int leaf = 0; leaf < leaves_.count(); ++leaf) {
      FabricNode node;
      node.name = absl::StrCat("leaf", leaf);
      node.kind = NodeKind::kSwitch;
      node.tier = 1;
      WEFT_ASSIGN_OR_RETURN(leaf_id[leaf], builder.Add(node));
    }
    for (int number : switches_.numbers()) {
      FabricNode node;
      node.name = switches_.at(number).name;
      node.kind = NodeKind::kSwitch;
      node.tier = switches_.at(number).tier;
      WEFT_ASSIGN_OR_RETURN(switch_id[number], builder.Add(node));
    }
    FabricBuilder::Cable cable;
    cable.delay = kCableDelay;
    for (const auto& [nic, leaf] : leaves_.of_nics()) {
      const SeenHost& host = seen_.hosts[static_cast<size_t>(nic.host)];
      cable.bandwidth = host.bandwidths[static_cast<size_t>(nic.nic)];
      cable.nic = nic.nic;
      WEFT_RETURN_IF_ERROR(
          builder.Connect(host_id[static_cast<size_t>(nic.host)], leaf_id[leaf], cable).status());
    }
    cable.nic = -1;
    const std::vector<int>& numbers = switches_.numbers();
    std::map<int, size_t> rank;
    for (size_t i = 0; i < numbers.size(); ++i) rank[numbers[i]] = i;
    for (const auto& [ends, count] : Cables(rank)) {
      const auto& [is_leaf, lower, upper] = ends;
      const NodeId from =
          is_leaf == 0 ? leaf_id[lower] : switch_id[numbers[static_cast<size_t>(lower)]];
      const int above = numbers[static_cast<size_t>(upper)];
      WEFT_ASSIGN_OR_RETURN(const Bandwidth each, BandwidthBelow(above));
      // Names of switches tell the way of a flow, not which of several cables to one it takes: no
      // hash over these can be learned.
      cable.bandwidth = each * static_cast<double>(count);
      cables_most_ = std::max(cables_most_, count);
      WEFT_RETURN_IF_ERROR(builder.Connect(from, switch_id[above], cable).status());
    }
    return std::move(builder).Build();
  }

  HashFile Known() const {
    HashFile out;
    for (const SeenHost& host : seen_.hosts) {
      for (size_t nic = 0; nic < host.addresses.size(); ++nic) {
        out.addresses[{host.name, static_cast<int>(nic)}] = host.addresses[nic];
      }
    }
    for (int number : switches_.numbers()) {
      const Switches::Switch& found = switches_.at(number);
      for (const std::string& name : found.names) {
        if (seen_.loaded.count(name) == 0) out.routers[name] = found.name;
      }
    }
    return out;
  }

  // For people; after Build().
  std::vector<std::string> Notes() const {
    std::vector<std::string> notes;
    notes.push_back(absl::StrFormat(
        "%d hosts under %d leaves, %d switches above them; up to %d paths between two leaves",
        seen_.hosts.size(), leaves_.count(), switches_.numbers().size(), paths_.paths_most));
    if (paths_.paths_most > 0) {
      notes.push_back(absl::StrFormat(
          "%d probes or more between two leaves; the chance that one more path was missed is "
          "%.2g at most",
          paths_.fewest, paths_.missed));
    }
    if (cables_most_ > 1) {
      notes.push_back(absl::StrFormat(
          "up to %d cables between two switches: each such group is one cable here, "
          "of the bandwidth of all",
          cables_most_));
    }
    if (leaves_.unheard() > 0) {
      notes.push_back(absl::StrFormat("%d of %d pairs did not hear each other", leaves_.unheard(),
                                      seen_.pairs.size()));
    }
    std::map<int, std::vector<absl::Duration>> trips;
    for (const SeenPair& pair : seen_.pairs) {
      if (pair.heard) trips[pair.routers].push_back(pair.rtt);
    }
    for (auto& [routers, all] : trips) {
      std::sort(all.begin(), all.end());
      notes.push_back(absl::StrFormat("round trip over %d routers: %.0f us, median of %d pairs",
                                      routers, absl::ToDoubleMicroseconds(all[all.size() / 2]),
                                      all.size()));
    }
    if (!seen_.load_note.empty()) notes.push_back(seen_.load_note);
    std::map<int, std::string> lldp;
    for (const auto& [nic, name] : seen_.neighbors) lldp[leaves_.Of(nic)] = name;
    for (const auto& [leaf, name] : lldp) {
      notes.push_back(absl::StrCat("leaf", leaf, " is ", name, ", by LLDP"));
    }
    for (const auto& [name, bandwidth] : options_.bandwidth_below) {
      notes.push_back(absl::StrFormat("bandwidth below %s: %g Gbit/s, as it was given", name,
                                      bandwidth.gigabits_per_second()));
    }
    notes.push_back(options_.switch_bandwidth > Bandwidth()
                        ? "bandwidth between switches: as it was given"
                    : !seen_.loaded.empty()
                        ? "bandwidth between switches: what arrived over each path under load"
                        : "bandwidth between switches: taken to be that of the first host's NIC, "
                          "not measured (--switch-bandwidth)");
    return notes;
  }

 private:
  // The bandwidth of each of a switch's cables down.
  absl::StatusOr<Bandwidth> BandwidthBelow(int root) const {
    for (const auto& [name, bandwidth] : options_.bandwidth_below) {
      if (name == switches_.at(root).name || switches_.Has(root, name)) return bandwidth;
    }
    if (options_.switch_bandwidth > Bandwidth()) return options_.switch_bandwidth;
    for (const auto& [name, bandwidth] : seen_.loaded) {
      if (switches_.Has(root, name)) return bandwidth;
    }
    if (seen_.loaded.empty()) return seen_.hosts[0].bandwidths[0];
    return absl::FailedPreconditionError(
        absl::StrCat("no load told the bandwidth of ", switches_.at(root).name, " (",
                     switches_.at(root).names.front(), "): ", seen_.loaded.size(),
                     " paths were loaded, and none is over it; --switch-bandwidth ",
                     switches_.at(root).name, "=100Gbps tells it"));
  }

  // Cables between each two switches, by the interfaces that were recorded. `rank`: position in
  // Switches::numbers().
  std::map<CableEnds, size_t> Cables(const std::map<int, size_t>& rank) const {
    std::map<CableEnds, std::set<std::string>> seen;
    for (const SeenFlow& flow : seen_.flows) {
      const size_t routers = leaves_.RoutersOf(flow);
      for (size_t i = 0; i + 1 < routers; ++i) {
        const bool from_leaf = i == 0, to_leaf = i + 2 == routers;
        const int a = from_leaf ? leaves_.Of(flow.source) : switches_.SwitchAt(flow, i);
        const int b = to_leaf ? leaves_.Of(flow.target) : switches_.SwitchAt(flow, i + 1);
        if (a < 0 || b < 0) continue;
        const auto number = [&](int root) { return static_cast<int>(rank.at(root)); };
        CableEnds key;
        bool is_up = true;
        if (from_leaf) {
          key = {0, a, number(b)};
        } else if (to_leaf) {
          key = {0, b, number(a)};
          is_up = false;
        } else if (switches_.at(a).tier < switches_.at(b).tier) {
          key = {1, number(a), number(b)};
        } else {
          key = {1, number(b), number(a)};
          is_up = false;
        }
        // Parallel cables have interfaces of their own; either end's are counted, the lower's best.
        std::set<std::string>& names = seen[key];
        if (is_up && i < flow.recorded.size()) names.insert(flow.recorded[i]);
      }
    }
    std::map<CableEnds, size_t> out;
    for (const auto& [key, names] : seen) {
      size_t count = 1;
      // One name for all is no interface's.
      for (const std::string& name : names) count = std::max(count, OwnedBy(name, key, seen));
      out[key] = count > 1 ? names.size() : 1;
    }
    return out;
  }

  const SeenFabric& seen_;
  const InferOptions& options_;
  const Leaves& leaves_;
  const Switches& switches_;
  const PathCounts& paths_;
  size_t cables_most_ = 0;  // between two switches
};

}  // namespace

absl::StatusOr<InferredFabric> InferFabric(const SeenFabric& seen, const InferOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckHosts(seen));
  WEFT_ASSIGN_OR_RETURN(const Leaves leaves, Leaves::Find(seen));
  WEFT_ASSIGN_OR_RETURN(const Switches switches, Switches::Find(seen, leaves));
  WEFT_ASSIGN_OR_RETURN(const PathCounts paths,
                        CheckPaths(seen, leaves, switches, options.missed_max));
  Assembly assembly(seen, options, leaves, switches, paths);
  WEFT_RETURN_IF_ERROR(assembly.CheckBandwidths());
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, assembly.Build());
  const bool recorded = std::any_of(seen.flows.begin(), seen.flows.end(),
                                    [](const SeenFlow& flow) { return !flow.recorded.empty(); });
  return InferredFabric{std::move(fabric), assembly.Known(), assembly.Notes(), paths.missed,
                        recorded};
}

}  // namespace weft::topology
