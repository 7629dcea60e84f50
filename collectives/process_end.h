// How a process of a job ended: what its launcher saw, and what the process itself said of it. The
// launcher tells it to the process that takes the place, which thereby knows whether starting anew
// helps (recovery.h).
//
//   "was killed by signal 9 (SIGKILL)"
//   "exited with status 1: weft-train: the loss is nan"
//
// Pure functions; thread-safe.
#ifndef WEFT_COLLECTIVES_PROCESS_END_H_
#define WEFT_COLLECTIVES_PROCESS_END_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/failure.h"

namespace weft::collectives {

struct ProcessEnd {
  int signal = 0;     // that killed it; 0: it exited
  int status = 0;     // with which it exited
  std::string cause;  // its last line; empty: it wrote none, or was killed
};

std::string ToText(const ProcessEnd& end);
// The inverse; of another text, all of it is the cause, and the status -1.
ProcessEnd ParseProcessEnd(absl::string_view text);
// A program's last line as a cause: without what is not printable, of bounded length.
std::string CauseFrom(absl::string_view line);

// What the last line says of the failure's scope (base/failure.h); kUnknown where it says nothing.
Failure FailureOfEnd(const ProcessEnd& end);
// Whether a process's own instructions raise this signal, or abort() does, as SIGSEGV; not one that
// somebody sends, as SIGKILL.
bool IsOwnSignal(int signal);

// Whether two processes of `rank` ended by their own fault, and for the same cause. An own fault is
// an error that the program returned, or a signal that its own instructions raise, as a
// segmentation fault; not a signal that somebody sends, as SIGKILL, and not an error that says that
// another process, a connection, a path or a device failed (base/failure.h). Causes are the same
// where they differ in numbers alone: a time, an address, a process id.
bool IsSameFault(const ProcessEnd& first, const ProcessEnd& second, int rank);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PROCESS_END_H_
