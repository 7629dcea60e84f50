#include "collectives/algorithms/algorithm.h"

#include <algorithm>

#include "collectives/planner/group_place.h"

namespace weft::collectives {
namespace {

// The planner takes the first of several algorithms that cost the same.
constexpr const Algorithm* kAlgorithms[] = {
    &kOneShot,          &kDirect,       &kChain,      &kRing,  &kFlat, &kRecursiveDoubling,
    &kHalvingDoubling,  &kTree,         &kBinomial,   &kBruck, &kPat,  &kPairwise,
    &kScatterAllGather, &kHierarchical, &kThreeLevel,
};

}  // namespace

absl::Span<const Algorithm* const> Algorithms() { return kAlgorithms; }

const Algorithm* FindAlgorithm(absl::string_view name, CollectiveKind kind) {
  for (const Algorithm* algorithm : kAlgorithms) {
    if (name == algorithm->name && algorithm->has(kind)) return algorithm;
  }
  return nullptr;
}

Cost SpreadOverHosts(Cost cost, const CollectiveSpec& spec) {
  if (spec.place == nullptr || spec.place->hosts.size() == 1) return cost;
  const double ranks = spec.place->ranks_max;
  cost.turns_across = cost.turns;
  cost.lanes = std::max(1.0, cost.balance * ranks);
  cost.elements_across = cost.elements * cost.lanes * (spec.size - ranks) / (spec.size - 1);
  return cost;
}

double OthersInOrder(const CollectiveSpec& spec) {
  if (spec.place == nullptr || spec.place->hosts.size() == 1) return 0;
  return std::max(0, spec.size - spec.place->ranks_min - 1);
}

}  // namespace weft::collectives
