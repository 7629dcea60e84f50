#include "topology/discovery/infer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/natural_less.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr absl::Duration kCableDelay = absl::Nanoseconds(500);
// Fewer flows between two leaves that told nothing, by number or share, count as lost.
constexpr int kSilentFlows = 3;
constexpr double kSilentShare = 0.03;
// Hosts times pairs and flows up to which each host is left out once, to find one that lies.
constexpr size_t kLiarWorkMost = 50'000'000;
// Flows between two NICs that all took one way of two or more; by chance less than one in a
// thousand times where ports count.
constexpr int kFlowsOfOneWay = 12;

// Disjoint sets of names.
class Names {
 public:
  int Of(const std::string& name) {
    auto [found, added] = number_.try_emplace(name, static_cast<int>(parent_.size()));
    if (added) parent_.push_back(found->second);
    return found->second;
  }
  int Root(int number) {
    while (parent_[static_cast<size_t>(number)] != number) {
      auto& up = parent_[static_cast<size_t>(number)];
      up = parent_[static_cast<size_t>(up)];
      number = up;
    }
    return number;
  }
  bool Has(const std::string& name, int root) {
    const auto found = number_.find(name);
    return found != number_.end() && Root(found->second) == root;
  }
  void Join(const std::string& a, const std::string& b) {
    parent_[static_cast<size_t>(Root(Of(a)))] = Root(Of(b));
  }
  // By root.
  std::map<int, std::vector<std::string>> Classes() {
    std::map<int, std::vector<std::string>> out;
    for (const auto& [name, number] : number_) out[Root(number)].push_back(name);
    return out;
  }

 private:
  std::map<std::string, int> number_;
  std::vector<int> parent_;
};

class Inference {
 public:
  Inference(const SeenFabric& seen, const InferOptions& options) : seen_(seen), options_(options) {}

  absl::StatusOr<InferredFabric> Run() {
    WEFT_RETURN_IF_ERROR(CheckHosts());
    if (absl::Status agree = Agree(); !agree.ok()) return NameLiars(agree);
    JoinNames();
    WEFT_RETURN_IF_ERROR(NumberSwitches());
    WEFT_RETURN_IF_ERROR(CheckBothWays());
    WEFT_RETURN_IF_ERROR(CheckPortsCount());
    WEFT_RETURN_IF_ERROR(CheckSure());
    WEFT_RETURN_IF_ERROR(CheckBandwidths());
    WEFT_ASSIGN_OR_RETURN(Fabric fabric, Build());
    HashFile known = Known();
    bool recorded = std::any_of(seen_.flows.begin(), seen_.flows.end(),
                                [](const SeenFlow& flow) { return !flow.recorded.empty(); });
    return InferredFabric{std::move(fabric), std::move(known), std::move(notes_), missed_,
                          recorded};
  }

 private:
  // Leaves of source and target; the source's interface; what follows it.
  using Between = std::pair<int, int>;
  struct Link {
    std::set<std::string> after;
  };

  const std::string& NameOf(SeenNic nic) const {
    return seen_.hosts[static_cast<size_t>(nic.host)].name;
  }
  int LeafOf(SeenNic nic) const { return leaf_of_.at(nic); }
  std::string NeighborText(SeenNic nic) const {
    auto found = seen_.neighbors.find(nic);
    return found == seen_.neighbors.end() ? "" : absl::StrCat(" (", found->second, ")");
  }

  absl::Status CheckHosts() {
    std::map<int, int> heard, asked;
    for (const SeenPair& pair : seen_.pairs) {
      ++asked[pair.target.host];
      heard[pair.target.host] += pair.heard ? 1 : 0;
    }
    std::vector<std::string> silent;
    for (const auto& [host, count] : asked) {
      if (heard[host] == 0) silent.push_back(seen_.hosts[static_cast<size_t>(host)].name);
    }
    if (silent.empty() && !seen_.pairs.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        silent.empty() ? "one host alone has no fabric: start this on two at least"
                       : absl::StrCat("no probe of any other host was answered by ",
                                      absl::StrJoin(silent, ", "),
                                      ": is UDP between hosts let through, and are these its "
                                      "addresses?"));
  }

  // Whether what all hosts say of distances and leaves can be true together.
  absl::Status Agree() {
    WEFT_RETURN_IF_ERROR(FindLeaves());
    WEFT_RETURN_IF_ERROR(CheckDistances());
    return CheckFirstRouters();
  }

  // Adds to a contradiction the hosts without each of which all others agree.
  absl::Status NameLiars(const absl::Status& contradiction) const {
    if (seen_.hosts.size() * (seen_.pairs.size() + seen_.flows.size()) > kLiarWorkMost)
      return contradiction;
    std::vector<std::string> liars;
    for (size_t host = 0; host < seen_.hosts.size(); ++host) {
      const auto is_its = [&](const SeenNic& nic) { return nic.host == static_cast<int>(host); };
      SeenFabric others;
      others.hosts = seen_.hosts;
      for (const SeenPair& pair : seen_.pairs) {
        if (!is_its(pair.source) && !is_its(pair.target)) others.pairs.push_back(pair);
      }
      for (const SeenFlow& flow : seen_.flows) {
        if (!is_its(flow.source) && !is_its(flow.target)) others.flows.push_back(flow);
      }
      for (const auto& one : seen_.neighbors) {
        if (!is_its(one.first)) others.neighbors.insert(one);
      }
      // Two hosts contradict nobody.
      if (others.pairs.size() <= 2) continue;
      if (Inference(others, options_).Agree().ok()) liars.push_back(seen_.hosts[host].name);
    }
    if (liars.empty() || liars.size() > 2) return contradiction;
    return Annotate(
        contradiction,
        absl::StrCat("all others agree without ", absl::StrJoin(liars, ", or without "),
                     ", which may not tell the truth (what changes its packets' time to "
                     "live, or answers in its place?)"));
  }

  absl::Status FindLeaves() {
    leaf_of_ = LeavesOf(seen_);
    for (const auto& [_, leaf] : leaf_of_) leaves_ = std::max(leaves_, leaf + 1);
    // One switch a leaf, and one leaf a switch, as far as LLDP says.
    std::map<int, const std::pair<const SeenNic, std::string>*> switch_of;
    for (const auto& one : seen_.neighbors) {
      auto [known, is_new] = switch_of.try_emplace(LeafOf(one.first), &one);
      if (is_new || known->second->second == one.second) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "LLDP says that ", NameOf(known->second->first), " is under ", known->second->second,
          " and ", NameOf(one.first), " under ", one.second,
          ", but probes find one router between them: a host or a switch does not tell the truth, "
          "or these two switches are one (MLAG); --lldp never takes the probes' word"));
    }
    return absl::OkStatus();
  }

  // Pairs of the same two leaves are equally far, both ways.
  absl::Status CheckDistances() {
    std::map<Between, std::pair<int, const SeenPair*>> known;
    for (const SeenPair& pair : seen_.pairs) {
      if (!pair.heard) {
        ++unheard_;
        continue;
      }
      Between between = std::minmax(LeafOf(pair.source), LeafOf(pair.target));
      const int routers = std::max(1, pair.routers);
      if (between.first == between.second && routers > 1) {
        return absl::FailedPreconditionError(absl::StrCat(
            NameOf(pair.source), " sees ", routers, " routers to ", NameOf(pair.target),
            ", but LLDP names one switch at both", NeighborText(pair.source),
            ", or other hosts under that leaf see one router: a host or a switch does not tell the "
            "truth"));
      }
      auto [at, is_new] = known.try_emplace(between, routers, &pair);
      if (is_new || at->second.first == routers) continue;
      const SeenPair& other = *at->second.second;
      return absl::FailedPreconditionError(absl::StrCat(
          "distances contradict each other: ", NameOf(pair.source), " sees ", routers,
          " routers to ", NameOf(pair.target), ", but ", NameOf(other.source), " ",
          at->second.first, " to ", NameOf(other.target),
          ", and these are under the same leaves: routes are asymmetric or changing, or a host "
          "does not tell the truth"));
    }
    for (const auto& [between, value] : known) distance_[between] = value.first;
    return absl::OkStatus();
  }

  // The first router that flows name is their leaf: hosts that distances put under other leaves
  // pass another one.
  absl::Status CheckFirstRouters() const {
    std::map<std::pair<bool, std::string>, SeenNic> known;
    for (const SeenFlow& flow : seen_.flows) {
      for (bool recorded : {true, false}) {
        const std::vector<std::string>& names = recorded ? flow.recorded : flow.answered;
        if (names.size() < 2 || names[0].empty()) continue;
        const auto [at, is_new] = known.try_emplace({recorded, names[0]}, flow.source);
        if (is_new || LeafOf(at->second) == LeafOf(flow.source)) continue;
        return absl::FailedPreconditionError(absl::StrCat(
            NameOf(flow.source), " and ", NameOf(at->second), " both have the router ", names[0],
            " before them, but are under two leaves by their distances from others: a host or a "
            "switch does not tell the truth"));
      }
    }
    return absl::OkStatus();
  }

  // Rule 2, of one kind of names.
  void JoinFollowing(bool recorded) {
    // [leaves, position][name there] names that follow, and the other way round.
    std::map<std::tuple<int, int, size_t>, std::map<std::string, Link>> after, before;
    for (const SeenFlow& flow : seen_.flows) {
      const auto& names = recorded ? flow.recorded : flow.answered;
      for (size_t i = 0; i + 1 < names.size(); ++i) {
        if (names[i].empty() || names[i + 1].empty()) continue;
        const std::tuple key(LeafOf(flow.source), LeafOf(flow.target), i);
        after[key][names[i]].after.insert(names[i + 1]);
        before[key][names[i + 1]].after.insert(names[i]);
      }
    }
    std::map<std::string, std::string> first_after, first_before;
    const auto is_single = [](const std::map<std::string, Link>& links) {
      return std::all_of(links.begin(), links.end(),
                         [](const auto& link) { return link.second.after.size() == 1; });
    };
    for (const auto& [key, links] : after) {
      if (links.size() < 2 || !is_single(links) || !is_single(before[key])) continue;
      for (const auto& [name, link] : links) {
        const std::string& next = *link.after.begin();
        if (recorded) {
          names_.Join(next, first_after.try_emplace(name, next).first->second);
        } else {
          names_.Join(name, first_before.try_emplace(next, name).first->second);
        }
      }
    }
  }

  void JoinNames() {
    for (const SeenFlow& flow : seen_.flows) {
      const size_t routers = std::max(flow.recorded.size(), flow.answered.size());
      for (size_t i = 1; i + 1 < routers; ++i) {
        const bool is_recorded = i < flow.recorded.size();
        const bool is_answered = i < flow.answered.size() && !flow.answered[i].empty();
        if (is_recorded) names_.Of(flow.recorded[i]);
        if (is_answered) names_.Of(flow.answered[i]);
        if (is_recorded && is_answered) names_.Join(flow.recorded[i], flow.answered[i]);
      }
    }
    JoinFollowing(/*recorded=*/true);
    JoinFollowing(/*recorded=*/false);
    for (const auto& [path, name] : seen_.same) names_.Join(path, name);
  }

  // The router at a position between the leaves; -1: it is not known.
  int SwitchAt(const SeenFlow& flow, size_t position) {
    if (position < flow.recorded.size()) return names_.Root(names_.Of(flow.recorded[position]));
    if (position < flow.answered.size() && !flow.answered[position].empty()) {
      return names_.Root(names_.Of(flow.answered[position]));
    }
    return -1;
  }

  size_t RoutersOf(const SeenFlow& flow) const {
    const int a = LeafOf(flow.source), b = LeafOf(flow.target);
    auto found = distance_.find(std::minmax(a, b));
    return found == distance_.end() ? 0 : static_cast<size_t>(found->second);
  }

  absl::Status NumberSwitches() {
    for (const SeenFlow& flow : seen_.flows) {
      const size_t routers = RoutersOf(flow);
      for (size_t i = 1; i + 1 < routers; ++i) {
        const int at = SwitchAt(flow, i);
        if (at < 0) continue;
        const int tier = static_cast<int>(std::min(i, routers - 1 - i)) + 1;
        auto [known, is_new] = tier_.try_emplace(at, tier);
        if (is_new || known->second == tier) continue;
        return absl::FailedPreconditionError(absl::StrCat(
            "the router ", names_.Classes()[at].front(), " is in tier ", known->second,
            " for some flows and in tier ", tier, " for one from ", NameOf(flow.source), " to ",
            NameOf(flow.target), ": this is no tree of leaves and spines"));
      }
    }
    // In the order of their names.
    std::map<int, std::vector<std::pair<std::string, int>>> by_tier;
    for (auto& [root, names] : names_.Classes()) {
      // The names of paths are ours, and tell nothing where the router has said one.
      std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
        const bool a_is_path = seen_.loaded.count(a) > 0, b_is_path = seen_.loaded.count(b) > 0;
        return a_is_path != b_is_path ? b_is_path : NaturalLess(a, b);
      });
      if (tier_.count(root) > 0) by_tier[tier_[root]].emplace_back(names.front(), root);
    }
    for (auto& [tier, all] : by_tier) {
      std::sort(all.begin(), all.end(),
                [](const auto& a, const auto& b) { return NaturalLess(a.first, b.first); });
      for (size_t i = 0; i < all.size(); ++i) {
        switch_name_[all[i].second] = absl::StrCat(tier == 2 ? "spine" : "core", i);
        switches_.push_back(all[i].second);
      }
    }
    return absl::OkStatus();
  }

  // A switch between two leaves carries flows either way, unless it has two numbers.
  absl::Status CheckBothWays() {
    std::map<Between, std::set<int>> first;
    for (const SeenFlow& flow : seen_.flows) {
      if (RoutersOf(flow) != 3) continue;
      const int at = SwitchAt(flow, 1);
      if (at >= 0) first[{LeafOf(flow.source), LeafOf(flow.target)}].insert(at);
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
  absl::Status CheckPortsCount() {
    struct Seen {
      std::map<std::pair<SeenNic, SeenNic>, std::map<int, int>> flows;  // [NICs][first switch]
      std::set<int> switches;
    };
    std::map<Between, Seen> by_leaves;
    for (const SeenFlow& flow : seen_.flows) {
      if (RoutersOf(flow) < 3) continue;
      const int at = SwitchAt(flow, 1);
      if (at < 0) continue;
      Seen& seen = by_leaves[{LeafOf(flow.source), LeafOf(flow.target)}];
      ++seen.flows[{flow.source, flow.target}][at];
      seen.switches.insert(at);
    }
    for (const auto& [between, seen] : by_leaves) {
      int pairs = 0, flows = 0;
      bool is_one_way = seen.switches.size() > 1;
      for (const auto& [_, ways] : seen.flows) {
        is_one_way = is_one_way && ways.size() == 1;
        if (ways.begin()->second < kFlowsOfOneWay) continue;
        ++pairs;
        flows += ways.begin()->second;
      }
      if (!is_one_way || pairs < 2) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "leaf", between.first, " (", ExampleOf(between.first), ") has ", seen.switches.size(),
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
  using PathsSeen = std::map<Between, std::pair<std::set<std::vector<int>>, int>>;

  // Flows that told nothing, more than losses explain, may all have passed one silent switch.
  absl::Status CheckSilence(const PathsSeen& seen) const {
    std::map<Between, int> asked;
    for (const AskedFlows& one : seen_.asked) {
      asked[{LeafOf(one.source), LeafOf(one.target)}] += one.flows;
    }
    for (const auto& [between, flows] : asked) {
      auto found = seen.find(between);
      const int silent = flows - (found == seen.end() ? 0 : found->second.second);
      if (silent < kSilentFlows || silent < kSilentShare * flows) continue;
      return absl::UnavailableError(absl::StrCat(
          silent, " of ", flows, " flows from leaf", between.first, " (", ExampleOf(between.first),
          ") to leaf", between.second, " (", ExampleOf(between.second),
          ") told nothing of their way, though asked again: a switch on it is silent, or limits "
          "its "
          "answers, and would be missed"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSure() {
    PathsSeen seen;
    for (const SeenFlow& flow : seen_.flows) {
      const size_t routers = RoutersOf(flow);
      std::vector<int> path;
      for (size_t i = 1; i + 1 < routers; ++i) path.push_back(SwitchAt(flow, i));
      if (path.empty() || std::find(path.begin(), path.end(), -1) != path.end()) continue;
      auto& one = seen[{LeafOf(flow.source), LeafOf(flow.target)}];
      one.first.insert(std::move(path));
      ++one.second;
    }
    for (int a = 0; a < leaves_; ++a) {
      for (int b = a + 1; b < leaves_; ++b) {
        if (distance_.count({a, b}) == 0) continue;
        if (distance_[{a, b}] == 2) {
          return absl::FailedPreconditionError(
              absl::StrCat("leaf", a, " and leaf", b,
                           " have no router between them: a fabric "
                           "without spines is not one that this finds"));
        }
        // Towards one leaf alone, load has told of all.
        if (seen.count({a, b}) + seen.count({b, a}) > 0 || !seen_.loaded.empty()) continue;
        return absl::UnavailableError(absl::StrCat(
            "between leaf", a, " (", ExampleOf(a), ") and leaf", b, " (", ExampleOf(b), ") are ",
            distance_[{a, b}],
            " routers, but none records a route or answers when the time to "
            "live runs out, so that the number of paths stays unknown; write the fabric file by "
            "hand or from LLDP (docs/fabric-format.md)"));
      }
    }
    WEFT_RETURN_IF_ERROR(CheckSilence(seen));
    for (const auto& [between, one] : seen) {
      const double paths = static_cast<double>(one.first.size()) + 1;
      missed_ = std::max(missed_, std::pow(1 - 1 / paths, one.second));
      fewest_ = std::min<int>(fewest_, one.second);
      paths_most_ = std::max(paths_most_, one.first.size());
    }
    if (missed_ <= options_.missed_max) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d probes between two leaves, with up to %d paths, leave a chance of %.2g that a path was "
        "missed, more than the %.2g that is allowed: probe more ports",
        fewest_, paths_most_, missed_, options_.missed_max));
  }

  std::string ExampleOf(int leaf) const {
    for (const auto& [nic, own] : leaf_of_) {
      if (own == leaf) return NameOf(nic);
    }
    return "";
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
    for (int leaf = 0; leaf < leaves_; ++leaf) {
      FabricNode node;
      node.name = absl::StrCat("leaf", leaf);
      node.kind = NodeKind::kSwitch;
      node.tier = 1;
      WEFT_ASSIGN_OR_RETURN(leaf_id[leaf], builder.Add(node));
    }
    for (int number : switches_) {
      FabricNode node;
      node.name = switch_name_[number];
      node.kind = NodeKind::kSwitch;
      node.tier = tier_[number];
      WEFT_ASSIGN_OR_RETURN(switch_id[number], builder.Add(node));
    }
    FabricBuilder::Cable cable;
    cable.delay = kCableDelay;
    for (const auto& [nic, leaf] : leaf_of_) {
      const SeenHost& host = seen_.hosts[static_cast<size_t>(nic.host)];
      cable.bandwidth = host.bandwidths[static_cast<size_t>(nic.nic)];
      cable.nic = nic.nic;
      WEFT_RETURN_IF_ERROR(
          builder.Connect(host_id[static_cast<size_t>(nic.host)], leaf_id[leaf], cable).status());
    }
    cable.nic = -1;
    std::map<int, size_t> rank;
    for (size_t i = 0; i < switches_.size(); ++i) rank[switches_[i]] = i;
    for (const auto& [ends, count] : Cables(rank)) {
      const auto& [is_leaf, lower, upper] = ends;
      const NodeId from =
          is_leaf == 0 ? leaf_id[lower] : switch_id[switches_[static_cast<size_t>(lower)]];
      const int above = switches_[static_cast<size_t>(upper)];
      WEFT_ASSIGN_OR_RETURN(const Bandwidth each, BandwidthOf(above));
      // Names of switches tell the way of a flow, not which of several cables to one it takes: no
      // hash over these can be learned.
      cable.bandwidth = each * static_cast<double>(count);
      cables_most_ = std::max(cables_most_, count);
      WEFT_RETURN_IF_ERROR(builder.Connect(from, switch_id[above], cable).status());
    }
    Note();
    return std::move(builder).Build();
  }

  // The bandwidth of each of a switch's cables down.
  absl::StatusOr<Bandwidth> BandwidthOf(int root) {
    for (const auto& [name, bandwidth] : options_.bandwidth_below) {
      if (name == switch_name_[root] || names_.Has(name, root)) return bandwidth;
    }
    if (options_.switch_bandwidth > Bandwidth()) return options_.switch_bandwidth;
    for (const auto& [name, bandwidth] : seen_.loaded) {
      if (names_.Has(name, root)) return bandwidth;
    }
    if (seen_.loaded.empty()) return seen_.hosts[0].bandwidths[0];
    return absl::FailedPreconditionError(absl::StrCat(
        "no load told the bandwidth of ", switch_name_[root], " (", names_.Classes()[root].front(),
        "): ", seen_.loaded.size(), " paths were loaded, and none is over it; --switch-bandwidth ",
        switch_name_[root], "=100Gbps tells it"));
  }

  // Every switch that --switch-bandwidth names must be there.
  absl::Status CheckBandwidths() {
    for (const auto& [name, _] : options_.bandwidth_below) {
      const bool is_known = std::any_of(switches_.begin(), switches_.end(), [&](int root) {
        return name == switch_name_[root] || names_.Has(name, root);
      });
      if (is_known) continue;
      std::vector<std::string> names;
      for (int root : switches_) names.push_back(switch_name_[root]);
      return absl::InvalidArgumentError(absl::StrCat("--switch-bandwidth names ", name,
                                                     ", which is no switch above the leaves; "
                                                     "these are ",
                                                     absl::StrJoin(names, ", ")));
    }
    return absl::OkStatus();
  }

  // (0, leaf, rank of spine) or (1, rank of spine, rank of core): cables between them, by the
  // interfaces that were recorded.
  std::map<std::tuple<int, int, int>, size_t> Cables(const std::map<int, size_t>& rank) {
    std::map<std::tuple<int, int, int>, std::set<std::string>> seen;
    for (const SeenFlow& flow : seen_.flows) {
      const size_t routers = RoutersOf(flow);
      for (size_t i = 0; i + 1 < routers; ++i) {
        const bool from_leaf = i == 0, to_leaf = i + 2 == routers;
        const int a = from_leaf ? LeafOf(flow.source) : SwitchAt(flow, i);
        const int b = to_leaf ? LeafOf(flow.target) : SwitchAt(flow, i + 1);
        if (a < 0 || b < 0) continue;
        const auto number = [&](int root) { return static_cast<int>(rank.at(root)); };
        std::tuple<int, int, int> key;
        bool is_up = true;
        if (from_leaf) {
          key = {0, a, number(b)};
        } else if (to_leaf) {
          key = {0, b, number(a)};
          is_up = false;
        } else if (tier_[a] < tier_[b]) {
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
    std::map<std::tuple<int, int, int>, size_t> out;
    for (const auto& [key, names] : seen) {
      size_t count = 1;
      // One name for all is no interface's.
      for (const std::string& name : names) count = std::max(count, OwnedBy(name, key, seen));
      out[key] = count > 1 ? names.size() : 1;
    }
    return out;
  }
  // Interfaces of a cable's lower end, if `name` is of this cable alone; else 1.
  static size_t OwnedBy(const std::string& name, const std::tuple<int, int, int>& key,
                        const std::map<std::tuple<int, int, int>, std::set<std::string>>& seen) {
    for (const auto& [other, names] : seen) {
      if (other != key && names.count(name) > 0) return 1;
    }
    return seen.at(key).size();
  }

  HashFile Known() {
    HashFile out;
    for (const SeenHost& host : seen_.hosts) {
      for (size_t nic = 0; nic < host.addresses.size(); ++nic) {
        out.addresses[{host.name, static_cast<int>(nic)}] = host.addresses[nic];
      }
    }
    for (const auto& [root, names] : names_.Classes()) {
      if (switch_name_.count(root) == 0) continue;
      for (const std::string& name : names) {
        if (seen_.loaded.count(name) == 0) out.routers[name] = switch_name_[root];
      }
    }
    return out;
  }

  void Note() {
    notes_.push_back(absl::StrFormat(
        "%d hosts under %d leaves, %d switches above them; up to %d paths between two leaves",
        seen_.hosts.size(), leaves_, switches_.size(), paths_most_));
    if (paths_most_ > 0) {
      notes_.push_back(absl::StrFormat(
          "%d probes or more between two leaves; the chance that one more path was missed is "
          "%.2g at most",
          fewest_, missed_));
    }
    if (cables_most_ > 1) {
      notes_.push_back(absl::StrFormat(
          "up to %d cables between two switches: each such group is one cable here, "
          "of the bandwidth of all",
          cables_most_));
    }
    if (unheard_ > 0) {
      notes_.push_back(
          absl::StrFormat("%d of %d pairs did not hear each other", unheard_, seen_.pairs.size()));
    }
    std::map<int, std::vector<absl::Duration>> trips;
    for (const SeenPair& pair : seen_.pairs) {
      if (pair.heard) trips[pair.routers].push_back(pair.rtt);
    }
    for (auto& [routers, all] : trips) {
      std::sort(all.begin(), all.end());
      notes_.push_back(absl::StrFormat("round trip over %d routers: %.0f us, median of %d pairs",
                                       routers, absl::ToDoubleMicroseconds(all[all.size() / 2]),
                                       all.size()));
    }
    if (!seen_.load_note.empty()) notes_.push_back(seen_.load_note);
    std::map<int, std::string> lldp;
    for (const auto& [nic, name] : seen_.neighbors) lldp[LeafOf(nic)] = name;
    for (const auto& [leaf, name] : lldp) {
      notes_.push_back(absl::StrCat("leaf", leaf, " is ", name, ", by LLDP"));
    }
    for (const auto& [name, bandwidth] : options_.bandwidth_below) {
      notes_.push_back(absl::StrFormat("bandwidth below %s: %g Gbit/s, as it was given", name,
                                       bandwidth.gigabits_per_second()));
    }
    notes_.push_back(options_.switch_bandwidth > Bandwidth()
                         ? "bandwidth between switches: as it was given"
                     : !seen_.loaded.empty()
                         ? "bandwidth between switches: what arrived over each path under load"
                         : "bandwidth between switches: taken to be that of the first host's NIC, "
                           "not measured (--switch-bandwidth)");
  }

  const SeenFabric& seen_;
  const InferOptions& options_;
  std::map<SeenNic, int> leaf_of_;
  int leaves_ = 0, unheard_ = 0;
  std::map<Between, int> distance_;  // routers, by leaves, the lower first
  Names names_;                      // of routers that are no leaves
  std::map<int, int> tier_;          // by root
  std::map<int, std::string> switch_name_;
  std::vector<int> switches_;  // roots, spines first
  double missed_ = 0;
  int fewest_ = 1 << 30;
  size_t paths_most_ = 0, cables_most_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace

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

absl::StatusOr<InferredFabric> InferFabric(const SeenFabric& seen, const InferOptions& options) {
  return Inference(seen, options).Run();
}

}  // namespace weft::topology
