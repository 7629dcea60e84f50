#include "topology/sim/flow/fluid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "base/random.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr Ticks kFar = Ticks{1} << 62;

// Hash of a set of uses. Different sets with one hash (one in 2^64) are told apart by SameUses.
uint64_t KeyOf(absl::Span<const MaxMin::Use> uses) {
  uint64_t key = uses.size();
  for (const MaxMin::Use& use : uses) {
    uint64_t state = key ^ use.resource;
    state = SplitMix64(state) ^ std::bit_cast<uint64_t>(use.weight);
    key = SplitMix64(state);
  }
  return key;
}

bool SameUses(const MaxMin& solver, MaxMin::Variable variable, absl::Span<const MaxMin::Use> uses) {
  size_t i = 0;
  bool same = true;
  solver.ForEachUse(variable, [&](MaxMin::Resource resource, double weight) {
    same &= i < uses.size() && uses[i] == MaxMin::Use{resource, weight};
    ++i;
  });
  return same && i == uses.size();
}

}  // namespace

Ticks ToTicks(absl::Duration duration) {
  const absl::Duration tick = absl::Nanoseconds(1) / 4;
  if (duration >= tick * kFar) return kNever;
  absl::Duration rest;
  const Ticks ticks = absl::IDivDuration(duration, tick, &rest);
  return ticks + (rest > absl::ZeroDuration() ? 1 : 0);
}

Ticks ToTicks(double seconds) {
  const double ticks = std::ceil(seconds * static_cast<double>(kTicksPerSecond));
  return ticks < static_cast<double>(kFar) ? static_cast<Ticks>(ticks) : kNever;
}

absl::Duration FromTicks(Ticks ticks) {
  if (ticks == kNever) return absl::InfiniteDuration();
  return absl::Seconds(ticks / kTicksPerSecond) +
         (absl::Nanoseconds(1) / 4) * (ticks % kTicksPerSecond);
}

Fluid::Fluid(std::vector<double> capacities, bool incremental, size_t exact_paths, double late)
    : solver_(std::move(capacities)),
      incremental_(incremental),
      exact_paths_(exact_paths),
      late_(late) {}

void Fluid::Start(Ticks now, absl::Span<const MaxMin::Use> uses, const Transfer& transfer) {
  const uint64_t key = KeyOf(uses);
  const auto [found, fresh] = by_key_.try_emplace(key, 0);
  MaxMin::Variable variable = found->second;
  const bool shares = !fresh && SameUses(solver_, variable, uses);
  if (shares) {
    Update(paths_[variable], now);
    solver_.SetCount(variable, solver_.count(variable) + 1);
  } else {
    variable = solver_.Add(uses);
    if (variable >= paths_.size()) paths_.resize(variable + 1);
    Path& path = paths_[variable];
    path.service = path.rate = 0;
    path.updated = now;
    path.due = kNever;
    path.key = key;
    if (fresh) found->second = variable;
    path.heap_place = static_cast<uint32_t>(heap_.size());
    heap_.push_back(variable);
  }
  Path& path = paths_[variable];
  path.members.push_back(
      {path.service + transfer.bytes, path.service, transfer.tag, transfer.latency});
  std::push_heap(path.members.begin(), path.members.end(), std::greater<>());
  Schedule(variable);
  came_.push_back(variable);
}

void Fluid::Update(Path& path, Ticks now) {
  path.service += path.rate * (static_cast<double>(now - path.updated) / kTicksPerSecond);
  path.updated = now;
}

// From when it was updated last.
Ticks Fluid::DueOf(const Path& path) {
  if (path.rate <= 0) return kNever;
  const double left = std::max(0.0, path.members.front().end - path.service);
  return Later(path.updated, ToTicks(left / path.rate));
}

void Fluid::Schedule(MaxMin::Variable variable) {
  Path& path = paths_[variable];
  path.due = DueOf(path);
  Sift(path.heap_place);
}

MaxMin::Resource Fluid::Split(MaxMin::Resource link) {
  const MaxMin::Resource fresh = solver_.Split(link);
  if (link < carried_.size()) {
    carried_.resize(std::max<size_t>(carried_.size(), fresh + 1));
    carried_[fresh] = carried_[link];
  }
  return fresh;
}

// About what the first of a path's transfers takes, if all that use a link get the same of it.
double Fluid::TimeOf(MaxMin::Variable variable) const {
  double seconds = 0;
  const Path& path = paths_[variable];
  const double bytes = path.members.front().end - path.service;
  solver_.ForEachUse(variable, [&](MaxMin::Resource resource, double weight) {
    const double users = static_cast<double>(solver_.users(resource));
    seconds = std::max(seconds, bytes * weight * users / solver_.capacity(resource));
  });
  return seconds;
}

bool Fluid::MayWait(Ticks now) {
  if (late_ == 0 || heap_.size() <= exact_paths_) return false;
  for (MaxMin::Variable variable : came_) {
    if (solver_.count(variable) == 0) continue;  // and is gone already
    solve_by_ = std::min(solve_by_, Later(now, ToTicks(late_ * TimeOf(variable))));
  }
  return solve_by_ > now;
}

void Fluid::Solve(Ticks now) {
  const bool wait = MayWait(now);
  came_.clear();
  if (wait) return;
  solve_by_ = kNever;
  const auto& changed = incremental_ ? solver_.Solve() : solver_.SolveAll();
  // Where many get another place in the heap, it is cheaper to make it anew.
  const bool many = changed.size() > heap_.size() / 8;
  for (MaxMin::Variable variable : changed) {
    Path& path = paths_[variable];
    Update(path, now);
    path.rate = solver_.rate(variable);
    path.due = DueOf(path);
    if (!many) Sift(path.heap_place);
  }
  if (!many) return;
  for (size_t place = heap_.size() / 2; place-- > 0;) SiftDown(static_cast<uint32_t>(place));
}

void Fluid::Carry(MaxMin::Variable variable, double bytes) {
  solver_.ForEachUse(variable, [&](MaxMin::Resource resource, double weight) {
    if (resource >= carried_.size()) carried_.resize(resource + 1);
    carried_[resource] += bytes * weight;
  });
}

void Fluid::Drop(MaxMin::Variable variable) {
  Path& path = paths_[variable];
  const auto found = by_key_.find(path.key);
  if (found != by_key_.end() && found->second == variable) by_key_.erase(found);
  solver_.Remove(variable);
  const uint32_t place = path.heap_place;
  const MaxMin::Variable last = heap_.back();
  heap_.pop_back();
  if (last == variable) return;
  Put(place, last);
  Sift(place);
}

void Fluid::Finish(Ticks now, std::vector<Transfer>& ended) {
  ended.clear();
  while (!heap_.empty() && paths_[heap_[0]].due <= now) {
    const MaxMin::Variable variable = heap_[0];
    Path& path = paths_[variable];
    Update(path, now);
    // What rounding leaves is far less than a byte; and the first is due, whatever it says.
    bool first = true;
    const size_t before = path.members.size();
    while (!path.members.empty() && (first || path.members.front().end <= path.service + 1e-3)) {
      first = false;
      std::pop_heap(path.members.begin(), path.members.end(), std::greater<>());
      const Member& member = path.members.back();
      Carry(variable, member.end - member.begin);
      const double seconds = path.rate > 0 ? (member.end - member.begin) / path.rate : 0;
      solve_by_ = std::min(solve_by_, Later(now, ToTicks(late_ * seconds)));
      ended.push_back({0, member.tag, member.latency});
      path.members.pop_back();
    }
    if (path.members.empty()) {
      Drop(variable);
    } else {
      solver_.SetCount(
          variable, solver_.count(variable) - static_cast<uint32_t>(before - path.members.size()));
      Schedule(variable);
    }
  }
  std::sort(ended.begin(), ended.end(),
            [](const Transfer& a, const Transfer& b) { return a.tag < b.tag; });
}

void Fluid::Withdraw(Ticks now, std::vector<Transfer>& all) {
  all.clear();
  while (!heap_.empty()) {
    const MaxMin::Variable variable = heap_.back();
    Path& path = paths_[variable];
    Update(path, now);
    for (const Member& member : path.members) {
      const double left = std::max(0.0, member.end - path.service);
      Carry(variable, member.end - left - member.begin);
      all.push_back({left, member.tag, member.latency});
    }
    path.members.clear();
    Drop(variable);
  }
  std::sort(all.begin(), all.end(),
            [](const Transfer& a, const Transfer& b) { return a.tag < b.tag; });
}

bool Fluid::Earlier(MaxMin::Variable a, MaxMin::Variable b) const {
  return paths_[a].due != paths_[b].due ? paths_[a].due < paths_[b].due : a < b;
}

void Fluid::Put(uint32_t place, MaxMin::Variable variable) {
  heap_[place] = variable;
  paths_[variable].heap_place = place;
}

// Restores the order of the heap around a path whose `due` changed.
void Fluid::Sift(uint32_t place) {
  const MaxMin::Variable variable = heap_[place];
  while (place > 0 && Earlier(variable, heap_[(place - 1) / 2])) {
    Put(place, heap_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  Put(place, variable);
  SiftDown(place);
}

void Fluid::SiftDown(uint32_t place) {
  const MaxMin::Variable variable = heap_[place];
  while (true) {
    size_t child = 2 * static_cast<size_t>(place) + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && Earlier(heap_[child + 1], heap_[child])) ++child;
    if (!Earlier(heap_[child], variable)) break;
    Put(place, heap_[child]);
    place = static_cast<uint32_t>(child);
  }
  Put(place, variable);
}

}  // namespace weft::topology
