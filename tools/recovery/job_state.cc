#include "tools/recovery/job_state.h"

#include <algorithm>

namespace weft::recovery {

JobState NewJob(const Policy& policy, absl::Time now) {
  JobState state;
  state.nodes.assign(static_cast<size_t>(policy.nodes), NodeState{.host = "", .vacant_since = now});
  state.ranks.resize(static_cast<size_t>(policy.nodes) *
                     static_cast<size_t>(policy.ranks_per_node));
  return state;
}

void GoOn(const Policy& policy, JobState& state, absl::Time now) {
  for (NodeState& node : state.nodes) {
    if (node.host.empty()) node.vacant_since = now;
  }
  for (auto& [_, host] : state.hosts) host.blamed = std::min(host.blamed, now);
  for (RankState& rank : state.ranks) {
    rank.started = std::min(rank.started, now);
    if (Waits(rank)) rank.due = std::min(rank.due, now + policy.backoff_most);
  }
}

absl::Time NextStart(const JobState& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const RankState& rank : state.ranks) {
    if (Waits(rank)) next = std::min(next, rank.due);
  }
  return next;
}

}  // namespace weft::recovery
