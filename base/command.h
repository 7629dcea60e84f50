// Runs another program and returns its output and status, within a bound of time.
#ifndef WEFT_BASE_COMMAND_H_
#define WEFT_BASE_COMMAND_H_

#include <sys/types.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft {

struct CommandOutput {
  int status = 0;    // exit status
  std::string text;  // of standard output and standard error, as it came; 1 MiB at most
};

// arguments[0] is looked for in PATH; standard input is empty. No fork(), so that memory that a
// device knows is not copied. Errors: kNotFound where there is no such program, kDeadlineExceeded
// when it was not through within `limit`, kResourceExhausted when it said more than 1 MiB (it and
// its children are killed), kAborted when a signal ended it, else errno's.
absl::StatusOr<CommandOutput> RunCommand(const std::vector<std::string>& arguments,
                                         absl::Duration limit);

// Runs commands, one at a time, until another thread cancels them. Thread-safe.
class CancellableCommand {
 public:
  // As RunCommand(); kCancelled once Cancel() has been called.
  absl::StatusOr<CommandOutput> Run(const std::vector<std::string>& arguments,
                                    absl::Duration limit);
  // Kills the command that runs, and its children; none starts after this. Returns once the command
  // has ended, or after a second if it is stuck in the kernel.
  void Cancel();

 private:
  absl::Status Start(const std::vector<std::string>& arguments, int out);
  bool HasEnded();
  void Kill();
  bool Reap();  // with mutex_: whether the command has ended; never waits

  std::mutex mutex_;
  bool is_cancelled_ = false;
  pid_t child_ = 0;     // that leads its group and is not reaped yet; 0: none
  int status_ = 0;      // as waitpid() gives it
  int wait_error_ = 0;  // errno of waitpid()
};

// What comes out of a pipe until its other end is closed. False when that was not within `limit`,
// or there was more than 1 MiB; `text` is what came.
bool ReadPipe(int fd, absl::Duration limit, std::string* text);

}  // namespace weft

#endif  // WEFT_BASE_COMMAND_H_
