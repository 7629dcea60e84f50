// Whether the ranks of a job have place on their hosts and GPUs, by memory_estimate.h.
#ifndef WEFT_TRAINER_FORECAST_MEMORY_CHECK_H_
#define WEFT_TRAINER_FORECAST_MEMORY_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/device/device.h"
#include "trainer/groups/group.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// Ranks that share a place, and what they need of it together.
struct MemoryNeed {
  int ranks = 0;
  Bytes tensors;  // and copies of the state
  Bytes program;  // of their processes, beside those
  Bytes total() const { return tensors + program; }
};

// What this process takes beside the tensors of a run: its anonymous memory at the first call,
// which comes before the first run. A process that trains again after a failure still has the pages
// of the tensors that it had.
Bytes ProgramMemory();
// train.host_memory, else this machine's; 0: not known.
Bytes HostMemory(const TrainConfig& config);

// Whether `need` has place in `memory` of `host` (a name for people), where 0 is room for all: OK,
// or InvalidArgument, as agreed, with the arithmetic.
absl::Status CheckFits(const TrainConfig& config, const std::string& host, const MemoryNeed& need,
                       Bytes memory);

// The next choice that saves memory, for a run that does not fit: first without what FitToCores
// (parallel/core_share.h) took more memory for, then without packed weights. `given`: the config
// before FitToCores. False: no such choice is left.
bool TakeLessMemory(TrainConfig& config, const TrainConfig& given);

// Whether the ranks of a job that has been started have place in every host's memory. All
// ranks call it together and get the same outcome, InvalidArgument with the arithmetic.
absl::Status CheckHostMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                             int tensor_rank, bool keeps_snapshots, Group& world);

// The same of GPUs, which ranks may share: whether the tensors of a GPU's ranks have place in the
// memory that is free on it. `gpu`: its place in this rank's host (AddressOf); `memory`: what it
// has.
absl::Status CheckDeviceMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                               int tensor_rank, const std::string& gpu, const DeviceMemory& memory,
                               Group& world);

}  // namespace weft::train

#endif  // WEFT_TRAINER_FORECAST_MEMORY_CHECK_H_
