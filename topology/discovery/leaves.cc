#include "topology/discovery/leaves.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// Hosts times pairs and flows up to which each host is left out once, to find one that lies.
constexpr size_t kLiarWorkMost = 50'000'000;

}  // namespace

absl::StatusOr<Leaves> Leaves::Find(const SeenFabric& seen) {
  Leaves leaves(seen);
  if (absl::Status agree = leaves.Agree(); !agree.ok()) return NameLiars(seen, agree);
  return leaves;
}

absl::Status Leaves::Agree() {
  WEFT_RETURN_IF_ERROR(FindLeaves());
  WEFT_RETURN_IF_ERROR(CheckDistances());
  return CheckFirstRouters();
}

// Adds to a contradiction the hosts without each of which all others agree.
absl::Status Leaves::NameLiars(const SeenFabric& seen, const absl::Status& contradiction) {
  if (seen.hosts.size() * (seen.pairs.size() + seen.flows.size()) > kLiarWorkMost)
    return contradiction;
  std::vector<std::string> liars;
  for (size_t host = 0; host < seen.hosts.size(); ++host) {
    const auto is_its = [&](const SeenNic& nic) { return nic.host == static_cast<int>(host); };
    SeenFabric others;
    others.hosts = seen.hosts;
    for (const SeenPair& pair : seen.pairs) {
      if (!is_its(pair.source) && !is_its(pair.target)) others.pairs.push_back(pair);
    }
    for (const SeenFlow& flow : seen.flows) {
      if (!is_its(flow.source) && !is_its(flow.target)) others.flows.push_back(flow);
    }
    for (const auto& one : seen.neighbors) {
      if (!is_its(one.first)) others.neighbors.insert(one);
    }
    // Two hosts contradict nobody.
    if (others.pairs.size() <= 2) continue;
    if (Leaves(others).Agree().ok()) liars.push_back(seen.hosts[host].name);
  }
  if (liars.empty() || liars.size() > 2) return contradiction;
  return Annotate(contradiction,
                  absl::StrCat("all others agree without ", absl::StrJoin(liars, ", or without "),
                               ", which may not tell the truth (what changes its packets' time to "
                               "live, or answers in its place?)"));
}

absl::Status Leaves::FindLeaves() {
  of_nics_ = LeavesOf(*seen_);
  for (const auto& [_, leaf] : of_nics_) count_ = std::max(count_, leaf + 1);
  // One switch a leaf, and one leaf a switch, as far as LLDP says.
  std::map<int, const std::pair<const SeenNic, std::string>*> switch_of;
  for (const auto& one : seen_->neighbors) {
    auto [known, is_new] = switch_of.try_emplace(Of(one.first), &one);
    if (is_new || known->second->second == one.second) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "LLDP says that ", seen_->NameOf(known->second->first), " is under ", known->second->second,
        " and ", seen_->NameOf(one.first), " under ", one.second,
        ", but probes find one router between them: a host or a switch does not tell the truth, "
        "or these two switches are one (MLAG); --lldp never takes the probes' word"));
  }
  return absl::OkStatus();
}

// Pairs of the same two leaves are equally far, both ways.
absl::Status Leaves::CheckDistances() {
  std::map<LeafPair, std::pair<int, const SeenPair*>> known;
  for (const SeenPair& pair : seen_->pairs) {
    if (!pair.heard) {
      ++unheard_;
      continue;
    }
    LeafPair between = std::minmax(Of(pair.source), Of(pair.target));
    const int routers = std::max(1, pair.routers);
    if (between.first == between.second && routers > 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          seen_->NameOf(pair.source), " sees ", routers, " routers to ", seen_->NameOf(pair.target),
          ", but LLDP names one switch at both", NeighborText(pair.source),
          ", or other hosts under that leaf see one router: a host or a switch does not tell the "
          "truth"));
    }
    auto [at, is_new] = known.try_emplace(between, routers, &pair);
    if (is_new || at->second.first == routers) continue;
    const SeenPair& other = *at->second.second;
    return absl::FailedPreconditionError(absl::StrCat(
        "distances contradict each other: ", seen_->NameOf(pair.source), " sees ", routers,
        " routers to ", seen_->NameOf(pair.target), ", but ", seen_->NameOf(other.source), " ",
        at->second.first, " to ", seen_->NameOf(other.target),
        ", and these are under the same leaves: routes are asymmetric or changing, or a host "
        "does not tell the truth"));
  }
  for (const auto& [between, value] : known) distance_[between] = value.first;
  return absl::OkStatus();
}

// The first router that flows name is their leaf: hosts that distances put under other leaves
// pass another one.
absl::Status Leaves::CheckFirstRouters() const {
  std::map<std::pair<bool, std::string>, SeenNic> known;
  for (const SeenFlow& flow : seen_->flows) {
    for (bool recorded : {true, false}) {
      const std::vector<std::string>& names = recorded ? flow.recorded : flow.answered;
      if (names.size() < 2 || names[0].empty()) continue;
      const auto [at, is_new] = known.try_emplace({recorded, names[0]}, flow.source);
      if (is_new || Of(at->second) == Of(flow.source)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          seen_->NameOf(flow.source), " and ", seen_->NameOf(at->second), " both have the router ",
          names[0],
          " before them, but are under two leaves by their distances from others: a host or a "
          "switch does not tell the truth"));
    }
  }
  return absl::OkStatus();
}

std::string Leaves::NeighborText(SeenNic nic) const {
  auto found = seen_->neighbors.find(nic);
  return found == seen_->neighbors.end() ? "" : absl::StrCat(" (", found->second, ")");
}

int Leaves::Routers(int a, int b) const {
  auto found = distance_.find(std::minmax(a, b));
  return found == distance_.end() ? 0 : found->second;
}

size_t Leaves::RoutersOf(const SeenFlow& flow) const {
  return static_cast<size_t>(Routers(Of(flow.source), Of(flow.target)));
}

std::string Leaves::ExampleOf(int leaf) const {
  for (const auto& [nic, own] : of_nics_) {
    if (own == leaf) return seen_->NameOf(nic);
  }
  return "";
}

}  // namespace weft::topology
