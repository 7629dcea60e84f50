#include "collectives/algorithms/algorithm.h"

#include <algorithm>

#include "base/status.h"
#include "collectives/planner/group_place.h"

namespace weft::collectives {
namespace {

constexpr const Algorithm* kAlgorithms[] = {
    &kOneShot, &kDirect,   &kRing,  &kChain, &kFlat,     &kRecursiveDoubling, &kHalvingDoubling,
    &kTree,    &kBinomial, &kBruck, &kPat,   &kPairwise, &kScatterAllGather,  &kHierarchical,
};

// Up to here a turn of the network costs more than sending everything to everybody.
constexpr Bytes kOneShotTraffic = KiB(32);
// From here on n-1 messages at once crowd a rank more than a ring's turns delay it.
constexpr int kDirectRanks = 8;

}  // namespace

absl::Span<const Algorithm* const> Algorithms() { return kAlgorithms; }

const Algorithm* FindAlgorithm(absl::string_view name, CollectiveKind kind) {
  for (const Algorithm* algorithm : kAlgorithms) {
    if (name == algorithm->name && algorithm->has(kind)) return algorithm;
  }
  return nullptr;
}

const Algorithm& ChooseAlgorithm(absl::string_view wanted, CollectiveKind kind, int size,
                                 Bytes part, bool one_host) {
  const Algorithm* choice = FindAlgorithm(wanted, kind);
  if (choice == nullptr && part * (size - 1) <= kOneShotTraffic) {
    choice = FindAlgorithm("oneshot", kind);
  }
  if (choice == nullptr && part > Bytes(0) && (size > kDirectRanks || !one_host)) {
    choice = FindAlgorithm("ring", kind);
    if (choice == nullptr) choice = FindAlgorithm("chain", kind);
  }
  if (choice == nullptr) choice = FindAlgorithm("direct", kind);
  WEFT_CHECK(choice != nullptr, "no algorithm for " << ToString(kind));
  return *choice;
}

Cost SpreadOverHosts(Cost cost, const CollectiveSpec& spec) {
  if (spec.place == nullptr || spec.place->hosts.size() == 1) return cost;
  const double ranks = spec.place->ranks_max;
  cost.turns_across = cost.turns;
  cost.elements_across =
      cost.elements * std::max(1.0, cost.balance * ranks) * (spec.size - ranks) / (spec.size - 1);
  return cost;
}

}  // namespace weft::collectives
