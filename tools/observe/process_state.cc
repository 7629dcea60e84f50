#include "tools/observe/process_state.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"

namespace weft::observe {

bool ParseStat(absl::string_view line, uint64_t* start, ProcessState* state) {
  const size_t close = line.rfind(')');  // a name may hold anything
  if (close == absl::string_view::npos || close + 2 >= line.size()) return false;
  const std::vector<std::string> fields = absl::StrSplit(line.substr(close + 2), ' ');
  uint64_t user = 0, system = 0;
  int64_t pages = 0;
  if (fields.size() < 22 || fields[0].size() != 1 || !absl::SimpleAtoi(fields[11], &user) ||
      !absl::SimpleAtoi(fields[12], &system) ||
      !absl::SimpleAtoi(fields[7], &state->minor_faults) ||
      !absl::SimpleAtoi(fields[9], &state->major_faults) ||
      !absl::SimpleAtoi(fields[17], &state->threads) || !absl::SimpleAtoi(fields[19], start) ||
      !absl::SimpleAtoi(fields[21], &pages)) {
    return false;
  }
  state->state = fields[0][0];
  state->cpu_seconds =
      static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  state->resident_bytes = pages * sysconf(_SC_PAGESIZE);
  return true;
}

namespace {

// A thread that has ended takes its share along, so that the sum can fall.
double RunQueueSeconds(const std::string& folder) {
  std::error_code error;
  double seconds = 0;
  for (std::filesystem::directory_iterator thread(folder + "task", error), end;
       !error && thread != end; thread.increment(error)) {
    const std::vector<std::string> schedule =
        absl::StrSplit(FirstLine(thread->path().string() + "/schedstat"), ' ', absl::SkipEmpty());
    int64_t waited_ns = 0;
    if (schedule.size() > 1 && absl::SimpleAtoi(schedule[1], &waited_ns)) {
      seconds += static_cast<double>(waited_ns) * 1e-9;
    }
  }
  return seconds;
}

}  // namespace

ProcessState ReadProcessState(int64_t pid, uint64_t start) {
  ProcessState state;
  state.known = true;
  uint64_t found = 0;
  const std::string folder = absl::StrCat("/proc/", pid, "/");
  state.exists = ParseStat(FirstLine(folder + "stat"), &found, &state) && found == start;
  if (!state.exists) return state;
  state.run_queue_seconds = RunQueueSeconds(folder);
  return state;
}

}  // namespace weft::observe
