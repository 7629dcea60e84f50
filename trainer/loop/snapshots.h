// The state after the last steps, in the memory of two processes each, for a run in which a rank
// that died is started anew (collectives/recovery.h): every rank keeps its own state, and a copy of
// the state of the rank before it, so that after the loss of one rank nothing has to be done again
// but the step that it died in (the peer's memory as a tier of checkpoints: Gemini, SOSP'23).
//
// Of the last two steps, since when a rank dies others may be a step apart. No rank begins the step
// after k before its snapshot of k is with its neighbour, so that some step is with all ranks.
//
// Two replicas of a data-parallel group do not have the state in common that a step changes: the
// optimizer's is sharded over them. So the copy goes to a neighbour whatever the layout is.
//
// Outlives the groups and parameters that it is used with. Used by one thread.
#ifndef WEFT_TRAINER_LOOP_SNAPSHOTS_H_
#define WEFT_TRAINER_LOOP_SNAPSHOTS_H_

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/groups/group.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

class Snapshots {
 public:
  // Copies this rank's state after `position`, here and to the next rank of `world`, and takes that
  // of the rank before it. Called by all ranks after the same steps; blocks until both are done.
  absl::Status Take(const RunPosition& position, ParameterSets& parameters, Group& world);

  // Called by all ranks, with the same layout as before. Fills this rank's parameters from the
  // newest step that is in memory for every rank, and returns the position; nothing, with the
  // parameters as they were, where there is none.
  absl::StatusOr<std::optional<RunPosition>> Restore(ParameterSets& parameters, Group& world);

  Bytes bytes() const;  // of memory

 private:
  struct Copy {
    RunPosition position{.step = -1};  // step -1: none
    at::Tensor state;                  // [bytes]
  };
  struct Pair {
    Copy own, neighbour;
  };

  // Of a step: its pair of copies, or where its copies go.
  Pair& PairFor(int64_t step) { return pairs_[static_cast<size_t>(step) % pairs_.size()]; }
  absl::Status LearnSizes(const ParameterSets& parameters, Group& world);

  std::array<Pair, 2> pairs_;
  int64_t own_bytes_ = -1, neighbour_bytes_ = -1;  // of a state
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SNAPSHOTS_H_
