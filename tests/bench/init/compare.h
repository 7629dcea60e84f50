// Groups as torch makes them (group_scheme.h), and from one exchange,
// for the same layout against the same kind of server. Where the first takes too many messages, it
// is measured for smaller data-parallel axes, and predicted: time a group = a + b ranks, which is
// what a barrier over a store costs, times the groups.
#ifndef WEFT_TESTS_BENCH_INIT_COMPARE_H_
#define WEFT_TESTS_BENCH_INIT_COMPARE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/init/measure.h"
#include "tools/init/options.h"

namespace weft::init {

struct Comparison {
  struct Row {
    int ranks = 0;
    int64_t groups = 0;
    int64_t messages = 0;  // of the groups; without connecting and registering
    double seconds = 0;    // likewise
    double server_cpu_seconds = 0;
    bool predicted = false;
  };
  std::vector<Row> one_by_one;  // by ranks; the last is of all of them
  double error = 0;             // of what all but the last measured row predict for that one
  Measurement exchange;         // ours, of all ranks
};

using MeasureFunction = std::function<absl::StatusOr<Measurement>(const Options&)>;
// What takes up to `most_messages` is measured, the rest predicted. `measure` shows progress.
absl::StatusOr<Comparison> Compare(const Options& options, int64_t most_messages,
                                   const MeasureFunction& measure);

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_COMPARE_H_
