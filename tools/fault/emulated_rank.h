// A rank of a training job whose compute is a timer: data, forward, backward with gradients that
// are reduced under it, optimizer, a norm, now and then a checkpoint; over real communicators. One
// rank has a fault, drawn by a seed or named.
//
// Compute is a wait and no spinning, so that many ranks share two cores without disturbing each
// other's times; what is measured with it is how faults are recognised, not how fast a device is.
#ifndef WEFT_TOOLS_FAULT_EMULATED_RANK_H_
#define WEFT_TOOLS_FAULT_EMULATED_RANK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/settings.h"

namespace weft::fault {

struct FaultRow {
  const char* name;
  const char* sentence;
  const char* expected;   // what weft-diagnose should call it; "" for benign ones: nothing
  const char* component;  // likewise
  // Which row of a list of 46 faults of training jobs (docs/observability.md).
  int row = 0;
};
const std::vector<FaultRow>& Faults();
const FaultRow* FindFault(absl::string_view name);

struct EmulationOptions {
  int steps = 60;
  absl::Duration step_time = absl::Milliseconds(60);  // of a healthy step's compute
  std::string fault = "none";
  int rank = -1;        // who has it; -1: drawn by the seed
  int at_step = 10;     // from this step on
  double severity = 2;  // of slowness: this many times as long
  uint64_t seed = 1;
  bool timing = false;  // rank 0 prints {"step_median_ns": ...} at the end
};

// Prints one line of JSON when its fault begins: {"onset_ns": ..., "fault": ..., "rank": ...}.
absl::Status RunEmulatedRank(const Settings& settings, const EmulationOptions& options);

}  // namespace weft::fault

#endif  // WEFT_TOOLS_FAULT_EMULATED_RANK_H_
