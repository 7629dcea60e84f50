// One run: a store in this process, ranks in others, and what it cost.
#ifndef WEFT_TOOLS_INIT_MEASURE_H_
#define WEFT_TOOLS_INIT_MEASURE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/init/options.h"
#include "tools/init/shared.h"

namespace weft::init {

struct Measurement {
  int ranks = 0;
  int hosts = 0;
  struct PhaseTimes {
    double seconds = 0;  // from the last rank's end of the phase before to the last rank's end
    double p50 = 0, p99 = 0, max = 0;  // of a rank, from its own end of the phase before
    int slowest = 0;
  };
  std::array<PhaseTimes, kPhases> phases;
  double total_seconds = 0;       // from the first rank's begin to the last rank's end
  int64_t messages = 0;           // on the wire of the clients, both ways
  int64_t root_messages = 0;      // of these, to and from the root
  double server_cpu_seconds = 0;  // negative: nobody can say
  int64_t exchange_bytes = 0;     // of records, that a rank or host gets, on average
  int64_t root_bytes = -1;        // that the root sent in all; negative: nobody can say
  int64_t connections = 0;        // between ranks, opened by the sample
  std::string note;               // about the server; may be empty
  double replace_seconds = 0;     // from the first new rank's begin until all that it concerns know
  int64_t watches = 0;            // groups of survivors that heard of it
  int workers = 0;
};

// `progress` is called a few times a second with the number of ranks that are through.
absl::StatusOr<Measurement> Measure(const Options& options,
                                    const std::function<void(int64_t)>& progress);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_MEASURE_H_
