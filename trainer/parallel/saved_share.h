// Which elements of its state a rank writes into a checkpoint, where several ranks hold the same:
// each of them writes a share of nearly as many bytes (the balanced saving of ByteCheckpoint,
// NSDI'25), so that none of them waits for one that writes everything. A pure function of the
// layout: nothing is exchanged.
//
// Ranks that hold the same: data-parallel replicas of a shard (parallel.zero = 0,
// parallel.zero_group), and for what SharedBy says the ranks of the tensor group, or both ends of a
// pipeline. All parameters that the same ranks hold are one line of bytes, in the order of buckets
// and slices, an element's value and its optimizer's states together; the k-th of n ranks writes
// the k-th of n equal parts of the line. So a rank has most tensors whole or not at all.
#ifndef WEFT_TRAINER_PARALLEL_SAVED_SHARE_H_
#define WEFT_TRAINER_PARALLEL_SAVED_SHARE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/groups/parallel_groups.h"
#include "trainer/parallel/parameter_store.h"

namespace weft::train {

// The place of a rank among those that hold the same elements.
struct HolderPlace {
  int index = 0;
  int holders = 1;
};
HolderPlace PlaceAmongHolders(const ParallelGroups& groups, SharedBy shared);

// Elements [from, from + elements) of a slice.
struct SavedSlice {
  const OwnedSlice* slice = nullptr;
  int64_t from = 0;
  int64_t elements = 0;
};
// What a rank writes of `store`, in the order of its buckets and slices. The slices are the
// store's. Over all holders of a slice, each of its elements is written once.
std::vector<SavedSlice> SavedSlices(const ParameterStore& store,
                                    const std::function<HolderPlace(SharedBy)>& place);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_SAVED_SHARE_H_
