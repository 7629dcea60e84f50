// Brings every rank's shard of the parameters to every rank, before a pass reads them.
//
// ZeRO stages 1 and 2: each bucket's all-gather starts when the optimizer has updated it and runs
// under what follows; a forward pass waits for a unit's buckets just before it reads them. Stage 3:
// a unit's parameters are gathered when a pass enters it, those of the next unit are under way at
// the time, and they are given back when the pass leaves; the first unit's gather runs while the
// next batch is read.
//
// Used by one thread.
#ifndef WEFT_TRAINER_PARALLEL_PARAMETER_GATHERER_H_
#define WEFT_TRAINER_PARALLEL_PARAMETER_GATHERER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "trainer/groups/group.h"
#include "trainer/parallel/parameter_store.h"

namespace weft::train {

class ParameterGatherer {
 public:
  // Both outlive this object. `group`: the ranks that share the parameters.
  ParameterGatherer(ParameterStore* store, Group* group);

  // The owned values of a bucket are new. With stage 3 they are gathered when they are needed.
  absl::Status Changed(int bucket);
  // Calls of Changed: what was made of the parameters holds as long as this stays the same.
  int64_t changes() const { return changes_; }
  // After Changed of all: what can run ahead of the next step.
  absl::Status Prefetch();
  // A pass begins to read a unit's parameters, on its way to unit + 1, or back to unit - 1. After
  // an error they must not be read, and LeaveAll gives back what there is of them. What has failed
  // to come is never taken for there: with stage 3 it is gathered again, else each Enter fails
  // until it is Changed.
  absl::Status Enter(int unit, bool backward);
  void Leave(int unit);
  // Gives back what a pass has entered, or failed to enter, and not left.
  void LeaveAll();
  // Until every gather under way is done.
  absl::Status WaitAll();

 private:
  struct State {
    Pending gather;
    bool is_there = false;  // or on its way, with `gather`
    int readers = 0;
    absl::Status failure;  // stages 1 and 2: of the last gather
  };
  struct UnitInfo {
    int chunk = 0;
    bool is_read_backward = false;  // an embedding's backward pass reads no parameter
  };
  const UnitInfo& UnitOf(int unit) const { return units_[static_cast<size_t>(unit)]; }
  absl::Status Start(int bucket);
  absl::Status StartUnit(int unit);
  absl::Status Wait(int bucket);
  absl::Status Failed(int bucket, const absl::Status& why);
  State& StateOf(int bucket) { return states_[static_cast<size_t>(bucket)]; }
  void Drop(int bucket);

  ParameterStore& store_;
  Group& group_;
  std::vector<State> states_;
  int64_t changes_ = 0;
  std::vector<UnitInfo> units_;
  std::vector<std::shared_ptr<void>> registered_;  // stages 1 and 2: all buckets
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_PARAMETER_GATHERER_H_
