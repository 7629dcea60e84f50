// Faults from outside, for any program that writes records: waits until a rank is at a step and in
// a phase, and then does something to its process.
#ifndef WEFT_TOOLS_FAULT_INJECT_H_
#define WEFT_TOOLS_FAULT_INJECT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace weft::fault {

struct InjectOptions {
  std::string folder, job;  // as in observe::JobWatch
  int rank = 0;
  std::string fault = "stop";  // kill, stop, pause, slow
  int64_t at_step = 0;
  std::string phase;    // empty: any
  double severity = 2;  // of slow: the process takes so many times as long
  // How long a pause or slowness lasts; then it goes on as before.
  absl::Duration lasting = absl::Seconds(5);
  absl::Duration patience = absl::Minutes(5);  // for the moment to come
};

// Prints one line of JSON at the onset. A process that was stopped for a while runs again in any
// case when this returns, but for "stop" and "kill", or when SIGINT, SIGTERM or SIGHUP ends this
// program.
absl::Status Inject(const InjectOptions& options);

}  // namespace weft::fault

#endif  // WEFT_TOOLS_FAULT_INJECT_H_
