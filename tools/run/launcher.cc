#include "tools/run/launcher.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/process_end.h"
#include "tools/recovery/decisions.h"
#include "tools/recovery/finding_judge.h"
#include "tools/run/host_ranks.h"
#include "tools/run/host_store.h"
#include "tools/run/observer.h"
#include "tools/run/output.h"
#include "tools/run/process.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"

namespace weft::run {
namespace {

// From the death of a rank: the others are told to end, and after this they are killed. With this,
// a job of which a rank died is over within a second.
constexpr absl::Duration kGraceAfterFailure = absl::Milliseconds(500);
// Between two looks at what the ranks record.
constexpr absl::Duration kObserve = absl::Seconds(1);

class Launcher {
 public:
  explicit Launcher(const RunOptions& options) : options_(options), host_("weft-run", options) {}

  absl::StatusOr<int> Run() {
    WEFT_RETURN_IF_ERROR(host_.Open());
    WEFT_ASSIGN_OR_RETURN(store_, ServeHost(options_));
    const Variables variables =
        JobVariables(options_, store_.address, store_.secret_hex, store_.master_port);
    WEFT_RETURN_IF_ERROR(host_.Assign(options_.node_rank * options_.ranks, variables));
    absl::Status started = StartRanks();
    StartObserver(variables);
    if (!started.ok()) {
      host_.Say(started.message());
      startup_status_ = StatusOfFailedStart(started);
      host_.End(SIGKILL, absl::ZeroDuration());
    }
    while (host_.alive() > 0 || recovery::NextStart(state_) < absl::InfiniteFuture()) Turn();
    host_.Finish();
    int status = Conclude();
    host_.FlushOutput();
    // As of every program whose output is lost on a full disk.
    return status == 0 && host_.terminal().lost() ? EXIT_FAILURE : status;
  }

 private:
  // A page that cannot be served costs the page, not the job.
  void StartObserver(const Variables& variables) {
    const auto folder = variables.find("WEFT_RECORDS_FOLDER");
    observer_ =
        std::make_unique<Observer>(folder == variables.end() ? "" : folder->second, options_.job);
    if (options_.agent.empty()) return;
    absl::StatusOr<std::string> served = observer_->ServeAgent(options_.agent);
    host_.Say(served.ok() ? *served : absl::StrCat("--agent: ", served.status().message()));
  }

  absl::Status StartRanks() {
    policy_ = {.ranks_per_node = options_.ranks,
               .restarts_most = options_.recover,
               .self_tests = false,
               .backoff_first = options_.backoff_first,
               .backoff_most = options_.backoff_most};
    for (const RankProcess& rank : host_.ranks()) policy_.numbers.push_back(rank.rank);
    state_ = recovery::NewJob(policy_, clock_.Now());
    recovery::Decide(
        policy_, state_,
        {.kind = recovery::EventKind::kHostJoined, .now = clock_.Now(), .host = "here"});
    for (RankProcess& rank : host_.ranks()) WEFT_RETURN_IF_ERROR(host_.Start(rank));
    return absl::OkStatus();
  }

  void Turn() {
    host_.Turn(std::min(clock_.Now() + kObserve, recovery::NextStart(state_)));
    for (int signal : host_.TakeSignals()) Forward(signal);
    TakeEnded();
    StartOrFail(recovery::Decide(policy_, state_, {.now = clock_.Now()}));
    if (first_failed_ == nullptr && ended_by_ == 0 && host_.alive() > 0) {
      host_.SayAll(observer_->Look(clock_.Now()));
      TakeDiagnosis();
    }
  }

  // Acts on what stands still, as weft-driver does. One host of several sees too little of the job.
  void TakeDiagnosis() {
    const absl::Time now = clock_.Now();
    const bool judges = options_.recover > 0 && options_.nodes == 1 &&
                        options_.still > absl::ZeroDuration() && !state_.outcome.has_value();
    if (!judges || now < judge_at_) return;
    judge_at_ = now + kObserve;
    const auto findings = observer_->Diagnose(recovery::JudgedDiagnosis(options_.still));
    for (const recovery::Diagnosed& one : judge_.Look(findings).diagnosed) {
      for (const int rank : one.ranks) {
        const std::vector<recovery::Action> actions =
            recovery::Decide(policy_, state_,
                             {.kind = recovery::EventKind::kDiagnosed,
                              .now = now,
                              .text = absl::StrCat("diagnosis: ", one.text),
                              .rank = LocalRankOf(rank),
                              .blame = one.blame});
        for (const recovery::Action& action : actions) {
          if (action.kind != recovery::ActionKind::kStop) Replace(action);
        }
        if (state_.outcome.has_value()) return GiveUp(rank);
      }
    }
  }

  // The rank that records have under that number; -1: none of this host.
  int LocalRankOf(int rank) const {
    const std::vector<int>& numbers = policy_.numbers;
    const auto found = std::find(numbers.begin(), numbers.end(), rank);
    return found == numbers.end() ? -1 : static_cast<int>(found - numbers.begin());
  }

  // A rank that is alive gives way to its next process once it has ended.
  void Replace(const recovery::Action& action) {
    if (action.kind != recovery::ActionKind::kStart) return;
    RankProcess& rank = host_.ranks()[static_cast<size_t>(action.rank)];
    host_.Say(absl::StrCat("rank ", rank.rank, " (pid ", rank.pid, "): ", action.text,
                           "; starting it anew (", state_.restarts, " of ", options_.recover, ")"));
    if (!rank.alive) return StartOrFail({action});
    replaced_.insert_or_assign(action.rank, action);
    host_.Kill(rank);
  }

  // The rank that nothing more is to be done about ends the job.
  void GiveUp(int rank) {
    host_.Say(state_.outcome->reason);
    host_.SayAll(observer_->Explain());
    given_up_ = rank;
    host_.End(SIGTERM, kGraceAfterFailure);
  }

  void Forward(int signal) {
    if (!EndsJob(signal)) return host_.Signal(signal);
    if (ended_by_ != 0) {
      host_.Say(absl::StrCat("got ", SignalName(signal), " again: killing all ranks"));
      return host_.End(SIGKILL, absl::ZeroDuration());
    }
    ended_by_ = signal;
    StopDeciding();
    host_.Say(absl::StrCat("got ", SignalName(signal), ": passed on to ", host_.alive(),
                           " ranks, which will be killed in ",
                           absl::FormatDuration(options_.grace)));
    host_.End(signal, options_.grace);
  }

  void TakeEnded() {
    std::vector<RankProcess*> dead;
    for (RankProcess* rank : host_.TakeEnded()) {
      observer_->OnEnded(rank->pid, rank->status, rank->told_to_end);
      const auto replaced = replaced_.extract(rank->local_rank);
      if (!replaced.empty() && rank->failed() && !state_.outcome.has_value()) {
        rank->last_end = collectives::ToText(rank->LastEnd());
        if (Start({replaced.mapped()}) != nullptr) dead.push_back(rank);
        continue;
      }
      if (rank->failed() && !rank->told_to_end) dead.push_back(rank);
      if (!rank->failed()) StartOrFail(recovery::Decide(policy_, state_, EndOf(*rank)));
    }
    if (!dead.empty() && first_failed_ == nullptr && !StartAnew(dead)) Fail(dead);
  }

  // Whether dead ranks were started again: what is decided of each (recovery/decisions.h).
  bool StartAnew(const std::vector<RankProcess*>& dead) {
    if (ended_by_ != 0) return false;
    recovery::JobState state = state_;
    std::vector<recovery::Action> actions;
    for (const RankProcess* rank : dead) {
      for (recovery::Action& action : recovery::Decide(policy_, state, EndOf(*rank))) {
        actions.push_back(std::move(action));
      }
      if (!state.outcome.has_value()) continue;
      if (options_.recover > 0) host_.Say(state.outcome->reason);
      return false;
    }
    int count = std::exchange(state_, std::move(state)).restarts;
    for (RankProcess* rank : dead) {
      rank->last_end = collectives::ToText(rank->LastEnd());
      host_.Say(absl::StrCat("rank ", rank->rank, " (pid ", rank->pid, ") ", rank->Outcome(),
                             "; starting it anew (", ++count, " of ", options_.recover, ")"));
    }
    return Start(actions) == nullptr;
  }

  // The first rank that could not be started; null: all were.
  RankProcess* Start(const std::vector<recovery::Action>& actions) {
    for (const recovery::Action& action : actions) {
      if (action.rank < 0) continue;  // it is of a host
      RankProcess& rank = host_.ranks()[static_cast<size_t>(action.rank)];
      if (action.kind == recovery::ActionKind::kWait) {
        recovery::Action numbered = action;
        numbered.rank = rank.rank;
        host_.Say(recovery::ToText(numbered));
      }
      if (action.kind != recovery::ActionKind::kStart) continue;
      rank.restarts = action.generation;
      const absl::Status started = host_.Start(rank);
      if (started.ok()) continue;
      host_.Say(started.message());
      return &rank;
    }
    return nullptr;
  }

  // A rank that cannot be started ends the job, as its last process has ended.
  void StartOrFail(const std::vector<recovery::Action>& actions) {
    RankProcess* missing = Start(actions);
    if (missing != nullptr && first_failed_ == nullptr) Fail({missing});
  }

  // No rank is started from here.
  void StopDeciding() {
    recovery::Decide(policy_, state_, {.kind = recovery::EventKind::kStopped, .now = clock_.Now()});
  }

  // To the decisions, this host is a job's only node, and its ranks count from 0: policy_.numbers
  // has what they are in the job.
  recovery::Event EndOf(const RankProcess& rank) const {
    return {.kind = recovery::EventKind::kRankEnded,
            .now = clock_.Now(),
            .rank = rank.local_rank,
            .generation = rank.restarts,
            .end = rank.LastEnd(),
            .step = observer_->LastStep(rank.rank),
            .over = rank.failed() && IsOver()};
  }

  // Whether a rank that has failed may be started anew although others are done.
  bool IsOver() const {
    const bool any_done = std::any_of(state_.ranks.begin(), state_.ranks.end(),
                                      [](const recovery::RankState& rank) { return rank.done; });
    return options_.recover > 0 && any_done && IsJobOver(options_, store_).value_or(false);
  }

  // Where several died at once, one that was killed is the cause; others exit because they lost
  // their peer.
  void Fail(const std::vector<RankProcess*>& dead) {
    StopDeciding();
    auto killed = std::find_if(dead.begin(), dead.end(),
                               [](const RankProcess* r) { return WIFSIGNALED(r->status); });
    first_failed_ = killed == dead.end() ? dead.front() : *killed;
    std::vector<std::string> lines = first_failed_->output->LastLines();
    host_.Say(absl::StrCat("rank ", first_failed_->rank, " (pid ", first_failed_->pid, ") ",
                           first_failed_->Outcome(), lines.empty() ? "; it wrote nothing" : ""));
    if (!lines.empty()) {
      host_.Say(absl::StrCat("last lines of rank ", first_failed_->rank, ":"));
      for (const std::string& line : lines) host_.terminal().Line(Stream::kError, "    ", line);
    }
    host_.SayAll(observer_->Explain());
    if (host_.alive() > 0) host_.Say(absl::StrCat("ending the other ", host_.alive(), " ranks"));
    host_.End(SIGTERM, kGraceAfterFailure);
  }

  int Conclude() {
    int status = startup_status_;
    if (status == 0 && first_failed_ != nullptr) status = first_failed_->exit_status();
    if (status == 0 && given_up_ >= 0) status = 1;
    if (status == 0 && ended_by_ != 0) status = 128 + ended_by_;
    if (status != 0 && !options_.log_dir.empty() && startup_status_ == 0) {
      host_.Say(absl::StrCat("the logs of all ranks are in ", options_.log_dir));
    }
    if (options_.json) {
      const int first = first_failed_ == nullptr ? given_up_ : first_failed_->rank;
      host_.terminal().Line(Stream::kOutput, "", SummaryJson(status, first, host_.ranks()));
    }
    return status;
  }

  const RunOptions& options_;
  SystemClock clock_;
  HostRanks host_;
  HostStore store_;
  std::unique_ptr<Observer> observer_;
  recovery::Policy policy_;
  recovery::JobState state_;
  recovery::FindingJudge judge_;
  absl::Time judge_at_;
  std::map<int, recovery::Action> replaced_;  // by local rank: what follows once it has ended
  int given_up_ = -1;       // the rank that the others wait for, and that is not started anew
  int ended_by_ = 0;        // the signal that was forwarded first
  int startup_status_ = 0;  // not 0: the program could not be started
  RankProcess* first_failed_ = nullptr;
};

}  // namespace

absl::StatusOr<int> RunJob(const RunOptions& options) { return Launcher(options).Run(); }

}  // namespace weft::run
