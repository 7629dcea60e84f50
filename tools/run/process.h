// Starting a rank so that neither it nor anything that it has started can outlive the launcher.
//
// Between the launcher and each rank stands a keeper, a process that only waits. It adopts whatever
// its rank's descendants leave behind (PR_SET_CHILD_SUBREAPER), in sessions of their own, too. Who
// dies first:
//
//   the rank      the keeper ends. The launcher, which is a subreaper as well, adopts the rank,
//                 still to be waited for, and what the rank has left behind.
//   the launcher  the keeper kills its descendants until there are none.
//   the keeper    the kernel kills the rank (PR_SET_PDEATHSIG), and the launcher adopts both.
//
// A rank leads a process group of its own, which gets the signals meant for it.
#ifndef WEFT_TOOLS_RUN_PROCESS_H_
#define WEFT_TOOLS_RUN_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "topology/host/affinity.h"

namespace weft::run {

struct ProcessOptions {
  std::vector<std::string> command;      // found by PATH when it has no slash
  std::vector<std::string> environment;  // "NAME=value", all of it
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  CpuSet cpus;             // empty: not bound
  int64_t open_files = 0;  // soft limit of descriptors; 0: this process's
};

struct StartedProcess {
  pid_t pid = -1;
  pid_t keeper = -1;
};
// From the thread that is to end last, of a process that is a subreaper: its wait() for `pid` gives
// what it would give for a child. When the program cannot be started: errno's status, of which
// StatusOfFailedStart() is for exit statuses.
absl::StatusOr<StartedProcess> StartProcess(const ProcessOptions& options);

// The exit status that stands for a program that could not be started, as a shell has it: 127 where
// it is not there, 126 where it may not or cannot be run; 1 where there was no process, memory or
// descriptor for it.
int StatusOfFailedStart(const absl::Status& why);

// A pipe: read end (non-blocking), write end; both are closed by exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};
absl::StatusOr<Pipe> MakePipe();

// A pseudo-terminal that changes nothing in what is written to it, as wide as `like`.
struct PseudoTerminal {
  FileDescriptor master;  // non-blocking
  FileDescriptor slave;
};
absl::StatusOr<PseudoTerminal> MakePseudoTerminal(int like);
void CopyWindowSize(int from, int to);

// Children of this process, adopted ones included.
std::vector<pid_t> Children();

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_PROCESS_H_
