// Runs one case on all ranks at once and says how long it took and whether it was right.
//
// A repeat is: barrier, barrier, k operations, time / k; over ranks as asked. What the ranks say to
// each other about it travels through the rendezvous store and not through what is measured.
#ifndef WEFT_TOOLS_BW_MEASURE_H_
#define WEFT_TOOLS_BW_MEASURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/store/store.h"
#include "tools/bw/operation.h"
#include "tools/bw/options.h"

namespace weft::bw {

// Numbers of all ranks, through the store.
class Control {
 public:
  Control(collectives::Store& store, int rank, int ranks)
      : store_(store), rank_(rank), ranks_(ranks) {}
  // By rank; all ranks give as many. Every rank calls it as often as the others.
  absl::StatusOr<std::vector<std::vector<double>>> Exchange(const std::vector<double>& mine);
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

 private:
  collectives::Store& store_;
  const int rank_, ranks_;
  int64_t turn_ = 0;
};

struct Result {
  bool measured = false;           // false: there is no such form
  int iterations = 0;              // of each repeat
  std::vector<double> repeats_us;  // of one operation, ascending
  std::string algorithm, why;      // of collectives
  int64_t wrong = -1;              // over all ranks; -1: not checked
  // Times of single operations, the largest over ranks; with Options::iteration_stats.
  double i_min_us = 0, i_p50_us = 0, i_p99_us = 0, i_max_us = 0;

  double time_us() const { return repeats_us[repeats_us.size() / 2]; }
};

// A group that the operation runs in, with memory of its own.
struct GroupRun {
  collectives::Communicator* communicator;
  Buffers* buffers;
};

// `what`: as a group of all ranks would run it; the groups of a way run it at the same time, with
// as many bytes. A result for each way; a repeat of all ways is timed before the next one of any.
// `world`: all ranks, which start together.
absl::StatusOr<std::vector<Result>> Measure(const Case& what, const Options& options,
                                            absl::Span<const std::vector<GroupRun>> ways,
                                            collectives::Communicator& world, Control& control);

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_MEASURE_H_
