#include "tools/recovery/decisions.h"

#include <signal.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/failure.h"

namespace weft::recovery {
namespace {

using collectives::ProcessEnd;

// With which programs end when they return an error.
constexpr int kErrorStatus = 1;
// Deaths by own signals on one host, after which the host tests itself: a bit that flips in memory
// or a core that computes wrong shows like a bug of the program, but on one host alone.
constexpr int kOwnSignalsMost = 3;
// A process that ends within this time has not got anywhere, unless its steps say that it has.
constexpr absl::Duration kSoon = absl::Seconds(10);

// Hosts that run the last part of a self-test with the host that is suspected.
constexpr size_t kTestHelpers = 2;

// For so long a diagnosis that blames a host outdoes what ranks of others say of their devices.
constexpr absl::Duration kBlameLasts = absl::Minutes(1);

// How many of the switches above two hosts, from the hosts up, they do not share: 0 below the same
// one. Racks are named from the top down, "spine1.leaf3"; one that is not known is far from all.
int RackDistance(absl::string_view a, absl::string_view b) {
  const std::vector<absl::string_view> above_a = absl::StrSplit(a, '.');
  const std::vector<absl::string_view> above_b = absl::StrSplit(b, '.');
  if (a.empty() || b.empty()) return INT_MAX;
  size_t shared = 0;
  while (shared < std::min(above_a.size(), above_b.size()) && above_a[shared] == above_b[shared]) {
    ++shared;
  }
  return static_cast<int>(std::max(above_a.size(), above_b.size()) - shared);
}

bool Waits(const RankState& rank) { return rank.due != absl::UnixEpoch(); }

class Decision {
 public:
  Decision(const Policy& policy, JobState& state, const Event& event)
      : policy_(policy), state_(state), event_(event) {}

  std::vector<Action> Take() {
    if (event_.kind == EventKind::kSiteTold) TakeTold();
    if (state_.outcome.has_value()) return {};
    switch (event_.kind) {
      case EventKind::kHostJoined:
        Join();
        break;
      case EventKind::kHostLost:
        Leave("nothing was heard of it for too long");
        break;
      case EventKind::kHostLeaves:
        Leave("it was told to leave");
        break;
      case EventKind::kHostEvicted:
        if (HostState* host = Find(event_.host)) Evict(event_.host, *host, event_.text);
        break;
      case EventKind::kSelfTest:
        TakeTest();
        break;
      case EventKind::kDiagnosed:
        TakeDiagnosis();
        break;
      case EventKind::kReplay:
        BeginReplay(event_.text, 0);
        break;
      case EventKind::kReplayed:
        TakeReplayed();
        break;
      case EventKind::kRankEnded:
        TakeEnd();
        break;
      case EventKind::kStopped:
        Stop(event_.exit_status, event_.text);
        break;
      case EventKind::kSiteTold:
      case EventKind::kTime:
        break;
    }
    CheckReplay();
    CheckVacancies();
    StartDue();
    if (!actions_.empty()) ++state_.decisions;
    return std::move(actions_);
  }

 private:
  HostState* Find(const std::string& name) {
    const auto found = state_.hosts.find(name);
    return found == state_.hosts.end() ? nullptr : &found->second;
  }
  RankState& Rank(int rank) { return state_.ranks[static_cast<size_t>(rank)]; }
  NodeState& Node(int node) { return state_.nodes[static_cast<size_t>(node)]; }
  int NodeOf(int rank) const { return rank / policy_.ranks_per_node; }
  int NumberOf(int rank) const {
    return policy_.numbers.empty() ? rank : policy_.numbers[static_cast<size_t>(rank)];
  }

  // ---- Hosts

  void Join() {
    const bool is_known = Find(event_.host) != nullptr;
    HostState& host = state_.hosts[event_.host];
    if (is_known && event_.incarnation <= host.incarnation) return;
    host.incarnation = event_.incarnation;
    host.address = event_.address;
    host.rack = event_.rack;
    ++state_.decisions;
    if (host.evicted) return;
    host.test = 0;
    if (host.node >= 0) {
      // Its executor is another one: the ranks of the one before are gone with it.
      if (state_.started) StartNode(host.node, "the executor there was started anew");
      return;
    }
    FillVacancies();
  }

  void Leave(const std::string& why) {
    HostState* host = Find(event_.host);
    if (host == nullptr) return;
    if (host->evicted) return;  // remembered
    const HostState gone = *host;
    state_.hosts.erase(event_.host);
    Dismiss(event_.host, gone.node, gone.rack, why);
  }

  void Evict(const std::string& name, HostState& host, const std::string& why) {
    if (host.evicted) return;
    const int node = host.node;
    host.evicted = true;
    host.reason = why;
    host.node = -1;
    host.test = 0;
    Dismiss(name, node, host.rack, why);
  }

  void Dismiss(const std::string& host, int node, const std::string& rack, const std::string& why) {
    actions_.push_back({.kind = ActionKind::kEvict, .host = host, .node = node, .text = why});
    state_.notices.push_back({.number = ++state_.notices_made, .host = host, .why = why});
    Vacate(node, rack);
  }

  void TakeTold() {
    state_.notices.erase(
        std::remove_if(state_.notices.begin(), state_.notices.end(),
                       [this](const Notice& notice) { return notice.number == event_.notice; }),
        state_.notices.end());
  }

  void Vacate(int node, const std::string& rack) {
    if (node < 0) return;
    Node(node) = {.host = "", .vacant_since = event_.now, .rack = rack};
    ForRanksOf(node, [](RankState& rank) {
      rank.runs = false;
      rank.due = absl::UnixEpoch();
    });
    FillVacancies();
  }

  void FillVacancies() {
    for (int node = 0; node < policy_.nodes; ++node) {
      if (!Node(node).host.empty() || IsDone(node)) continue;
      const std::string name = ASpare(Node(node).rack);
      if (name.empty()) break;
      Node(node) = {.host = name};
      state_.hosts[name].node = node;
      actions_.push_back({.kind = ActionKind::kPlace, .host = name, .node = node});
      if (state_.started) StartNode(node, "in place of the host that is gone");
    }
    if (state_.started || std::any_of(state_.nodes.begin(), state_.nodes.end(),
                                      [](const NodeState& node) { return node.host.empty(); })) {
      return;
    }
    state_.started = true;
    for (int rank = 0; rank < static_cast<int>(state_.ranks.size()); ++rank) Run(rank, "");
  }

  // The spare that is best in the place of a host of that rack: one that was never suspected before
  // one that has passed a test, then the nearest. A host that tests itself is none until it has
  // passed. Empty: there is none.
  std::string ASpare(const std::string& rack) const {
    const std::string* best = nullptr;
    std::pair<bool, int> least;
    for (const auto& [name, host] : state_.hosts) {
      if (host.node >= 0 || host.evicted || host.test != 0) continue;
      const std::pair<bool, int> cost(host.cleared, RackDistance(rack, host.rack));
      if (best != nullptr && cost >= least) continue;
      best = &name;
      least = cost;
    }
    return best == nullptr ? "" : *best;
  }

  template <typename Do>
  void ForRanksOf(int node, Do what) {
    for (int i = 0; i < policy_.ranks_per_node; ++i) what(Rank(node * policy_.ranks_per_node + i));
  }

  bool IsDone(int node) {
    bool all = true;
    ForRanksOf(node, [&](const RankState& rank) { all = all && rank.done; });
    return all;
  }

  // All ranks of a node whose processes are gone, in new generations.
  void StartNode(int node, const std::string& why) {
    if (IsDone(node) || state_.replay.has_value()) return;
    for (int rank = 0; rank < static_cast<int>(state_.ranks.size()) && !event_.over; ++rank) {
      if (!Rank(rank).done) continue;
      return Stop(1, absl::StrCat("node ", node, " has lost its host, and rank ", NumberOf(rank),
                                  " is done already: its ranks would not meet it"));
    }
    for (int i = 0; i < policy_.ranks_per_node; ++i) {
      const int rank = node * policy_.ranks_per_node + i;
      if (!Rank(rank).done) StartAnew(rank, why);
    }
  }

  void CheckVacancies() {
    for (int node = 0; node < policy_.nodes; ++node) {
      const NodeState& vacant = Node(node);
      if (!vacant.host.empty() || IsDone(node) ||
          event_.now - vacant.vacant_since < policy_.vacancy_most)
        continue;
      return Stop(kNoHostsStatus, absl::StrCat("node ", node, " has had no host for ",
                                               absl::FormatDuration(policy_.vacancy_most),
                                               ": there is no spare, and none has joined"));
    }
  }

  // ---- Self-tests

  void Test(const std::string& name, HostState& host, const std::string& why) {
    if (host.test != 0) return;
    host.test = ++state_.tests;
    host.own_signals = 0;
    host.test_helpers = HelpersOf(name, host);
    actions_.push_back({.kind = ActionKind::kTest, .host = name, .node = host.node, .text = why});
  }

  // Hosts near `suspect`, the nearest first: below the same switch, then of near nodes, since ranks
  // are placed so that near nodes lie below one switch; a host that is suspected helps nobody.
  std::vector<std::string> HelpersOf(const std::string& name, const HostState& suspect) const {
    const auto distance = [&suspect](const HostState& host) {
      const bool other_rack = host.rack.empty() || host.rack != suspect.rack;
      const int nodes =
          host.node < 0 || suspect.node < 0 ? INT_MAX : std::abs(host.node - suspect.node);
      return std::pair(other_rack, nodes);
    };
    std::vector<std::string> names;
    for (const auto& [other, host] : state_.hosts) {
      if (other != name && !host.evicted && host.test == 0) names.push_back(other);
    }
    std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return distance(state_.hosts.at(a)) < distance(state_.hosts.at(b));
    });
    names.resize(std::min(names.size(), kTestHelpers));
    return names;
  }

  void TakeTest() {
    HostState* host = Find(event_.host);
    if (host == nullptr || host->test == 0 || host->test != event_.test) return;
    host->test = 0;
    host->cleared = event_.passed || event_.untested;
    if (event_.passed) host->blamed = absl::UnixEpoch();
    ++state_.decisions;
    if (!host->cleared) {
      return Evict(event_.host, *host, absl::StrCat("it failed its self-test: ", event_.text));
    }
    if (host->node < 0) return FillVacancies();  // a node may have waited for this spare
    if (state_.replay.has_value()) return;
    for (int i = 0; i < policy_.ranks_per_node; ++i) {
      const int rank = host->node * policy_.ranks_per_node + i;
      if (Rank(rank).runs || Rank(rank).done) continue;
      StartAnew(rank, event_.passed ? "its host passed its self-test"
                                    : absl::StrCat("its host was not tested: ", event_.text));
    }
  }

  // ---- Ranks

  void Run(int rank, const std::string& why) {
    Rank(rank).runs = true;
    Rank(rank).started = event_.now;
    Rank(rank).due = absl::UnixEpoch();
    actions_.push_back({.kind = ActionKind::kStart,
                        .host = Node(NodeOf(rank)).host,
                        .node = NodeOf(rank),
                        .rank = rank,
                        .generation = Rank(rank).generation,
                        .text = why});
  }
  void StartAnew(int rank, const std::string& why) {
    ++Rank(rank).generation;
    Run(rank, why);
  }

  // How long the rank has to wait for its next start.
  absl::Duration Backoff(const RankState& rank) const {
    if (rank.soon_ends < 2) return absl::ZeroDuration();
    const absl::Duration doubled =
        policy_.backoff_first * (int64_t{1} << std::min(rank.soon_ends - 2, 30));
    return std::min(doubled, policy_.backoff_most);
  }

  void StartLater(int rank, absl::Duration pause, const std::string& why) {
    RankState& state = Rank(rank);
    state.due = event_.now + pause;
    actions_.push_back({.kind = ActionKind::kWait,
                        .host = Node(NodeOf(rank)).host,
                        .node = NodeOf(rank),
                        .rank = rank,
                        .generation = state.generation + 1,
                        .text = absl::StrCat("in ", absl::FormatDuration(pause),
                                             ", for it has ended ", state.soon_ends,
                                             " times in a row within ", absl::FormatDuration(kSoon),
                                             " of its start, without a new step: ", why)});
  }

  void StartDue() {
    if (state_.outcome.has_value() || state_.replay.has_value()) return;
    for (int rank = 0; rank < static_cast<int>(state_.ranks.size()); ++rank) {
      if (!Waits(Rank(rank)) || event_.now < Rank(rank).due) continue;
      const HostState* host = Find(Node(NodeOf(rank)).host);
      if (host == nullptr || host->test != 0) continue;
      StartAnew(rank, "its pause is over");
    }
  }

  void TakeEnd() {
    if (event_.rank < 0 || event_.rank >= static_cast<int>(state_.ranks.size())) return;
    RankState& rank = Rank(event_.rank);
    if (!rank.runs || event_.generation != rank.generation) return;  // answered already
    const ProcessEnd& end = event_.end;
    rank.runs = false;
    ++state_.decisions;
    if (end.signal == 0 && end.status == 0) {
      rank.done = true;
      if (std::all_of(state_.ranks.begin(), state_.ranks.end(),
                      [](const RankState& r) { return r.done; })) {
        Stop(0, "all ranks are done");
      }
      return;
    }
    const int status = end.signal != 0 ? 128 + end.signal : end.status;
    const int number = NumberOf(event_.rank);
    const std::string who = absl::StrCat("rank ", number, " ", collectives::ToText(end));
    const auto is_done = [](const RankState& r) { return r.done; };
    const auto done = std::find_if(state_.ranks.begin(), state_.ranks.end(), is_done);
    if (done != state_.ranks.end() && !event_.over) {
      const auto first = static_cast<int>(done - state_.ranks.begin());
      return Stop(status, absl::StrCat(who, ", and rank ", NumberOf(first),
                                       " is done already: it would meet nobody"));
    }
    if (end.signal == 0 && end.status != kErrorStatus) {
      return Stop(status, absl::StrCat(who, ": starting it anew does not help"));
    }
    const bool is_new_step = event_.step > rank.last_step;
    const bool is_soon = !is_new_step && event_.now - rank.started < kSoon;
    const bool is_same_place =
        event_.step == rank.last_step && (event_.step >= 0 || (is_soon && !end.cause.empty()));
    const bool is_same =
        is_same_place && IsSameFault(collectives::ParseProcessEnd(rank.last_end), end, number);
    if (is_same) {
      const std::string why = absl::StrCat(
          who, ", as the process before it did ",
          event_.step < 0 ? "soon after its start, without a step"
                          : absl::StrCat("in the same step (after step ", event_.step, ")"),
          ": starting it anew does not help");
      return CanReplay() ? BeginReplay(why, status) : Stop(status, why);
    }
    rank.soon_ends = is_soon ? rank.soon_ends + 1 : 0;
    rank.last_end = collectives::ToText(end);
    rank.last_step = event_.step;
    if (state_.restarts >= policy_.restarts_most) {
      return Stop(status, absl::StrCat("ranks were started anew ", state_.restarts, " times, of ",
                                       policy_.restarts_most, " (--recover)"));
    }
    ++state_.restarts;
    Suspect(end, who);
    // Where its host was evicted, it is started already; where the host tests itself, later.
    const std::string& name = Node(NodeOf(event_.rank)).host;
    const HostState* host = Find(name);
    if (rank.runs || (host != nullptr && host->test != 0) || name.empty()) return;
    const absl::Duration pause = Backoff(rank);
    if (pause > absl::ZeroDuration())
      return StartLater(event_.rank, pause, collectives::ToText(end));
    StartAnew(event_.rank, collectives::ToText(end));
  }

  void SuspectDevice(const std::string& name, const std::string& why) {
    HostState* host = Find(name);
    if (host == nullptr || host->evicted) return;
    const bool has_spare = !ASpare(host->rack).empty();
    if (has_spare && (host->cleared || !policy_.self_tests)) return Evict(name, *host, why);
    if (policy_.self_tests) Test(name, *host, why);
  }

  bool IsBlamed(const HostState& host) const {
    return host.blamed != absl::UnixEpoch() && event_.now - host.blamed < kBlameLasts;
  }

  // The host to suspect where a rank on host `name` reports a device error of that host. A host
  // whose peer has a broken device may report an error as well, so that the host goes before that
  // the job's diagnosis blames. A blamed host may be evicted by now; then no host is suspected.
  std::string HostAtFault(const std::string& name) {
    const HostState* own = Find(name);
    if (own != nullptr && IsBlamed(*own)) return name;
    const auto blamed = std::find_if(state_.hosts.begin(), state_.hosts.end(),
                                     [this](const auto& entry) { return IsBlamed(entry.second); });
    return blamed == state_.hosts.end() ? name : blamed->first;
  }

  void TakeDiagnosis() {
    if (event_.rank < 0 || event_.rank >= static_cast<int>(state_.ranks.size())) return;
    RankState& rank = Rank(event_.rank);
    if (!state_.started || state_.replay.has_value() || rank.done) return;
    if (rank.diagnosed >= rank.generation) return;  // answered already
    rank.diagnosed = rank.generation;
    ++state_.decisions;
    switch (event_.blame) {
      case Blame::kHost: {
        const std::string name = Node(NodeOf(event_.rank)).host;
        if (HostState* host = Find(name)) host->blamed = event_.now;
        return SuspectDevice(name, event_.text);
      }
      case Blame::kNumbers:
        return BeginReplay(event_.text, 0);
      case Blame::kRank:
        if (!rank.runs) return;
        if (state_.restarts >= policy_.restarts_most) {
          return Stop(1, absl::StrCat(event_.text, "; ranks were started anew ", state_.restarts,
                                      " times, of ", policy_.restarts_most, " (--recover)"));
        }
        ++state_.restarts;
        return StartAnew(event_.rank, event_.text);
    }
  }

  // What the end of a rank says of a host.
  void Suspect(const ProcessEnd& end, const std::string& who) {
    const Failure failure = FailureOfEnd(end);
    const bool is_device = end.signal == 0 && failure.scope == FailureScope::kDevice;
    const bool names_rank =
        failure.rank >= 0 && failure.rank < static_cast<int>(state_.ranks.size());
    const int blamed = is_device && names_rank ? failure.rank : event_.rank;
    const std::string name = Node(NodeOf(blamed)).host;
    if (is_device) return SuspectDevice(HostAtFault(name), who);
    HostState* host = Find(name);
    if (host == nullptr) return;
    if (!policy_.self_tests || !collectives::IsOwnSignal(end.signal) ||
        ++host->own_signals < kOwnSignalsMost)
      return;
    Test(name, *host,
         absl::StrCat(kOwnSignalsMost, " deaths there by signals of the program's own doing; ",
                      who));
  }

  // ---- Replays

  bool CanReplay() const {
    return policy_.replay_hosts > 0 && state_.started && !state_.replay.has_value() &&
           !ReplayGroups(ReplayHosts(), policy_.replay_hosts, 0).empty() &&
           std::none_of(state_.ranks.begin(), state_.ranks.end(),
                        [](const RankState& rank) { return rank.done; });
  }

  // In the order of their nodes, so that groups are such as the job has; then spares.
  std::vector<std::string> ReplayHosts() const {
    std::vector<std::string> hosts;
    for (const NodeState& node : state_.nodes) {
      if (!node.host.empty() && state_.hosts.at(node.host).test == 0) hosts.push_back(node.host);
    }
    for (const auto& [name, host] : state_.hosts) {
      if (host.node < 0 && !host.evicted && host.test == 0) hosts.push_back(name);
    }
    return hosts;
  }

  void BeginReplay(const std::string& why, int stop_status) {
    if (!CanReplay()) return;
    for (RankState& rank : state_.ranks) {
      rank.runs = false;
      rank.due = absl::UnixEpoch();
    }
    state_.replay = Replay{.why = why, .stop_status = stop_status};
    BeginPhase(0, ReplayHosts());
  }

  void BeginPhase(int phase, const std::vector<std::string>& hosts) {
    Replay& replay = *state_.replay;
    replay.phase = phase;
    replay.task = ++state_.replays;
    std::string text;
    for (ReplayGroup& group : ReplayGroups(hosts, policy_.replay_hosts, phase)) {
      absl::StrAppend(&text, text.empty() ? "" : " | ", absl::StrJoin(group.hosts, " "));
      replay.groups.push_back(std::move(group));
    }
    actions_.push_back({.kind = ActionKind::kReplay,
                        .text = absl::StrCat("phase ", phase + 1, " of ", kReplayPhases,
                                             ", groups ", text, ": ", replay.why)});
  }

  void TakeReplayed() {
    if (!state_.replay.has_value() || event_.test != state_.replay->task) return;
    for (ReplayGroup& group : state_.replay->groups) {
      if (group.phase != state_.replay->phase) continue;
      if (std::count(group.hosts.begin(), group.hosts.end(), event_.host) == 0) continue;
      // A host of two groups reports them one after the other, in their order.
      if (!group.results.emplace(event_.host, event_.passed ? event_.text : "").second) continue;
      ++state_.decisions;
      return;
    }
  }

  // Whether all hosts of this phase that are there have reported: then goes on.
  void CheckReplay() {
    if (!state_.replay.has_value() || state_.outcome.has_value()) return;
    for (const ReplayGroup& group : state_.replay->groups) {
      for (const std::string& name : group.hosts) {
        const HostState* host = Find(name);
        const bool is_there = host != nullptr && !host->evicted;
        if (is_there && group.results.count(name) == 0) return;
      }
    }
    if (state_.replay->phase + 1 < kReplayPhases) {
      std::vector<std::string> hosts = ReplayHosts();
      if (hosts.size() >= 2 * static_cast<size_t>(policy_.replay_hosts)) {
        return BeginPhase(state_.replay->phase + 1, hosts);
      }
    }
    EndReplay();
  }

  void EndReplay() {
    const Replay replay = *std::exchange(state_.replay, std::nullopt);
    const ReplayVerdict verdict = JudgeReplay(replay.groups);
    actions_.push_back({.kind = ActionKind::kReplay, .text = verdict.text});
    if (verdict.named.empty() && replay.stop_status != 0) {
      return Stop(replay.stop_status, absl::StrCat(replay.why, "; ", verdict.text));
    }
    for (RankState& rank : state_.ranks) rank.last_end.clear();
    for (const std::string& name : verdict.named) {
      HostState* host = Find(name);
      if (host == nullptr || host->evicted) continue;
      // Where several hosts are named, a healthy one may be among them whose group failed for
      // another reason: they test themselves.
      if (verdict.named.size() == 1) {
        Evict(name, *host, absl::StrCat("it computes wrongly: ", verdict.text));
      } else if (policy_.self_tests) {
        Test(name, *host, verdict.text);
      }
    }
    for (int rank = 0; rank < static_cast<int>(state_.ranks.size()); ++rank) {
      const HostState* host = Find(Node(NodeOf(rank)).host);
      if (host == nullptr || host->test != 0 || Rank(rank).runs || Rank(rank).done) continue;
      StartAnew(rank, "the replay is over");
    }
  }

  void Stop(int exit_status, std::string reason) {
    if (state_.outcome.has_value()) return;
    actions_.push_back({.kind = ActionKind::kStop, .text = reason});
    state_.outcome = Outcome{exit_status, std::move(reason), event_.now};
    for (RankState& rank : state_.ranks) {
      rank.runs = false;
      rank.due = absl::UnixEpoch();
    }
  }

  const Policy& policy_;
  JobState& state_;
  const Event& event_;
  std::vector<Action> actions_;
};

}  // namespace

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

std::vector<Action> Decide(const Policy& policy, JobState& state, const Event& event) {
  return Decision(policy, state, event).Take();
}

absl::Time NextStart(const JobState& state) {
  absl::Time next = absl::InfiniteFuture();
  for (const RankState& rank : state.ranks) {
    if (Waits(rank)) next = std::min(next, rank.due);
  }
  return next;
}

std::string ToText(const Action& action) {
  std::string text;
  switch (action.kind) {
    case ActionKind::kPlace:
      text = absl::StrCat("place node ", action.node, " on ", action.host);
      break;
    case ActionKind::kStart:
      text = absl::StrCat("start rank ", action.rank, " (generation ", action.generation, ") on ",
                          action.host);
      break;
    case ActionKind::kWait:
      text = absl::StrCat("start rank ", action.rank, " (generation ", action.generation, ") on ",
                          action.host, " later");
      break;
    case ActionKind::kTest:
      text = absl::StrCat("test ", action.host);
      break;
    case ActionKind::kEvict:
      text = absl::StrCat("evict ", action.host,
                          action.node < 0 ? "" : absl::StrCat(" from node ", action.node));
      break;
    case ActionKind::kReplay:
      text = "replay";
      break;
    case ActionKind::kStop:
      text = "stop";
      break;
  }
  if (!action.text.empty()) absl::StrAppend(&text, ": ", action.text);
  return text;
}

}  // namespace weft::recovery
