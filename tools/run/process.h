// Starting a rank so that it cannot outlive its launcher, and ending what it started.
//
// A rank leads a process group of its own, which gets the signals meant for it. It dies with the
// thread that started it (PR_SET_PDEATHSIG); a Guardian, a process that does nothing but wait for
// the launcher's death, then also ends what the ranks had started.
#ifndef WEFT_TOOLS_RUN_PROCESS_H_
#define WEFT_TOOLS_RUN_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/rendezvous/file_descriptor.h"
#include "topology/host/affinity.h"

namespace weft::run {

using collectives::FileDescriptor;

struct ProcessOptions {
  std::vector<std::string> command;      // found by PATH when it has no slash
  std::vector<std::string> environment;  // "NAME=value", all of it
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  CpuSet cpus;             // empty: not bound
  int64_t open_files = 0;  // soft limit of descriptors; 0: this process's
};

// From the thread that is to end last. When the program cannot be started: kNotFound, or
// kPermissionDenied, or errno's status.
absl::StatusOr<pid_t> StartProcess(const ProcessOptions& options);

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

// Kills the process groups that it was told of, once the process that made it is gone. Make it
// before there are other threads.
class Guardian {
 public:
  static absl::StatusOr<Guardian> Start();
  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = default;
  ~Guardian();  // ends it, with nothing killed

  void Watch(pid_t group) { Tell(group); }
  void Release(pid_t group) { Tell(-group); }
  pid_t pid() const { return pid_; }

 private:
  Guardian(pid_t pid, FileDescriptor pipe) : pid_(pid), pipe_(std::move(pipe)) {}
  void Tell(pid_t message);

  pid_t pid_ = -1;
  FileDescriptor pipe_;
};

// Children of this process, adopted ones included.
std::vector<pid_t> Children();

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_PROCESS_H_
