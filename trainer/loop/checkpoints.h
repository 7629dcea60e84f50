// A run's checkpoints: the sharded state to files and back (trainer/checkpoint has the format).
//
// Buffers are named "parameters.NAME" and, for each state that the optimizer has of a parameter,
// "PREFIX.STATE.NAME" ("adam.mean.NAME"), all fp32: no trace of buckets or ranks, so that any
// layout reads them. All ranks call these functions together and get the same outcome.
#ifndef WEFT_TRAINER_LOOP_CHECKPOINTS_H_
#define WEFT_TRAINER_LOOP_CHECKPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

struct RunPosition {
  int64_t step = 0;  // steps done
  int64_t samples = 0;
  std::string loss_scale;  // LossScale::ToText; empty: of a checkpoint that has none
  // NameOf(KernelLibrary); empty: of a checkpoint that has none
  std::string gemm, attention;
};

// The memory of all that a step changes on this rank: master values and the optimizer's state.
std::vector<absl::Span<std::byte>> StateOf(const ParameterSets& parameters);

class RunCheckpoints {
 public:
  // `config` and `group` outlive this object.
  RunCheckpoints(std::string folder, const TrainConfig& config, Group& group);

  // AlreadyExists when there is any checkpoint, whole or not.
  absl::Status ExpectNone();

  // Fills the owned slices from the last checkpoint; nothing when there is none at all, whole or
  // not. A damaged one is passed over with a warning. FailedPrecondition, with every path and
  // reason, when none is whole, or when one that is newer than the last whole one cannot be read
  // now: to go on from the older one would give steps away that are perhaps still there. Also when
  // the checkpoint is of a model, data, seed or optimizer that the config does not have.
  absl::StatusOr<std::optional<RunPosition>> Load(ParameterSets& parameters);

  // For a run that goes on from memory: learns which checkpoints there are, and removes what was
  // never finished.
  absl::Status Tidy() { return FindLast().status(); }

  // Writes a checkpoint and deletes old ones. Returns an error when the group fails; `failure` is
  // why there is no new checkpoint: then nothing of it is left and older ones are whole.
  absl::Status Save(const RunPosition& position, const ParameterSets& parameters,
                    absl::Status& failure);

 private:
  absl::StatusOr<std::string> FindLast();
  absl::StatusOr<RunPosition> LoadHere(const std::string& path, ParameterSets& parameters);

  const std::string folder_;
  const TrainConfig& config_;
  Group& group_;
  Retention retention_;  // used by rank 0
};

// The whole model of a checkpoint, tensors in the order of GptParameters(config), in the type that
// the model computes in.
absl::StatusOr<std::vector<at::Tensor>> LoadModel(const std::string& path,
                                                  const ModelConfig& config, Precision precision);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_CHECKPOINTS_H_
