// A run's state in a checkpoint, whatever folder that is in: its buffers, and the states of its
// manifest.
//
// Buffers are named "parameters.NAME" and, for each state that the optimizer has of a parameter,
// "PREFIX.STATE.NAME" ("adam.mean.NAME"), all fp32: no trace of buckets or ranks, so that any
// layout reads them.
#ifndef WEFT_TRAINER_LOOP_SAVED_STATE_H_
#define WEFT_TRAINER_LOOP_SAVED_STATE_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/checkpoint/local_tier.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/loop/shared_read.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

struct RunPosition {
  int64_t step = 0;  // steps done
  int64_t samples = 0;
  std::string loss_scale;  // LossScale::ToText; empty: of a checkpoint that has none
  // GemmLibraries::ToText; empty: of a checkpoint that has none
  std::string gemm, attention;
  std::string core_choice;  // CoreChoiceToWord; empty: from memory, or of a checkpoint without it
};

// The memory of all that a step changes on this rank, where it is, as bytes: master values and the
// optimizer's state.
std::vector<at::Tensor> StateOf(const ParameterSets& parameters);
at::Device DeviceOf(const ParameterSets& parameters);  // where that is

// What this rank writes of its state: the memory of `parameters` where it is fp32 in host memory,
// else copies, which are added to `values`. Both outlive the parts.
std::vector<BufferPart> PartsOf(const ParameterSets& parameters,
                                std::deque<std::vector<float>>& values);

// What the manifest says of a run at `position`. `optimizer`: its name.
CheckpointState ManifestStateOf(const RunPosition& position, const TrainConfig& config,
                                absl::string_view optimizer);

// Fills the owned slices of `parameters` from the checkpoint at `path`, which all ranks of `group`
// name together. `local`: what the hosts have of it, where it is on their disks; else step -1.
// FailedPrecondition where the checkpoint is of a model, data, seed or optimizer that `config` does
// not have. `damage`: what is wrong with the files, the same on all ranks; OK with any other error.
// After an error the parameters have values of no use.
struct LoadedState {
  RunPosition position;
  ReadTotals read;
};
absl::StatusOr<LoadedState> LoadState(const std::string& path, const LocalCheckpoint& local,
                                      const TrainConfig& config, Group& group,
                                      ParameterSets& parameters, absl::Status& damage);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SAVED_STATE_H_
