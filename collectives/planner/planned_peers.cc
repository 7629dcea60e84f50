#include "collectives/planner/planned_peers.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/ecmp/fingerprint.h"

namespace weft::collectives::planner {

PlannedPeers::PlannedPeers(const topology::ConnectionPlanText& plan) {
  for (const topology::ConnectionPlanFlow& flow : plan.flows) {
    if (flow.rank >= 0 && flow.peer >= 0) peers_[flow.rank].push_back(flow.peer);
  }
  std::string all;
  for (auto& [rank, peers] : peers_) {
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    absl::StrAppend(&all, rank, ":");
    for (int peer : peers) absl::StrAppend(&all, " ", peer);
    absl::StrAppend(&all, "\n");
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

std::vector<std::vector<int>> PlannedPeers::Within(absl::Span<const Rank> ranks,
                                                   absl::Span<const RankPlace> places) const {
  const bool is_theirs =
      !name_.empty() && std::all_of(places.begin(), places.end(),
                                    [this](const RankPlace& place) { return place.plan == name_; });
  if (!is_theirs) return {};
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
