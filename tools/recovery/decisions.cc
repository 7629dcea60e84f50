#include "tools/recovery/decisions.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "tools/recovery/host_choice.h"
#include "tools/recovery/host_places.h"
#include "tools/recovery/rank_starts.h"
#include "tools/recovery/replay_course.h"

namespace weft::recovery {
namespace {

using collectives::ProcessEnd;

// With which programs end when they return an error.
constexpr int kErrorStatus = 1;
// Deaths by own signals on one host, after which the host tests itself: a bit that flips in memory
// or a core that computes wrong shows like a bug of the program, but on one host alone.
constexpr int kOwnSignalsMost = 3;

class Decision {
 public:
  Decision(const Policy& policy, JobState& state, const Event& event)
      : event_(event), change_{policy, state, event.now, event.over, {}} {}

  std::vector<Action> Take() {
    if (event_.kind == EventKind::kSiteTold) TakeTold();
    if (change_.state.outcome.has_value()) return {};
    switch (event_.kind) {
      case EventKind::kHostJoined:
        Join();
        break;
      case EventKind::kHostLost:
        hosts_.Lose(event_.host, "nothing was heard of it for too long");
        break;
      case EventKind::kHostLeaves:
        hosts_.Lose(event_.host, "it was told to leave");
        break;
      case EventKind::kHostEvicted:
        if (HostState* host = change_.Find(event_.host))
          hosts_.Evict(event_.host, *host, event_.text);
        break;
      case EventKind::kSelfTest:
        TakeTest();
        break;
      case EventKind::kDiagnosed:
        TakeDiagnosis();
        break;
      case EventKind::kReplay:
        replay_.Begin(event_.text, 0);
        break;
      case EventKind::kReplayed:
        replay_.TakeResult(event_.test, event_.host, event_.passed ? event_.text : "");
        break;
      case EventKind::kRankEnded:
        TakeEnd();
        break;
      case EventKind::kStopped:
        ranks_.Stop(event_.exit_status, event_.text);
        break;
      case EventKind::kSiteTold:
      case EventKind::kTime:
        break;
    }
    replay_.Check();
    hosts_.CheckVacancies();
    ranks_.StartDue();
    if (!change_.actions.empty()) ++change_.state.decisions;
    return std::move(change_.actions);
  }

 private:
  // ---- Hosts

  void Join() {
    const bool is_known = change_.Find(event_.host) != nullptr;
    HostState& host = change_.state.hosts[event_.host];
    if (is_known && event_.incarnation <= host.incarnation) return;
    host.incarnation = event_.incarnation;
    host.address = event_.address;
    host.rack = event_.rack;
    ++change_.state.decisions;
    if (host.evicted) return;
    host.test = 0;
    if (host.node >= 0) {
      // Its executor is another one: the ranks of the one before are gone with it.
      if (change_.state.started) ranks_.StartNode(host.node, "the executor there was started anew");
      return;
    }
    hosts_.FillVacancies();
  }

  void TakeTold() {
    change_.state.notices.erase(
        std::remove_if(change_.state.notices.begin(), change_.state.notices.end(),
                       [this](const Notice& notice) { return notice.number == event_.notice; }),
        change_.state.notices.end());
  }

  // ---- Self-tests

  void TakeTest() {
    HostState* host = change_.Find(event_.host);
    if (host == nullptr || host->test == 0 || host->test != event_.test) return;
    host->test = 0;
    host->cleared = event_.passed || event_.untested;
    if (event_.passed) host->blamed = absl::UnixEpoch();
    ++change_.state.decisions;
    if (!host->cleared) {
      return hosts_.Evict(event_.host, *host,
                          absl::StrCat("it failed its self-test: ", event_.text));
    }
    if (host->node < 0) return hosts_.FillVacancies();  // a node may have waited for this spare
    if (change_.state.replay.has_value()) return;
    for (int i = 0; i < change_.policy.ranks_per_node; ++i) {
      const int rank = host->node * change_.policy.ranks_per_node + i;
      if (change_.Rank(rank).runs || change_.Rank(rank).done) continue;
      ranks_.StartAnew(rank, event_.passed
                                 ? "its host passed its self-test"
                                 : absl::StrCat("its host was not tested: ", event_.text));
    }
  }

  // ---- Ranks

  void TakeEnd() {
    if (event_.rank < 0 || event_.rank >= change_.ranks()) return;
    RankState& rank = change_.Rank(event_.rank);
    if (!rank.runs || event_.generation != rank.generation) return;  // answered already
    const ProcessEnd& end = event_.end;
    rank.runs = false;
    ++change_.state.decisions;
    if (end.signal == 0 && end.status == 0) {
      rank.done = true;
      if (std::all_of(change_.state.ranks.begin(), change_.state.ranks.end(),
                      [](const RankState& r) { return r.done; })) {
        ranks_.Stop(0, "all ranks are done");
      }
      return;
    }
    const int status = end.signal != 0 ? 128 + end.signal : end.status;
    const int number = change_.NumberOf(event_.rank);
    const std::string who = absl::StrCat("rank ", number, " ", collectives::ToText(end));
    const auto is_done = [](const RankState& r) { return r.done; };
    const auto done = std::find_if(change_.state.ranks.begin(), change_.state.ranks.end(), is_done);
    if (done != change_.state.ranks.end() && !event_.over) {
      const auto first = static_cast<int>(done - change_.state.ranks.begin());
      return ranks_.Stop(status, absl::StrCat(who, ", and rank ", change_.NumberOf(first),
                                              " is done already: it would meet nobody"));
    }
    if (end.signal == 0 && end.status != kErrorStatus) {
      return ranks_.Stop(status, absl::StrCat(who, ": starting it anew does not help"));
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
      return replay_.CanBegin() ? replay_.Begin(why, status) : ranks_.Stop(status, why);
    }
    rank.soon_ends = is_soon ? rank.soon_ends + 1 : 0;
    rank.last_end = collectives::ToText(end);
    rank.last_step = event_.step;
    if (change_.state.restarts >= change_.policy.restarts_most) {
      return ranks_.Stop(
          status, absl::StrCat("ranks were started anew ", change_.state.restarts, " times, of ",
                               change_.policy.restarts_most, " (--recover)"));
    }
    ++change_.state.restarts;
    Suspect(end, who);
    // Where its host was evicted, it is started already; where the host tests itself, later.
    const std::string& name = change_.Node(change_.NodeOf(event_.rank)).host;
    const HostState* host = change_.Find(name);
    if (rank.runs || (host != nullptr && host->test != 0) || name.empty()) return;
    ranks_.StartAfterPause(event_.rank, collectives::ToText(end));
  }

  void SuspectDevice(const std::string& name, const std::string& why) {
    HostState* host = change_.Find(name);
    if (host == nullptr || host->evicted) return;
    const bool has_spare = !SpareFor(change_.state, host->rack).empty();
    if (has_spare && (host->cleared || !change_.policy.self_tests))
      return hosts_.Evict(name, *host, why);
    if (change_.policy.self_tests) hosts_.Test(name, *host, why);
  }

  void TakeDiagnosis() {
    if (event_.rank < 0 || event_.rank >= change_.ranks()) return;
    RankState& rank = change_.Rank(event_.rank);
    if (!change_.state.started || change_.state.replay.has_value() || rank.done) return;
    if (rank.diagnosed >= rank.generation) return;  // answered already
    rank.diagnosed = rank.generation;
    ++change_.state.decisions;
    switch (event_.blame) {
      case Blame::kHost: {
        const std::string name = change_.Node(change_.NodeOf(event_.rank)).host;
        if (HostState* host = change_.Find(name)) host->blamed = event_.now;
        return SuspectDevice(name, event_.text);
      }
      case Blame::kNumbers:
        return replay_.Begin(event_.text, 0);
      case Blame::kRank:
        if (!rank.runs) return;
        if (change_.state.restarts >= change_.policy.restarts_most) {
          return ranks_.Stop(
              1, absl::StrCat(event_.text, "; ranks were started anew ", change_.state.restarts,
                              " times, of ", change_.policy.restarts_most, " (--recover)"));
        }
        ++change_.state.restarts;
        return ranks_.StartAnew(event_.rank, event_.text);
    }
  }

  // What the end of a rank says of a host.
  void Suspect(const ProcessEnd& end, const std::string& who) {
    const Failure failure = FailureOfEnd(end);
    const bool is_device = end.signal == 0 && failure.scope == FailureScope::kDevice;
    const bool names_rank = failure.rank >= 0 && failure.rank < change_.ranks();
    const int blamed = is_device && names_rank ? failure.rank : event_.rank;
    const std::string name = change_.Node(change_.NodeOf(blamed)).host;
    if (is_device) return SuspectDevice(HostAtFault(change_.state, name, event_.now), who);
    HostState* host = change_.Find(name);
    if (host == nullptr) return;
    if (!change_.policy.self_tests || !collectives::IsOwnSignal(end.signal) ||
        ++host->own_signals < kOwnSignalsMost)
      return;
    hosts_.Test(name, *host,
                absl::StrCat(kOwnSignalsMost,
                             " deaths there by signals of the program's own doing; ", who));
  }

  const Event& event_;
  JobChange change_;
  RankStarts ranks_{change_};
  HostPlaces hosts_{change_, ranks_};
  ReplayCourse replay_{change_, ranks_, hosts_};
};

}  // namespace

std::vector<Action> Decide(const Policy& policy, JobState& state, const Event& event) {
  return Decision(policy, state, event).Take();
}

}  // namespace weft::recovery
