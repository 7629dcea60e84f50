#include "collectives/algorithms/algorithm.h"

#include <algorithm>

#include "collectives/algorithms/unplanned.h"
#include "collectives/group_place.h"

namespace weft::collectives {
namespace {

constexpr const Algorithm* kAlgorithms[] = {
#define WEFT_ALGORITHM(name) &name,
#include "collectives/algorithms/algorithms.inc"
#undef WEFT_ALGORITHM
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
  cost.posts = 0;
  cost.lanes = std::max(1.0, cost.balance * ranks);
  cost.elements_across = cost.elements * cost.lanes * (spec.size - ranks) / (spec.size - 1);
  return cost;
}

BetweenSwitches::BetweenSwitches(const CollectiveSpec& spec)
    : BetweenSwitches(spec, UnplannedLoad(spec.place.get())) {}

BetweenSwitches::BetweenSwitches(const CollectiveSpec& spec, double load)
    : place_(spec.place), load_(load) {
  if (place_ == nullptr || place_->switches.size() < 2) return;
  out_.assign(place_->switches.size(), 0);
  in_ = out_;
}

void BetweenSwitches::Add(int from, int to, double elements) {
  auto switch_of = [&](int rank) {
    const int host = place_->host[static_cast<size_t>(rank)];
    return static_cast<size_t>(place_->switch_of[static_cast<size_t>(host)]);
  };
  if (switch_of(from) == switch_of(to)) return;
  out_[switch_of(from)] += elements;
  in_[switch_of(to)] += elements;
}

double BetweenSwitches::Most() const {
  return load_ * std::max(*std::max_element(out_.begin(), out_.end()),
                          *std::max_element(in_.begin(), in_.end()));
}

void BetweenSwitches::EndExchange(double elements, Cost& cost) {
  const double beyond = Most();
  cost.exchanges.push_back({elements, beyond});
  cost.elements_beyond = std::max(cost.elements_beyond, 0.0) + beyond;
  out_.assign(out_.size(), 0), in_ = out_;
}

// A chunk's receive is posted when the one before it in its slot was received and has been sent on.
Cost ThroughSlots(Cost cost, uint64_t chunks, uint64_t chunk, uint64_t slots, int messages) {
  if (chunks <= slots) return cost;
  cost.slot_turns = messages * static_cast<double>(chunks - slots) / static_cast<double>(slots);
  cost.slot_elements =
      (cost.slot_turns + cost.paths * static_cast<double>(slots)) * static_cast<double>(chunk);
  return cost;
}

}  // namespace weft::collectives
