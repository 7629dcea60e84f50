#include "collectives/algorithms/contributions.h"

#include <algorithm>

#include "collectives/algorithms/parts.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

// Cost::in_order of a rank that takes from every other one after another.
double OthersInOrder(const CollectiveSpec& spec) {
  if (spec.place == nullptr || spec.place->hosts.size() == 1) return 0;
  return std::max(0, spec.size - spec.place->ranks_min - 1);
}

}  // namespace

StoringReducer::StoringReducer(ScheduleBuilder& builder, const CollectiveSpec& spec,
                               uint64_t longest, size_t held, int first)
    : builder_(builder), spec_(spec), first_(first), slots_(held) {
  for (Slot& slot : slots_) {
    for (int rank = 0; rank < spec.size; ++rank) {
      slot.at.push_back(rank == spec.rank ? Place() : builder.Scratch(longest));
    }
  }
}

uint32_t StoringReducer::Reduce(Place out, Place own, uint64_t length) {
  Slot& slot = slots_[next_++ % slots_.size()];
  slot.at[static_cast<size_t>(spec_.rank)] = own;
  std::vector<uint32_t> arrivals;
  for (int d = 1; d < spec_.size; ++d) {
    const int giver = Around(spec_.rank, d, spec_.size);
    arrivals.push_back(
        builder_.Receive(giver, slot.at[static_cast<size_t>(giver)], length, {slot.reduced}));
  }
  std::vector<Place> operands = slot.at;
  std::rotate(operands.begin(), operands.begin() + first_, operands.end());
  slot.reduced = builder_.ReduceAll(out, operands, length);
  builder_.AlsoAfter(arrivals);
  return builder_.Average(spec_, slot.reduced);
}

uint32_t ReducerFromOwner::Reduce(Place out, Place own, uint64_t length) {
  if (HoldsContributions(spec_)) return storing_.Reduce(out, own, length);
  uint32_t last = kNone;
  for (int d = 1; d < spec_.size; ++d) {
    const int giver = Around(spec_.rank, d, spec_.size);
    last = builder_.ReceiveReduce(giver, out, d == 1 ? own : out, length, {last});
  }
  return builder_.Average(spec_, last);
}

Cost WithContributions(Cost cost, const CollectiveSpec& spec, double staged) {
  if (cost.reduced == 0) return cost;
  if (HoldsContributions(spec)) {
    cost.copied += cost.reduced;
    cost.staged = staged;
    return cost;
  }
  cost.in_order = OthersInOrder(spec);
  cost.staged = 1;
  if (cost.turns_across == 0) cost.posts = std::max(2.0 * (spec.size - 2), 0.0);
  return cost;
}

}  // namespace weft::collectives
