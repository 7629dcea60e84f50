// One rank that weft-run has started: what is known of it, and how it is told.
#ifndef WEFT_TOOLS_RUN_RANK_PROCESS_H_
#define WEFT_TOOLS_RUN_RANK_PROCESS_H_

#include <sys/types.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "collectives/process_end.h"
#include "tools/run/output.h"

namespace weft::run {

std::string SignalName(int signal);  // "signal 9 (SIGKILL)"

struct RankProcess {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = -1;     // -1: never started
  pid_t keeper = -1;  // see process.h; ends with the rank
  bool alive = false;
  bool told_to_end = false;                        // by us: its death is no failure
  absl::Time give_up_at = absl::InfiniteFuture();  // once it was sent SIGKILL
  absl::Time started;
  absl::Time ended;
  int status = 0;  // as wait() gives it
  int64_t max_rss_bytes = 0;
  int restarts = 0;      // processes of this rank that ended before this one
  std::string last_end;  // how the last of them did, and why (collectives/process_end.h)
  std::unique_ptr<RankOutput> output;
  std::array<FileDescriptor, 2> streams;  // invalid: at their end

  bool failed() const { return !alive && status != 0; }
  bool killed() const { return WIFSIGNALED(status); }
  int exit_status() const { return killed() ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }
  std::string End() const;  // "exited with status 1"
  // The same with the last line that it wrote, for the process that takes its place.
  collectives::ProcessEnd LastEnd() const;
  std::string Outcome() const;  // "exited with status 1 after 2.3 s"
};

// {"exit_status", "first_failed" (a rank or null), "ranks": [{"rank", "pid", "exit", "signal",
// "seconds", "max_rss" (bytes), "restarts"}]}, in one line. `first_failed` is -1 for null.
std::string SummaryJson(int exit_status, int first_failed, const std::vector<RankProcess>& ranks);

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_RANK_PROCESS_H_
