#include "tools/fault/inject.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "tools/observe/job_view.h"

namespace weft::fault {
namespace {

using observe::JobWatch;
using observe::RankView;

// Looks often enough to meet a phase of some milliseconds.
constexpr absl::Duration kLook = absl::Milliseconds(1);
constexpr absl::Duration kDuty = absl::Milliseconds(20);

bool IsTime(const InjectOptions& options, const RankView& rank) {
  return rank.process.step >= options.at_step &&
         (options.phase.empty() || rank.process.phase == options.phase);
}

absl::StatusOr<RecordProcess> AwaitMoment(const InjectOptions& options) {
  JobWatch watch(options.folder, options.job);
  const SystemClock clock;
  const absl::Time until = clock.Now() + options.patience;
  while (clock.Now() < until) {
    watch.Update(/*live=*/true, SystemClock::Nanoseconds());
    const auto rank = watch.view().ranks.find(options.rank);
    if (rank != watch.view().ranks.end()) {
      if (rank->second.state.gone()) {
        return absl::UnavailableError(absl::StrCat("rank ", options.rank, " (pid ",
                                                   rank->second.process.pid,
                                                   ") ended before its fault was due"));
      }
      if (IsTime(options, rank->second)) return rank->second.process;
    }
    absl::SleepFor(kLook);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", options.rank, " did not reach step ", options.at_step,
                   options.phase.empty() ? "" : absl::StrCat(" and phase ", options.phase),
                   " within ", absl::FormatDuration(options.patience)));
}

// The process that the ring is of, not a later one of its number.
absl::Status Signal(const RecordProcess& process, int number) {
  if (ProcessStart(process.pid) != process.process_start) {
    return absl::UnavailableError(absl::StrCat("pid ", process.pid, " has ended"));
  }
  if (kill(static_cast<pid_t>(process.pid), number) != 0) {
    return ErrnoStatus(errno, absl::StrCat("signal ", number, " to pid ", process.pid));
  }
  return absl::OkStatus();
}

// Stops the process for so long. A signal that ends this program, as Ctrl-C does, ends the stop
// first: a process that stays stopped would be a fault that nobody has asked for.
absl::Status StopFor(const RecordProcess& process, absl::Duration time) {
  sigset_t ends, before;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  sigprocmask(SIG_BLOCK, &ends, &before);
  const absl::Status stopped = Signal(process, SIGSTOP);
  const timespec wait = absl::ToTimespec(stopped.ok() ? time : absl::ZeroDuration());
  const int ended_by = sigtimedwait(&ends, nullptr, &wait);
  const absl::Status goes_on = Signal(process, SIGCONT);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (ended_by > 0) raise(ended_by);
  return stopped.ok() ? goes_on : stopped;
}

absl::Status Slow(const InjectOptions& options, const RecordProcess& process) {
  const absl::Duration stopped = kDuty * (options.severity - 1) / options.severity;
  const SystemClock clock;
  const absl::Time until = clock.Now() + options.lasting;
  absl::Status status;
  while (status.ok() && clock.Now() < until) {
    status = StopFor(process, stopped);
    absl::SleepFor(kDuty - stopped);
  }
  return status;
}

}  // namespace

absl::Status Inject(const InjectOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const RecordProcess process, AwaitMoment(options));
  std::printf("{\"onset_ns\":%lld,\"fault\":\"%s\",\"rank\":%d,\"step\":%lld,\"pid\":%lld}\n",
              static_cast<long long>(SystemClock::Nanoseconds()), options.fault.c_str(),
              options.rank, static_cast<long long>(process.step),
              static_cast<long long>(process.pid));
  std::fflush(stdout);
  if (options.fault == "kill") return Signal(process, SIGKILL);
  if (options.fault == "stop") return Signal(process, SIGSTOP);
  if (options.fault == "slow") return Slow(options, process);
  return StopFor(process, options.lasting);  // pause
}

}  // namespace weft::fault
