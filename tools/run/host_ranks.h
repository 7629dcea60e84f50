// The ranks of a job on this host as processes: starts them, each below a keeper (process.h),
// passes on what they write, notices how they end, and leaves nothing of them behind. What to do
// about an end is its owner's business: weft-run (launcher.h) or weft-executor.
//
// With `spares`, so many processes of the program are kept beside the ranks, and a rank that is
// started anew is started in one of these (spare_processes.h).
//
// One thread, which ends last of the process's; one poll() loop, a Turn() at a time.
#ifndef WEFT_TOOLS_RUN_HOST_RANKS_H_
#define WEFT_TOOLS_RUN_HOST_RANKS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "tools/run/launcher.h"
#include "tools/run/output.h"
#include "tools/run/process.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"
#include "tools/run/spare_processes.h"
#include "topology/host/host.h"

namespace weft::run {

bool EndsJob(int signal);  // SIGINT, SIGTERM, SIGHUP

class HostRanks {
 public:
  // `program` is who speaks: "weft-run". Of the options: command, output, prefix, log_dir, bind,
  // ranks, planned, spares and rank_open_files. `options` outlives this object.
  HostRanks(std::string program, const RunOptions& options);

  // Takes the process's signals; before it has other threads. kResourceExhausted: too few
  // descriptors may be open.
  absl::Status Open();
  // Makes this host's ranks: `first` to `first` + options.ranks - 1, or those of options.planned.
  // None is alive.
  absl::Status Assign(int first, const Variables& job_variables);
  // Starts, in a spare process if there is one, the rank whose generation and last end are set.
  absl::Status Start(RankProcess& rank);

  // Before a node is this host's: keeps spare processes with these variables from now on.
  void Warm(const Variables& job_variables);

  // Runs another program beside the ranks, one at a time: what it writes is kept, not shown. One
  // that runs still is forgotten.
  absl::Status StartAside(const std::vector<std::string>& command, const Variables& variables);
  bool runs_aside() const { return aside_ != nullptr && aside_->alive; }
  void KillAside();  // as Kill()
  // Once it has ended.
  std::unique_ptr<RankProcess> TakeAside();

  std::vector<RankProcess>& ranks() { return ranks_; }
  int alive() const { return alive_; }
  int spares() const { return spares_.count(); }

  // Waits until something happens, at most until `due`, or until `wake` (-1: none) can be read.
  void Turn(absl::Time due, int wake = -1);
  // Since the last call: signals that came, of those that a launcher passes on ...
  std::vector<int> TakeSignals() { return std::exchange(signals_come_, {}); }
  // ... and ranks that ended.
  std::vector<RankProcess*> TakeEnded() { return std::exchange(ended_, {}); }

  // One that does not end of it (RunOptions::kill_patience) is given up, as if it had.
  void Kill(RankProcess& process);
  void Signal(int signal);  // to all ranks
  // Tells all ranks to end; after `grace` those left are killed. Spares are killed at once.
  void End(int signal, absl::Duration grace);

  void Say(absl::string_view text) { terminal_.Line(Stream::kError, program_ + ": ", text); }
  void SayAll(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) Say(line);
  }
  Terminal& terminal() { return terminal_; }

  // Once no rank is alive: what they left behind, and what is still in their pipes.
  void Finish();
  // As long as our reader takes, like any program in a pipe; a signal to end cuts it short.
  void FlushOutput();

 private:
  Style StyleOf(int rank, Stream stream) const;
  bool Draws(int rank) const;
  absl::Status StartProcessOf(RankProcess& rank);
  // Ranks, and what runs beside them.
  std::vector<RankProcess*> Processes();
  // The processes whose output is read: those of Processes(), and the spare processes.
  std::vector<RankProcess*> Writers();
  void ReadFrom(int fd);
  size_t ReadSome(RankProcess& rank, size_t index);
  void ReadAll(RankProcess& rank);
  void ReadSignals();
  void Reap();
  void OnEnded(RankProcess& process, int status);
  void GiveUpOverdue();
  void KillLeftBehind();
  void Clean();
  bool Draining() const;
  int Patience(absl::Time due);

  const std::string program_;
  const RunOptions& options_;
  SystemClock clock_;
  Terminal terminal_;
  FileDescriptor signals_;
  FileDescriptor input_;
  Variables variables_;
  std::optional<Host> host_;  // where ranks are bound to cores
  std::vector<RankProcess> ranks_;
  SpareProcesses spares_;
  std::unique_ptr<RankProcess> aside_;
  std::vector<int> signals_come_;
  std::vector<RankProcess*> ended_;
  std::vector<char> buffer_;
  int alive_ = 0;
  absl::Time kill_at_ = absl::InfiniteFuture();
  std::optional<absl::Time> drain_until_;  // once all ranks have ended
  bool output_given_up_ = false;           // a signal came while only our reader was waited for
};

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_HOST_RANKS_H_
