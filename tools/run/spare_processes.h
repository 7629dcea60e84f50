// Processes of the program that have loaded all that it needs and wait for a rank's place
// (collectives/rendezvous/warm_process.h), so that a rank that is started anew need not. A used one
// is replaced some seconds later.
//
// What a spare writes before it is used is shown with the prefix "[spare] ", where the output of
// all ranks is shown, and appended to spares.log in the folder of logs. What it writes afterwards
// is its rank's output.
//
// One thread, the one that starts ranks (host_ranks.h). It also reads the spares' output, waits for
// children, and tells this object of spares that ended. Nothing here waits.
#ifndef WEFT_TOOLS_RUN_SPARE_PROCESSES_H_
#define WEFT_TOOLS_RUN_SPARE_PROCESSES_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "tools/run/launcher.h"
#include "tools/run/output.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"

namespace weft::run {

class SpareProcesses {
 public:
  // Reads command, spares, rank_open_files, output, prefix and log_dir of the options. `options`
  // and `terminal` outlive this object.
  SpareProcesses(const RunOptions& options, Terminal& terminal)
      : options_(options), terminal_(terminal) {}

  int count() const { return static_cast<int>(spares_.size()); }

  // Makes one the process of `rank`, with what differs between the variables that it was started
  // with and the rank's: sets its pid, keeper and streams. False: there is none.
  bool Use(RankProcess& rank, const Variables& job_variables, absl::Time now);

  // Refill() starts the missing spares at once, or when their start takes no time from ranks that
  // begin now.
  void RefillNow(absl::Time now) { refill_at_ = now; }
  void RefillLater(absl::Time now);
  // When Refill() has something to do; infinite future: never.
  absl::Time due() const { return refill_at_; }
  // Where it is time: starts those that are missing, with these variables of the job. Not OK: why
  // one could not be started; none is tried again before the next RefillNow() or RefillLater().
  absl::Status Refill(const Variables& job_variables, absl::Time now);

  // Kills all. There are none until the next RefillNow() or RefillLater().
  void Kill();

  // The spares, whose streams the caller reads. The pointers are valid until the next call of a
  // function that is not const.
  std::vector<RankProcess*> Processes();
  // The spare with this process number, valid as long as Processes(); null: there is none.
  RankProcess* Find(pid_t pid);
  // Whether the process is a spare or the keeper of one (process.h).
  bool Owns(pid_t pid) const;
  // The spare with this number has ended by itself. What people should know; empty: nothing.
  std::string OnEnded(pid_t pid, absl::Time now);

 private:
  struct Spare {
    RankProcess process;   // without a rank; its pid, keeper, streams and output
    Variables variables;   // of its job, as it was started with
    FileDescriptor place;  // where its place is written to
  };

  std::vector<Spare>::iterator At(pid_t pid);  // end(): there is none of this number
  absl::Status Start(const Variables& job_variables);
  absl::StatusOr<std::unique_ptr<RankOutput>> MakeOutput() const;

  const RunOptions& options_;
  Terminal& terminal_;
  std::vector<Spare> spares_;
  absl::Time refill_at_ = absl::InfiniteFuture();
  int lost_ = 0;  // that ended by themselves, one after the other
};

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_SPARE_PROCESSES_H_
