// A run's checkpoints: the sharded state to files and back (trainer/checkpoint has the format).
//
// Buffers are named "parameters.NAME", "adam.mean.NAME" and "adam.variance.NAME", one of each for
// every parameter, all fp32: no trace of buckets or ranks, so that any layout reads them. All
// ranks call these functions together and get the same outcome.
#ifndef WEFT_TRAINER_LOOP_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_CHECKPOINTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/parallel/group.h"
#include "trainer/parallel/sharded.h"

namespace weft {

struct RunPosition {
  int64_t step = 0;  // steps done
  int64_t samples = 0;
};

// Returns the checkpoint's path. On failure nothing of it is left and older ones are whole.
absl::StatusOr<std::string> SaveCheckpoint(const std::string& folder, const RunPosition& position,
                                           const TrainConfig& config,
                                           const ShardedParameters& parameters, Group& group);

// Fills the owned slices from the last whole checkpoint. NotFound when there is none;
// FailedPrecondition when it is of a model, data or seed that the config does not have.
absl::StatusOr<RunPosition> LoadCheckpoint(const std::string& folder, const TrainConfig& config,
                                           ShardedParameters& parameters, Group& group);

}  // namespace weft

#endif  // WEFT_TRAINER_LOOP_CHECKPOINTS_H_
