#include "collectives/planner/planned_peers.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/algorithms/exchange.h"
#include "topology/ecmp/fingerprint.h"

namespace weft::collectives::planner {

PlannedPeers::PlannedPeers(const topology::ConnectionPlanText& plan) {
  for (const topology::ConnectionPlanFlow& flow : plan.flows) {
    if (flow.rank < 0 || flow.peer < 0) continue;
    peers_[flow.rank].push_back(flow.peer);
    if (flow.step > 0) steps_[{flow.rank, flow.peer}] = flow.step;
  }
  std::string all;
  for (auto& [rank, peers] : peers_) {
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    absl::StrAppend(&all, rank, ":");
    for (int peer : peers) absl::StrAppend(&all, " ", peer);
    absl::StrAppend(&all, "\n");
  }
  for (const auto& [ranks, step] : steps_) {
    absl::StrAppend(&all, "step ", step, ": ", ranks.first, " ", ranks.second, "\n");
  }
  if (!peers_.empty()) name_ = topology::Fingerprint(all);
}

absl::StatusOr<PlannedPeers> PlannedPeers::Load(const Settings& settings) {
  const std::string& folder = settings.Text("plan");
  if (folder.empty()) return PlannedPeers();
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<topology::ConnectionPlan> plan,
                        topology::ConnectionPlan::Load(folder));
  return PlannedPeers(plan->text());
}

bool PlannedPeers::IsOf(absl::Span<const RankPlace> places) const {
  return !name_.empty() &&
         std::all_of(places.begin(), places.end(),
                     [this](const RankPlace& place) { return place.plan == name_; });
}

bool PlannedPeers::HasExchange(absl::Span<const Rank> ranks,
                               absl::Span<const RankPlace> places) const {
  if (steps_.empty() || !IsOf(places)) return false;
  const int n = static_cast<int>(ranks.size());
  bool crosses = false;
  for (int i = 0; i < n; ++i) {
    const std::vector<int> steps = PairwiseSteps(i, n);
    for (int k = 0; k < n; ++k) {
      const auto from = static_cast<size_t>(i), to = static_cast<size_t>(k);
      if (places[from].host == places[to].host) continue;
      const auto planned = steps_.find({ranks[from].value(), ranks[to].value()});
      if (planned == steps_.end() || planned->second != steps[to]) return false;
      crosses = true;
    }
  }
  return crosses;
}

std::vector<std::vector<int>> PlannedPeers::Within(absl::Span<const Rank> ranks,
                                                   absl::Span<const RankPlace> places) const {
  if (!IsOf(places)) return {};
  std::map<int, int> group_rank;
  for (size_t i = 0; i < ranks.size(); ++i) group_rank[ranks[i].value()] = static_cast<int>(i);
  std::vector<std::vector<int>> out(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto peers = peers_.find(ranks[i].value());
    if (peers == peers_.end()) continue;
    for (int peer : peers->second) {
      const auto member = group_rank.find(peer);
      if (member != group_rank.end()) out[i].push_back(member->second);
    }
  }
  return out;
}

}  // namespace weft::collectives::planner
