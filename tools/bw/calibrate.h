// weft-bw --calibrate: what communication costs on this machine, measured in seconds and kept for
// the planner of collectives.
#ifndef WEFT_TOOLS_BW_CALIBRATE_H_
#define WEFT_TOOLS_BW_CALIBRATE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/planner/cost.h"
#include "tools/bw/measure.h"
#include "tools/job/job.h"

namespace weft::bw {

struct Calibrated {
  bool measured = false;  // false: the machine was busy before, and so nothing was
  collectives::planner::Calibration costs;  // the least of several passes; rank 0's
  // By name, where passes differ: the median of their values over the least; rank 0's.
  std::vector<std::pair<std::string, double>> spread;
  // What other programs took of this machine's cores before anything was measured, and the load
  // average of the last minute; rank 0's.
  double busy_cores = 0, load = 0;
  int cores = 1;

  // Makes costs and spread of one or more passes, whose `source` is the same.
  void TakeLeast(absl::Span<const collectives::planner::Calibration> passes);
  // Why the numbers are not those of a machine that does nothing else: one line; empty: they are.
  std::string Trouble() const;
};

// Measures the transports that the setting `transport` has ranks use (auto: shm, where all ranks
// share a host, and tcp), between the first and the last rank and between all; and, on rank 0, the
// cores; several times. What is not measured is as in `before`.
// `force`: also beside other programs.
absl::StatusOr<Calibrated> Calibrate(job::Joined& job, Control& control,
                                     const collectives::planner::Calibration& before, bool force);

// How many of `cores` were busy on average between two readings of /proc/stat; 0: these do not
// tell.
double BusyCores(const std::string& before, const std::string& after, int cores);

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_CALIBRATE_H_
