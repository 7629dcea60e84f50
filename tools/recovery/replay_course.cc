#include "tools/recovery/replay_course.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/recovery/host_choice.h"
#include "tools/recovery/replay.h"

namespace weft::recovery {

bool ReplayCourse::CanBegin() const {
  return change_.policy.replay_hosts > 0 && change_.state.started &&
         !change_.state.replay.has_value() &&
         !ReplayGroups(ReplayHosts(change_.state), change_.policy.replay_hosts, 0).empty() &&
         std::none_of(change_.state.ranks.begin(), change_.state.ranks.end(),
                      [](const RankState& rank) { return rank.done; });
}

void ReplayCourse::Begin(const std::string& why, int stop_status) {
  if (!CanBegin()) return;
  ranks_.HoldAll();
  change_.state.replay = Replay{.why = why, .stop_status = stop_status};
  BeginPhase(0, ReplayHosts(change_.state));
}

void ReplayCourse::BeginPhase(int phase, const std::vector<std::string>& hosts) {
  Replay& replay = *change_.state.replay;
  replay.phase = phase;
  replay.task = ++change_.state.replays;
  std::string text;
  for (ReplayGroup& group : ReplayGroups(hosts, change_.policy.replay_hosts, phase)) {
    absl::StrAppend(&text, text.empty() ? "" : " | ", absl::StrJoin(group.hosts, " "));
    replay.groups.push_back(std::move(group));
  }
  change_.actions.push_back({.kind = ActionKind::kReplay,
                             .text = absl::StrCat("phase ", phase + 1, " of ", kReplayPhases,
                                                  ", groups ", text, ": ", replay.why)});
}

void ReplayCourse::TakeResult(int64_t task, const std::string& host, const std::string& digest) {
  if (!change_.state.replay.has_value() || task != change_.state.replay->task) return;
  for (ReplayGroup& group : change_.state.replay->groups) {
    if (group.phase != change_.state.replay->phase) continue;
    if (std::count(group.hosts.begin(), group.hosts.end(), host) == 0) continue;
    // A host of two groups reports them one after the other, in their order.
    if (!group.results.emplace(host, digest).second) continue;
    ++change_.state.decisions;
    return;
  }
}

void ReplayCourse::Check() {
  if (!change_.state.replay.has_value() || change_.state.outcome.has_value()) return;
  for (const ReplayGroup& group : change_.state.replay->groups) {
    for (const std::string& name : group.hosts) {
      const HostState* host = change_.Find(name);
      const bool is_there = host != nullptr && !host->evicted;
      if (is_there && group.results.count(name) == 0) return;
    }
  }
  if (change_.state.replay->phase + 1 < kReplayPhases) {
    std::vector<std::string> hosts = ReplayHosts(change_.state);
    if (hosts.size() >= 2 * static_cast<size_t>(change_.policy.replay_hosts)) {
      return BeginPhase(change_.state.replay->phase + 1, hosts);
    }
  }
  End();
}

void ReplayCourse::End() {
  const Replay replay = *std::exchange(change_.state.replay, std::nullopt);
  const ReplayVerdict verdict = JudgeReplay(replay.groups);
  change_.actions.push_back({.kind = ActionKind::kReplay, .text = verdict.text});
  if (verdict.named.empty() && replay.stop_status != 0) {
    return ranks_.Stop(replay.stop_status, absl::StrCat(replay.why, "; ", verdict.text));
  }
  for (RankState& rank : change_.state.ranks) rank.last_end.clear();
  for (const std::string& name : verdict.named) {
    HostState* host = change_.Find(name);
    if (host == nullptr || host->evicted) continue;
    // Where several hosts are named, a healthy one may be among them whose group failed for
    // another reason: they test themselves.
    if (verdict.named.size() == 1) {
      hosts_.Evict(name, *host, absl::StrCat("it computes wrongly: ", verdict.text));
    } else if (change_.policy.self_tests) {
      hosts_.Test(name, *host, verdict.text);
    }
  }
  for (int rank = 0; rank < change_.ranks(); ++rank) {
    const HostState* host = change_.Find(change_.Node(change_.NodeOf(rank)).host);
    if (host == nullptr || host->test != 0 || change_.Rank(rank).runs || change_.Rank(rank).done)
      continue;
    ranks_.StartAnew(rank, "the replay is over");
  }
}

}  // namespace weft::recovery
