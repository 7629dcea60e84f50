#include "tools/driver/site.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command.h"
#include "base/status.h"

namespace weft::driver {
namespace {

constexpr absl::Duration kCommandMost = absl::Seconds(30);
constexpr absl::Duration kAgainFirst = absl::Seconds(1), kAgainMost = absl::Seconds(30);
// Slurm keeps a longer reason, and sinfo shows none of it.
constexpr size_t kReasonMost = 200;

using Command = std::vector<std::string>;

Errand Running(Command command) {
  return [command = std::move(command)]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const CommandOutput said, RunCommand(command, kCommandMost));
    if (said.status == 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(command.front(), " ended with status ", said.status, ": ", said.text));
  };
}

}  // namespace

absl::StatusOr<Site> FindSite(absl::string_view name, const std::string& account,
                              std::string on_evict) {
  if (!account.empty() && name != "kubernetes") {
    return absl::InvalidArgumentError(
        absl::StrCat("--service-account ", account, " has no effect with --site ", name,
                     ": give --site kubernetes, or leave --service-account out"));
  }
  Site site{.is_slurm = name == "slurm", .on_evict = std::move(on_evict)};
  if (name == "kubernetes") {
    WEFT_ASSIGN_OR_RETURN(site.kubernetes,
                          Kubernetes::Find(account.empty() ? kServiceAccount : account));
  }
  if (!site.is_slurm) return site;
  const absl::Status found = Running({"scontrol", "--version"})();
  if (!found.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("--site slurm: ", found.message()));
  }
  const char* job = std::getenv("SLURM_JOB_ID");
  site.slurm_job = job == nullptr ? "" : job;
  return site;
}

Errand EvictionErrand(const Site& site, const std::string& host, const std::string& why) {
  std::vector<Errand> errands;
  if (site.is_slurm) {
    errands.push_back(Running({"scontrol", "update", absl::StrCat("NodeName=", host), "State=DRAIN",
                               absl::StrCat("Reason=weft: ", why.substr(0, kReasonMost))}));
  }
  if (site.kubernetes.has_value()) {
    errands.push_back([&site, host] { return site.kubernetes->Evict(host); });
  }
  if (!site.on_evict.empty()) {
    errands.push_back(
        Running({"env", absl::StrCat("WEFT_EVICTED_HOST=", host),
                 absl::StrCat("WEFT_EVICTED_REASON=", why), "/bin/sh", "-c", site.on_evict}));
  }
  return [errands = std::move(errands)]() mutable -> absl::Status {
    while (!errands.empty()) {
      WEFT_RETURN_IF_ERROR(errands.front()());
      errands.erase(errands.begin());
    }
    return absl::OkStatus();
  };
}

Errand RequeueErrand(const Site& site) {
  if (!site.is_slurm || site.slurm_job.empty()) return nullptr;
  return Running({"scontrol", "requeue", site.slurm_job});
}

ErrandQueue::ErrandQueue(std::function<void(const std::string&)> say)
    : say_(std::move(say)), thread_([this] { Run(); }) {}

ErrandQueue::~ErrandQueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ErrandQueue::Push(int64_t number, std::string what, Errand errand) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({.number = number,
                        .what = std::move(what),
                        .errand = std::move(errand),
                        .due = clock_.Now()});
  }
  changed_.notify_all();
}

std::vector<int64_t> ErrandQueue::TakeDone() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(done_, {});
}

std::optional<ErrandQueue::Waiting> ErrandQueue::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const auto next =
        std::min_element(waiting_.begin(), waiting_.end(),
                         [](const Waiting& a, const Waiting& b) { return a.due < b.due; });
    if (next == waiting_.end()) {
      if (ends_) return std::nullopt;
      changed_.wait(lock);
      continue;
    }
    const absl::Duration left = next->due - clock_.Now();
    if (left > absl::ZeroDuration() && !ends_) {
      changed_.wait_for(lock, absl::ToChronoMilliseconds(left + absl::Milliseconds(1)));
      continue;
    }
    Waiting taken = std::move(*next);
    waiting_.erase(next);
    return taken;
  }
}

void ErrandQueue::Run() {
  while (std::optional<Waiting> next = Next()) {
    const absl::Status done = next->errand();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done.ok()) {
      done_.push_back(next->number);
      continue;
    }
    next->delay = std::clamp(2 * next->delay, kAgainFirst, kAgainMost);
    say_(absl::StrCat(next->what, ": ", done.message(),
                      ends_ ? "" : absl::StrCat("; again in ", absl::FormatDuration(next->delay))));
    if (ends_) continue;
    next->due = clock_.Now() + next->delay;
    waiting_.push_back(*std::move(next));
  }
}

}  // namespace weft::driver
