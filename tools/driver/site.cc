#include "tools/driver/site.h"

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

std::vector<Errand> EvictionErrands(const Site& site, const std::string& host,
                                    const std::string& why) {
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
  return errands;
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

void ErrandQueue::Push(std::string what, Errand errand) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.emplace_back(std::move(what), std::move(errand));
  }
  changed_.notify_all();
}

void ErrandQueue::Run() {
  while (true) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [what, errand] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const absl::Status done = errand();
    if (!done.ok()) say_(absl::StrCat(what, ": ", done.message()));
  }
}

}  // namespace weft::driver
