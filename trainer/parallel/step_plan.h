// How a step is cut: which samples a rank takes, in how many micro-batches, in which order.
#ifndef WEFT_TRAINER_PARALLEL_STEP_PLAN_H_
#define WEFT_TRAINER_PARALLEL_STEP_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/model/packed_weights.h"
#include "trainer/model/parameters.h"

namespace weft::train {

struct StepPlan {
  ParallelSizes sizes;
  topology::PipelineSpec pipeline;
  int64_t local_rows = 0;  // samples of a step that a data replica takes
  int64_t micro_rows = 0;  // samples of a micro-batch
  // Half layers of each chunk of the model (BlockHalf): a serial block may be cut behind attention.
  std::vector<int64_t> chunk_halves;

  // InvalidArgument, with the arithmetic, where the batch does not divide, is more than the loader
  // of a rank takes, or the schedule cannot be.
  static absl::StatusOr<StepPlan> Make(const TrainConfig& config, const ParallelSizes& sizes);
  // Whether a backward pass puts off all gradients but those of the tables of tokens: gradients are
  // reduced with every micro-batch, and the schedule computes those of matrices in passes of their
  // own.
  bool PutsAllOff(const TrainConfig& config) const;
  // Whether gradients cross the ranks in fp32, whatever the compute type.
  bool ReducesInFp32(const TrainConfig& config) const;
  // Which weights a step keeps packed (train.pack_weights): those that several products of its read
  // in the same way.
  PackedPart PartPacked(const TrainConfig& config) const;
  // Forward FLOPs of a token in each chunk of the model, over those of one layer: what stages are
  // balanced by, and timed with.
  std::vector<double> ChunkCosts(const ModelConfig& model) const;
  // Durations of each chunk's passes: backward passes take twice as long as forward passes, the
  // halves of a split one as long.
  std::vector<topology::PassDurations> Durations(const ModelConfig& model) const;
  // The passes of every stage, the same on every rank; zb-v's lists weigh chunks by their work.
  absl::StatusOr<topology::PipelineSchedule> MakeSchedule(const ModelConfig& model) const;
  // What a stage holds of the model.
  ModelPart PartOf(int stage, int tensor_rank, int expert_rank) const;
  // How many of a sample's `length` tokens a rank holds.
  int64_t TokensHeld(int64_t length) const { return length / sizes.context; }
};

// The number of micro-batches where the config leaves it open and `ranks` ranks of a pipeline, all
// of them, share `cores` cores, fewer than they are: that which makes the step shortest by the
// bound on list schedules (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl.
// Math. 17, 1969): all work over the cores, and the longest path once more but for the part that
// one core takes. A stage that waits has a core to give, so that the bubble costs little, while
// each micro-batch costs what it adds to gradients and the turns of the kernel's scheduler that its
// exchanges along the tensor axis take. As many as stages at least, where the samples allow it. 0:
// without a pipeline, or where no number fits, which StepPlan::Make then explains.
int64_t MicroBatchesOn(const TrainConfig& config, const ParallelSizes& sizes, int ranks, int cores);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_STEP_PLAN_H_
