#include "trainer/parallel/saved_share.h"

#include <algorithm>
#include <map>

namespace weft::train {
namespace {

// Numbers of fp32 that a checkpoint has of each element: its value and its states.
int64_t WidthOf(const OwnedSlice& slice) {
  return 1 + std::count_if(slice.states.begin(), slice.states.end(),
                           [](const float* state) { return state != nullptr; });
}

// Where elements that the same ranks hold lie on their line, in numbers of fp32.
struct Line {
  int64_t begin = 0, end = 0;  // what this rank writes
  int64_t length = 0;
  int64_t at = 0;  // of the next slice
};

}  // namespace

HolderPlace PlaceAmongHolders(const ParallelGroups& groups, SharedBy shared) {
  HolderPlace place;
  auto add = [&place](const Group* group) {
    if (group == nullptr) return;
    place.index = place.index * group->size() + group->rank();
    place.holders *= group->size();
  };
  add(groups.replicas.get());
  if (shared == SharedBy::kTensor) add(groups.tensor.get());
  if (shared == SharedBy::kEnds) add(groups.ends.get());
  return place;
}

std::vector<SavedSlice> SavedSlices(const ParameterStore& store,
                                    const std::function<HolderPlace(SharedBy)>& place) {
  std::map<SharedBy, Line> lines;
  for (const ParameterBucket& bucket : store.buckets()) {
    Line& line = lines[bucket.layout.shared];
    for (const OwnedSlice& slice : bucket.slices) line.length += slice.elements * WidthOf(slice);
  }
  for (auto& [shared, line] : lines) {
    const auto [index, holders] = place(shared);
    const int64_t part = line.length / holders, longer = line.length % holders;
    line.begin = index * part + std::min<int64_t>(index, longer);
    line.end = line.begin + part + (index < longer ? 1 : 0);
  }
  std::vector<SavedSlice> saved;
  for (const ParameterBucket& bucket : store.buckets()) {
    Line& line = lines[bucket.layout.shared];
    for (const OwnedSlice& slice : bucket.slices) {
      // An element belongs to the rank in whose part its first number lies.
      const int64_t width = WidthOf(slice);
      auto element_at = [&](int64_t number) {
        return std::clamp<int64_t>((number - line.at + width - 1) / width, 0, slice.elements);
      };
      const int64_t from = line.begin <= line.at ? 0 : element_at(line.begin);
      const int64_t to = line.end <= line.at ? 0 : element_at(line.end);
      if (from < to) saved.push_back({&slice, from, to - from});
      line.at += slice.elements * width;
    }
  }
  return saved;
}

}  // namespace weft::train
