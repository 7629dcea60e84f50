#include "tools/recovery/rank_starts.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::recovery {
namespace {

// It does not run, and no start of it is awaited.
void Hold(RankState& rank) {
  rank.runs = false;
  rank.due = absl::UnixEpoch();
}

}  // namespace

void RankStarts::StartAll() {
  for (int rank = 0; rank < change_.ranks(); ++rank) Run(rank, "");
}

void RankStarts::Run(int rank, const std::string& why) {
  change_.Rank(rank).runs = true;
  change_.Rank(rank).started = change_.now;
  change_.Rank(rank).due = absl::UnixEpoch();
  change_.actions.push_back({.kind = ActionKind::kStart,
                             .host = change_.Node(change_.NodeOf(rank)).host,
                             .node = change_.NodeOf(rank),
                             .rank = rank,
                             .generation = change_.Rank(rank).generation,
                             .text = why});
}

void RankStarts::StartAnew(int rank, const std::string& why) {
  ++change_.Rank(rank).generation;
  Run(rank, why);
}

// How long the rank has to wait for its next start.
absl::Duration RankStarts::Backoff(const RankState& rank) const {
  if (rank.soon_ends < 2) return absl::ZeroDuration();
  const absl::Duration doubled =
      change_.policy.backoff_first * (int64_t{1} << std::min(rank.soon_ends - 2, 30));
  return std::min(doubled, change_.policy.backoff_most);
}

void RankStarts::StartAfterPause(int rank, const std::string& why) {
  const absl::Duration pause = Backoff(change_.Rank(rank));
  if (pause > absl::ZeroDuration()) return StartLater(rank, pause, why);
  StartAnew(rank, why);
}

void RankStarts::StartLater(int rank, absl::Duration pause, const std::string& why) {
  RankState& state = change_.Rank(rank);
  state.due = change_.now + pause;
  change_.actions.push_back(
      {.kind = ActionKind::kWait,
       .host = change_.Node(change_.NodeOf(rank)).host,
       .node = change_.NodeOf(rank),
       .rank = rank,
       .generation = state.generation + 1,
       .text = absl::StrCat("in ", absl::FormatDuration(pause), ", for it has ended ",
                            state.soon_ends, " times in a row within ", absl::FormatDuration(kSoon),
                            " of its start, without a new step: ", why)});
}

void RankStarts::StartDue() {
  if (change_.state.outcome.has_value() || change_.state.replay.has_value()) return;
  for (int rank = 0; rank < change_.ranks(); ++rank) {
    if (!Waits(change_.Rank(rank)) || change_.now < change_.Rank(rank).due) continue;
    const HostState* host = change_.Find(change_.Node(change_.NodeOf(rank)).host);
    if (host == nullptr || host->test != 0) continue;
    StartAnew(rank, "its pause is over");
  }
}

void RankStarts::StartNode(int node, const std::string& why) {
  if (IsDone(node) || change_.state.replay.has_value()) return;
  for (int rank = 0; rank < change_.ranks() && !change_.over; ++rank) {
    if (!change_.Rank(rank).done) continue;
    return Stop(1,
                absl::StrCat("node ", node, " has lost its host, and rank ", change_.NumberOf(rank),
                             " is done already: its ranks would not meet it"));
  }
  for (int i = 0; i < change_.policy.ranks_per_node; ++i) {
    const int rank = node * change_.policy.ranks_per_node + i;
    if (!change_.Rank(rank).done) StartAnew(rank, why);
  }
}

void RankStarts::HoldAll() {
  for (RankState& rank : change_.state.ranks) Hold(rank);
}

void RankStarts::HoldNode(int node) {
  for (int i = 0; i < change_.policy.ranks_per_node; ++i) {
    Hold(change_.Rank(node * change_.policy.ranks_per_node + i));
  }
}

bool RankStarts::IsDone(int node) const {
  for (int i = 0; i < change_.policy.ranks_per_node; ++i) {
    if (!change_.Rank(node * change_.policy.ranks_per_node + i).done) return false;
  }
  return true;
}

void RankStarts::Stop(int exit_status, std::string reason) {
  if (change_.state.outcome.has_value()) return;
  change_.actions.push_back({.kind = ActionKind::kStop, .text = reason});
  change_.state.outcome = Outcome{exit_status, std::move(reason), change_.now};
  HoldAll();
}

}  // namespace weft::recovery
