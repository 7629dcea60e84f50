// weft-bw --calibrate: what communication costs on this machine, measured in seconds and kept for
// the planner of collectives.
#ifndef WEFT_TOOLS_BW_CALIBRATE_H_
#define WEFT_TOOLS_BW_CALIBRATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "collectives/planner/cost.h"
#include "tools/bw/measure.h"
#include "tools/job/job.h"

namespace weft::bw {

// Measures the transports that the setting `transport` has ranks use (auto: shm, where all ranks
// share a host, and tcp), between the first and the last rank and between all; and, on rank 0, the
// cores. What is not measured stays as it was calibrated before. The same on all ranks.
absl::StatusOr<collectives::planner::Calibration> Calibrate(job::Joined& job, Control& control);

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_CALIBRATE_H_
