// How many operations a store does in a second, and how long one takes: so many connections, on
// each so many requests under way at any time, from one thread of this process; the server in
// another thread or process.
#ifndef WEFT_TOOLS_INIT_OPS_H_
#define WEFT_TOOLS_INIT_OPS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/init/options.h"

namespace weft::init {

struct OpsResult {
  std::string op;  // "set", "get", "add"; 64 B values, a key for each connection
  int connections = 0;
  int depth = 0;
  int64_t operations = 0;
  double per_second = 0;
  double p50 = 0, p99 = 0;  // seconds, from the call to its answer
  double messages = 0;      // an operation, both ways
  double server_cpu = 0;    // seconds an operation; negative: nobody can say
  // The server's calls of the kernel an operation; negative: nobody can say.
  double reads_and_writes = -1;
  double waits = -1;
};

struct OpsMeasurement {
  std::vector<OpsResult> rows;
  std::string note;
};

// `say` is told what is measured next.
absl::StatusOr<OpsMeasurement> MeasureOps(const Options& options,
                                          const std::function<void(const std::string&)>& say);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_OPS_H_
