// What the kernel says of a process: /proc/PID/stat, and schedstat of each of its threads.
#ifndef WEFT_TOOLS_OBSERVE_PROCESS_STATE_H_
#define WEFT_TOOLS_OBSERVE_PROCESS_STATE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft::observe {

struct ProcessState {
  bool known = false;  // false: it is on another host, or there was nobody to ask
  bool exists = false;
  char state = '?';  // R, S, D, T (stopped), t (traced), Z
  double cpu_seconds = 0;
  // All its threads together: ready to run, but waiting for a core.
  double run_queue_seconds = 0;
  int64_t resident_bytes = 0;
  // Page faults: minor ones found their page in memory, major ones waited for a disk.
  int64_t minor_faults = 0, major_faults = 0;
  int64_t threads = 0;

  bool stopped() const { return exists && (state == 'T' || state == 't'); }
  bool gone() const { return known && (!exists || state == 'Z'); }
};

// `start`: as in RecordProcess; a later process of the same number is not the one that is asked
// for.
ProcessState ReadProcessState(int64_t pid, uint64_t start);

// Parses the text of /proc/PID/stat, for tests. False: it is none.
bool ParseStat(absl::string_view line, uint64_t* start, ProcessState* state);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_PROCESS_STATE_H_
