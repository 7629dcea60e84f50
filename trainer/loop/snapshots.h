// The state after the last steps, in the memory of two processes each, for a run in which a rank
// that died is started anew (collectives/recovery.h): every rank keeps its own state, and a copy of
// the state of another, so that after the loss of one rank nothing has to be done again but the
// step that it died in (the peer's memory as a tier of checkpoints: Gemini, SOSP'23).
//
// The copy is lazy (DataStates-LLM, HPDC'24): forward and backward passes change neither master
// values nor the optimizer's state, so both are copied, and sent on, by a thread in the background
// while the next step computes. Finish stands between that and the optimizer.
//
// The last two steps are kept, as others may be a step apart when a rank dies. A rank has finished
// its snapshot of step k before it takes part in the sum of gradients of step k + 1, which all
// wait for; so when any rank begins to overwrite step k - 1, step k is whole everywhere.
//
// With ZeRO the ranks of a data-parallel group do not have the state in common that a step changes:
// the optimizer's is sharded over them. So the copy goes to another rank, on another host where
// there are several: SnapshotKeepers. Where the layout has replicas of a shard (parallel.zero = 0,
// parallel.zero_group), each has its own snapshot of the same bytes: a rank with a replica on
// another host sends nothing (NeedKeepers), and takes its state from any of them when it is started
// anew.
//
// Outlives the groups and parameters that it is used with, once it has finished. Used by one
// thread.
#ifndef WEFT_TRAINER_LOOP_SNAPSHOTS_H_
#define WEFT_TRAINER_LOOP_SNAPSHOTS_H_

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/saved_state.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

// The rank that keeps the copy of each rank's state, by the numbers of the ranks' hosts: a
// permutation. It is on another host wherever no host has more than half of the ranks; a rank
// alone keeps its own.
std::vector<int> SnapshotKeepers(const std::vector<int>& hosts);
// Whether each rank's state has to be kept by that rank: not where one of the same state is on
// another host, or anywhere in a job of one host. `states`: equal where two ranks' states are.
std::vector<bool> NeedKeepers(const std::vector<std::string>& states,
                              const std::vector<int>& hosts);

class Snapshots {
 public:
  // `before_copy` (may be null) is called in the background before each copy: for tests.
  explicit Snapshots(std::function<void()> before_copy = nullptr)
      : before_copy_(std::move(before_copy)) {}

  // Begins to copy this rank's state after `position`, here and to the rank that keeps it, and to
  // take that of the rank for which this one keeps it. Called by all ranks after the same steps.
  // Returns at once; until Finish, nobody may change the state, or use groups.snapshots. The first
  // call allocates all memory there will be.
  absl::Status Begin(const RunPosition& position, ParameterSets& parameters,
                     ParallelGroups& groups);
  // Waits until what Begin began is done, and returns its error, once. OK where nothing was begun.
  absl::Status Finish();

  // Called by all ranks, with the same layout as before. Fills this rank's parameters from the
  // newest step that is in memory for every rank, and returns the position; nothing, with the
  // parameters as they were, where there is none.
  absl::StatusOr<std::optional<RunPosition>> Restore(ParameterSets& parameters,
                                                     ParallelGroups& groups);

  Bytes bytes() const;                                   // of memory
  bool keeps_another() const { return kept_for_ >= 0; }  // whether of another rank's state, too

 private:
  struct Copy {
    RunPosition position{.step = -1};  // step -1: none
    at::Tensor state;                  // [bytes]
  };
  struct Pair {
    Copy own, other;
  };

  // A step's pair of copies, or where its copies go.
  Pair& PairFor(int64_t step) { return pairs_[static_cast<size_t>(step) % pairs_.size()]; }
  absl::Status Prepare(const ParameterSets& parameters, ParallelGroups& groups);
  // Sends this rank's state to its keeper, and takes that of `kept_for_`.
  absl::Status Exchange(Pair& pair, Group& group, bool sends, bool receives) const;

  const std::function<void()> before_copy_;
  std::array<Pair, 2> pairs_;
  bool is_prepared_ = false;
  int keeper_ = -1;  // of this rank's state, where it `sends_` that
  bool sends_ = false;
  int kept_for_ = -1;                  // the rank whose state `other` is; -1: none
  std::future<absl::Status> copying_;  // last: it is waited for before the rest goes
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SNAPSHOTS_H_
