#include "topology/sim/flow/max_min.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// Relative: above the rounding of sums over thousands of flows, below every difference that shows.
constexpr double kEqual = 1e-9;
// After that many rounds of widening by violations the whole connected part is taken.
constexpr int kPatience = 12;

}  // namespace

MaxMin::MaxMin(std::vector<double> capacities) : resources_(capacities.size()) {
  for (size_t i = 0; i < capacities.size(); ++i) resources_[i].capacity = capacities[i];
}

void MaxMin::Dirty(Resource resource) {
  if (std::exchange(resources_[resource].dirty, true)) return;
  dirty_.push_back(resource);
}

void MaxMin::SetCapacity(Resource resource, double capacity) {
  WEFT_CHECK(capacity >= 0, "capacity " << capacity);
  resources_[resource].capacity = capacity;
  // Flows that it did not hold back may be too fast for it now: all of them are affected.
  for (const Member& member : resources_[resource].members) new_.push_back(member.variable);
  Dirty(resource);
}

MaxMin::Resource MaxMin::AddResource(double capacity) {
  resources_.push_back({.capacity = capacity, .members = {}});
  return static_cast<Resource>(resources_.size() - 1);
}

MaxMin::Variable MaxMin::Add(absl::Span<const Use> uses, uint32_t count) {
  WEFT_CHECK(!uses.empty() && count > 0, "uses " << uses.size() << " count " << count);
  Variable variable;
  if (free_.empty()) {
    variable = static_cast<Variable>(variables_.size());
    variables_.emplace_back();
    links_.emplace_back();
  } else {
    variable = free_.back();
    free_.pop_back();
  }
  variables_[variable] = {.count = count};
  for (const Use& use : uses) AddUse(variable, use);
  new_.push_back(variable);
  return variable;
}

void MaxMin::AddUse(Variable variable, Use use) {
  Capacity& resource = resources_[use.resource];
  auto& links = links_[variable];
  resource.members.push_back({variable, static_cast<uint32_t>(links.size()), use.weight});
  links.push_back({use.resource, static_cast<uint32_t>(resource.members.size() - 1), use.weight});
  Dirty(use.resource);
}

MaxMin::Resource MaxMin::Split(Resource resource) {
  const Resource fresh = AddResource(resources_[resource].capacity);
  for (size_t i = 0; i < resources_[resource].members.size(); ++i) {
    const Member member = resources_[resource].members[i];
    AddUse(member.variable, {fresh, member.weight});
  }
  return fresh;
}

void MaxMin::SetCount(Variable variable, uint32_t count) {
  WEFT_CHECK(count > 0 && variables_[variable].count > 0, "variable " << variable);
  variables_[variable].count = count;
  for (const Link& link : links_[variable]) Dirty(link.resource);
  new_.push_back(variable);
}

void MaxMin::Remove(Variable variable) {
  for (const Link& link : links_[variable]) {
    std::vector<Member>& members = resources_[link.resource].members;
    const Member& last = members.back();
    links_[last.variable][last.place].place = link.place;
    members[link.place] = last;
    members.pop_back();
    Dirty(link.resource);
  }
  links_[variable].clear();
  variables_[variable].count = 0;
  free_.push_back(variable);
}

void MaxMin::Affect(Variable variable) {
  State& state = variables_[variable];
  if (state.count == 0 || state.affected == solve_) return;
  state.affected = solve_;
  affected_.push_back(variable);
  before_.push_back(state.rate);
}

const std::vector<MaxMin::Variable>& MaxMin::Solve() {
  ++solve_;
  affected_.clear();
  before_.clear();
  for (Variable variable : new_) Affect(variable);
  for (Resource resource : dirty_) {
    for (const Member& member : resources_[resource].members) {
      if (variables_[member.variable].bottleneck == resource) Affect(member.variable);
    }
  }
  return Run();
}

const std::vector<MaxMin::Variable>& MaxMin::SolveAll() {
  ++solve_;
  affected_.clear();
  before_.clear();
  for (Variable variable = 0; variable < variables_.size(); ++variable) Affect(variable);
  return Run();
}

const std::vector<MaxMin::Variable>& MaxMin::Run() {
  ++solves_;
  for (Resource resource : dirty_) resources_[resource].dirty = false;
  dirty_.clear();
  new_.clear();
  if (!affected_.empty()) Fill();
  for (int round = 1; !affected_.empty() && Widen(); ++round) {
    if (round == kPatience) {  // affected_ grows while it is read
      for (size_t i = 0; i < affected_.size(); ++i) {
        for (const Link& link : links_[affected_[i]]) {
          for (const Member& member : resources_[link.resource].members) Affect(member.variable);
        }
      }
    }
    Fill();
  }
  changed_.clear();
  for (size_t i = 0; i < affected_.size(); ++i) {
    if (variables_[affected_[i]].rate != before_[i]) changed_.push_back(affected_[i]);
  }
  return changed_;
}

// What the others leave over, and how much of it is wanted.
void MaxMin::Touch(Resource index) {
  Capacity& resource = resources_[index];
  if (resource.touched == filling_) return;
  resource.touched = filling_;
  touched_.push_back(index);
  double taken = 0, weight = 0;
  uint32_t open = 0;
  for (const Member& member : resource.members) {
    const State& state = variables_[member.variable];
    if (state.affected == solve_) {
      weight += member.weight * state.count;
      ++open;
    } else {
      taken += member.weight * state.count * state.rate;
    }
  }
  resource.residual = std::max(0.0, resource.capacity - taken);
  resource.weight = weight;
  resource.open = open;
  heap_.push_back({resource.residual / weight, index});
}

void MaxMin::Fill() {
  ++filling_;
  touched_.clear();
  heap_.clear();
  filled_ += static_cast<int64_t>(affected_.size());
  for (Variable variable : affected_) variables_[variable].filled = false;
  for (Variable variable : affected_) {
    for (const Link& link : links_[variable]) Touch(link.resource);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Level top = heap_.back();
    heap_.pop_back();
    const Capacity& resource = resources_[top.resource];
    if (resource.open == 0) continue;
    // Levels only rise while others are filled, so an old one is a lower bound.
    const double level = std::max(0.0, resource.residual / resource.weight);
    if (level > top.level) {
      heap_.push_back({level, top.resource});
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    FillAt(top.resource, level);
  }
}

void MaxMin::FillAt(Resource index, double level) {
  for (const Member& member : resources_[index].members) {
    State& state = variables_[member.variable];
    if (state.affected != solve_ || state.filled) continue;
    state.filled = true;
    state.rate = level;
    state.bottleneck = index;
    for (const Link& link : links_[member.variable]) {
      Capacity& resource = resources_[link.resource];
      const double weight = link.weight * state.count;
      resource.residual -= weight * level;
      resource.weight -= weight;
      --resource.open;
    }
  }
}

// Adds to the affected whoever breaks the bottleneck condition; false: nobody does.
bool MaxMin::Widen() {
  const size_t before = affected_.size();
  for (Resource resource : touched_) WidenAt(resource);
  return affected_.size() > before;
}

void MaxMin::WidenAt(Resource index) {
  const Capacity& resource = resources_[index];
  double load = 0, fastest = 0, slowest_held = -1;  // held: affected, with this as its bottleneck
  bool others = false;
  for (const Member& member : resource.members) {
    const State& state = variables_[member.variable];
    load += member.weight * state.count * state.rate;
    fastest = std::max(fastest, state.rate);
    if (state.affected != solve_) {
      others = true;
    } else if (state.bottleneck == index && (slowest_held < 0 || state.rate < slowest_held)) {
      slowest_held = state.rate;
    }
  }
  if (!others) return;
  const bool full = load >= resource.capacity * (1 - kEqual);
  for (size_t i = 0; i < resource.members.size(); ++i) {
    const Variable variable = resource.members[i].variable;
    const State& state = variables_[variable];
    if (state.affected == solve_) continue;
    const bool lost = state.bottleneck == index && (!full || state.rate < fastest * (1 - kEqual));
    const bool greedy = slowest_held >= 0 && state.rate > slowest_held * (1 + kEqual);
    if (lost || greedy) WidenBy(variable);
  }
}

// With it come those that wait for what it may give up.
void MaxMin::WidenBy(Variable variable) {
  Affect(variable);
  for (const Link& link : links_[variable]) {
    for (const Member& member : resources_[link.resource].members) {
      if (variables_[member.variable].bottleneck == link.resource) Affect(member.variable);
    }
  }
}

absl::Status MaxMin::Check(double tolerance) const {
  std::vector<double> load(resources_.size()), fastest(resources_.size());
  for (size_t r = 0; r < resources_.size(); ++r) {
    for (const Member& member : resources_[r].members) {
      const State& state = variables_[member.variable];
      load[r] += member.weight * state.count * state.rate;
      fastest[r] = std::max(fastest[r], state.rate);
    }
    if (load[r] > resources_[r].capacity * (1 + tolerance)) {
      return absl::InternalError(
          absl::StrCat("resource ", r, " of ", resources_[r].capacity, " carries ", load[r]));
    }
  }
  for (Variable v = 0; v < variables_.size(); ++v) {
    if (variables_[v].count == 0) continue;
    const bool held = std::any_of(links_[v].begin(), links_[v].end(), [&](const Link& link) {
      return load[link.resource] >= resources_[link.resource].capacity * (1 - tolerance) &&
             variables_[v].rate >= fastest[link.resource] * (1 - tolerance);
    });
    if (!held) {
      return absl::InternalError(
          absl::StrCat("variable ", v, " at ", variables_[v].rate, " has no bottleneck"));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::topology
