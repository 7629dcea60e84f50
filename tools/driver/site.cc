#include "tools/driver/site.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command.h"

namespace weft::driver {
namespace {

constexpr absl::Duration kCommandMost = absl::Seconds(30);
// Slurm keeps a longer reason, and sinfo shows none of it.
constexpr size_t kReasonMost = 200;

}  // namespace

absl::StatusOr<Site> FindSite(absl::string_view name, std::string on_evict) {
  Site site{.is_slurm = name == "slurm", .on_evict = std::move(on_evict)};
  if (!site.is_slurm) return site;
  const auto version = RunCommand({"scontrol", "--version"}, kCommandMost);
  if (!version.ok() || version->status != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--site slurm: scontrol cannot be run: ",
                     version.ok() ? version->text : std::string(version.status().message())));
  }
  const char* job = std::getenv("SLURM_JOB_ID");
  site.slurm_job = job == nullptr ? "" : job;
  return site;
}

std::vector<Command> EvictionCommands(const Site& site, const std::string& host,
                                      const std::string& why) {
  std::vector<Command> commands;
  if (site.is_slurm) {
    commands.push_back({"scontrol", "update", absl::StrCat("NodeName=", host), "State=DRAIN",
                        absl::StrCat("Reason=weft: ", why.substr(0, kReasonMost))});
  }
  if (!site.on_evict.empty()) {
    commands.push_back({"env", absl::StrCat("WEFT_EVICTED_HOST=", host),
                        absl::StrCat("WEFT_EVICTED_REASON=", why), "/bin/sh", "-c", site.on_evict});
  }
  return commands;
}

Command RequeueCommand(const Site& site) {
  if (!site.is_slurm || site.slurm_job.empty()) return {};
  return {"scontrol", "requeue", site.slurm_job};
}

CommandQueue::CommandQueue(std::function<void(const std::string&)> say)
    : say_(std::move(say)), thread_([this] { Run(); }) {}

CommandQueue::~CommandQueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CommandQueue::Push(std::string what, Command command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.emplace_back(std::move(what), std::move(command));
  }
  changed_.notify_all();
}

void CommandQueue::Run() {
  while (true) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [what, command] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const auto said = RunCommand(command, kCommandMost);
    if (said.ok() && said->status == 0) continue;
    say_(absl::StrCat(what, ": ",
                      said.ok() ? absl::StrCat(command.front(), " ended with status ", said->status,
                                               ": ", said->text)
                                : std::string(said.status().message())));
  }
}

}  // namespace weft::driver
