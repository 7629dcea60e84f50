// How one rank reduces the contributions of all ranks to a chunk, which they send it whole: the
// owners of direct and gather_reduce, and rank 0 of flat.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_CONTRIBUTIONS_H_
#define WEFT_COLLECTIVES_ALGORITHMS_CONTRIBUTIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/schedule.h"

namespace weft::collectives {

// Chunks whose contributions a rank holds at once, where it stores them: one is reduced while the
// next one comes.
inline constexpr size_t kChunksHeld = 2;

// Stores the contributions to a chunk, whose receives are posted at once, and reduces them by one
// step, in the order of ranks `first`, first+1, ... round.
class StoringReducer {
 public:
  // Reduces chunks of up to `longest` elements, of which it holds `held` at once; 0: none.
  StoringReducer(ScheduleBuilder& builder, const CollectiveSpec& spec, uint64_t longest,
                 size_t held = kChunksHeld, int first = 0);

  // output[out, out + length) = the sum, or whatever is reduced to, of this rank's contribution,
  // which lies at `own`, and the others', which come next. Returns the step that it is after.
  uint32_t Reduce(Place out, Place own, uint64_t length);

 private:
  struct Slot {
    std::vector<Place> at;     // by rank
    uint32_t reduced = kNone;  // the step that has read it
  };

  ScheduleBuilder& builder_;
  const CollectiveSpec& spec_;
  int first_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

// Whether contributions have to be stored so that 16-bit floats are rounded once. Two ranks' are
// added by one step anyway.
inline bool HoldsContributions(const CollectiveSpec& spec) {
  return spec.rounds_once && spec.size > 2;
}

// Reduces in the order of this rank, the next one, ... round: contributions on arrival, each after
// the one before it, while they are in cache; or by one step, where they are held.
class ReducerFromOwner {
 public:
  // As StoringReducer's.
  ReducerFromOwner(ScheduleBuilder& builder, const CollectiveSpec& spec, uint64_t longest,
                   size_t held = kChunksHeld)
      : builder_(builder),
        spec_(spec),
        storing_(builder, spec, longest, HoldsContributions(spec) ? held : 0, spec.rank) {}

  uint32_t Reduce(Place out, Place own, uint64_t length);

 private:
  ScheduleBuilder& builder_;
  const CollectiveSpec& spec_;
  StoringReducer storing_;
};

// For cost functions: adds what ReducerFromOwner's order costs a rank that reduces `cost.reduced`
// elements. `staged`: Cost::staged where contributions are held, which their receiver reads from
// their ranks, so that results alone count.
Cost WithContributions(Cost cost, const CollectiveSpec& spec, double staged);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_CONTRIBUTIONS_H_
