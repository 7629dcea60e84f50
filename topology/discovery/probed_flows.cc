#include "topology/discovery/probed_flows.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::topology {
namespace {

constexpr size_t kNamesShown = 4;

// The switch to which several of the links lead; NodeId(): there is none.
NodeId TargetOfSeveral(const Fabric& fabric, absl::Span<const LinkId> links) {
  std::set<NodeId> met;
  for (LinkId link : links) {
    const NodeId target = fabric.link(link).target;
    if (fabric.node(target).kind == NodeKind::kSwitch && !met.insert(target).second) return target;
  }
  return NodeId();
}

// Calls `visit(at, next, after)` for every choice of the flow that is known.
template <typename Visit>
void EachChoice(const Routes& routes, const ProbedFlow& flow, Visit visit) {
  for (size_t i = 0; i + 1 < flow.switches.size(); ++i) {
    const NodeId at = flow.switches[i], after = flow.switches[i + 1];
    if (at == NodeId() || after == NodeId()) continue;
    const absl::Span<const LinkId> next = routes.Next(at, flow.target);
    if (next.size() < 2 || TargetOfSeveral(routes.fabric(), next) != NodeId()) continue;
    visit(at, next, after);
  }
}

// Calls `visit(at, next)` for every choice that a switch can have between two of the NICs.
template <typename Visit>
void EachPossibleChoice(const Routes& routes, absl::Span<const Endpoint> nics, Visit visit) {
  const Fabric& fabric = routes.fabric();
  // NICs that hang on the same switches have the same ways.
  std::map<std::vector<NodeId>, Endpoint> examples;
  for (Endpoint nic : nics) {
    std::vector<NodeId> leaves;
    for (LinkId port : fabric.Ports(nic)) leaves.push_back(fabric.link(port).target);
    std::sort(leaves.begin(), leaves.end());
    examples.try_emplace(std::move(leaves), nic);
  }
  for (const auto& [target_leaves, target] : examples) {
    std::set<NodeId> met;
    std::vector<NodeId> waiting;
    for (const auto& [source_leaves, source] : examples) {
      if (source_leaves == target_leaves) continue;
      for (LinkId link : routes.First(source, target)) {
        waiting.push_back(fabric.link(link).target);
      }
    }
    while (!waiting.empty()) {
      const NodeId at = waiting.back();
      waiting.pop_back();
      if (fabric.node(at).kind != NodeKind::kSwitch || !met.insert(at).second) continue;
      const absl::Span<const LinkId> next = routes.Next(at, target);
      if (next.size() >= 2) visit(at, next);
      for (LinkId link : next) waiting.push_back(fabric.link(link).target);
    }
  }
}

std::string Percent(const Tally& tally) {
  return absl::StrFormat("%d of %d (%.2f %%)", tally.right, tally.told, 100 * tally.share());
}

}  // namespace

std::map<NodeId, SwitchChoices> ChoicesOf(const Routes& routes,
                                          absl::Span<const ProbedFlow> flows) {
  const Fabric& fabric = routes.fabric();
  std::map<NodeId, SwitchChoices> out;
  for (const ProbedFlow& flow : flows) {
    EachChoice(routes, flow, [&](NodeId at, absl::Span<const LinkId> next, NodeId after) {
      std::vector<NodeId> members;
      for (LinkId link : next) members.push_back(fabric.link(link).target);
      const auto member = std::find(members.begin(), members.end(), after);
      if (member == members.end()) return;  // CheckPredictions() counts it as wrong
      const auto number = static_cast<uint32_t>(member - members.begin());
      SwitchChoices& one = out[at];
      if (one.members.empty()) one.members = members;
      if (one.members == members) one.seen.push_back({flow.tuple, number});
    });
  }
  return out;
}

std::set<NodeId> SwitchesWithChoice(const Routes& routes, absl::Span<const Endpoint> nics) {
  std::set<NodeId> out;
  EachPossibleChoice(routes, nics, [&](NodeId at, absl::Span<const LinkId>) { out.insert(at); });
  return out;
}

std::map<NodeId, NodeId> SwitchesWithParallelCables(const Routes& routes,
                                                    absl::Span<const Endpoint> nics) {
  std::map<NodeId, NodeId> out;
  EachPossibleChoice(routes, nics, [&](NodeId at, absl::Span<const LinkId> next) {
    const NodeId target = TargetOfSeveral(routes.fabric(), next);
    if (target != NodeId()) out.emplace(at, target);
  });
  return out;
}

PredictionCheck CheckPredictions(const Routes& routes, const FabricHashes& hashes,
                                 const std::set<NodeId>& learned,
                                 absl::Span<const ProbedFlow> flows) {
  const Fabric& fabric = routes.fabric();
  PredictionCheck out;
  for (const ProbedFlow& flow : flows) {
    ++out.asked;
    bool told = false, right = true;
    EachChoice(routes, flow, [&](NodeId at, absl::Span<const LinkId> next, NodeId after) {
      if (learned.count(at) == 0 || !hashes.Knows(at, flow.tuple, next.size())) return;
      const LinkId predicted = next[hashes.Choose(at, flow.tuple, next)];
      const bool agrees = fabric.link(predicted).target == after;
      Tally& tally = out.nodes[at];
      ++tally.told;
      tally.right += agrees ? 1 : 0;
      told = true;
      right = right && agrees;
    });
    out.flows.told += told ? 1 : 0;
    out.flows.right += told && right ? 1 : 0;
  }
  return out;
}

std::set<NodeId> PredictionCheck::Failed(const std::set<NodeId>& learned, double right_min) const {
  std::set<NodeId> out;
  for (NodeId node : learned) {
    const auto tally = nodes.find(node);
    if (tally == nodes.end() || tally->second.share() < right_min) out.insert(node);
  }
  if (!out.empty() || flows.told == 0 || flows.share() >= right_min) return out;
  for (const auto& [node, tally] : nodes) {
    if (tally.right < tally.told) out.insert(node);
  }
  return out;
}

absl::Status PredictionCheck::Verdict(const Fabric& fabric, const std::set<NodeId>& learned,
                                      double right_min) const {
  if (flows.told == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("nothing was checked: of ", asked,
                     " flows from ports that were not probed before, none told which way a switch "
                     "chose"));
  }
  std::string names;
  size_t count = 0;
  for (NodeId node : Failed(learned, right_min)) {
    if (++count > kNamesShown) continue;
    const auto tally = nodes.find(node);
    absl::StrAppend(&names, names.empty() ? "" : ", ", fabric.node(node).name, " ",
                    tally == nodes.end() ? "not checked by any flow" : Percent(tally->second));
  }
  if (count == 0 && flows.share() >= right_min) return absl::OkStatus();
  if (count > kNamesShown) absl::StrAppend(&names, " and ", count - kNamesShown, " more switches");
  return absl::FailedPreconditionError(absl::StrFormat(
      "the hashes that were found do not predict fresh ports: %s flows as predicted, and of each "
      "switch %.2f %% at least are wanted: %s",
      Percent(flows), 100 * right_min, names));
}

}  // namespace weft::topology
