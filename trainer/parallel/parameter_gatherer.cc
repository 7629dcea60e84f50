#include "trainer/parallel/parameter_gatherer.h"

#include <utility>

#include "absl/strings/match.h"
#include "base/status.h"

namespace weft::train {

ParameterGatherer::ParameterGatherer(ParameterStore* store, Group* group)
    : store_(*store),
      group_(*group),
      states_(store->buckets().size()),
      units_(static_cast<size_t>(store->units())) {
  for (const ParameterSpec& spec : store_.parameters()) {
    UnitInfo& unit = units_[static_cast<size_t>(spec.unit)];
    unit.chunk = spec.chunk;
    unit.is_read_backward = unit.is_read_backward || !absl::StartsWith(spec.name, "embedding.");
  }
  if (store_.ComesAndGoes()) return;
  for (const ParameterBucket& bucket : store_.buckets()) {
    registered_.push_back(group_.KeepRegistered(bucket.values));
  }
}

absl::Status ParameterGatherer::Start(int index) {
  State& state = StateOf(index);
  ParameterBucket& bucket = store_.bucket(index);
  if (store_.ComesAndGoes()) {
    if (state.is_there) return absl::OkStatus();
    store_.Attach(bucket);
  }
  state.is_there = true;
  store_.WriteOwnPart(bucket);
  WEFT_ASSIGN_OR_RETURN(state.gather, group_.AllGather(bucket.values, store_.OwnPart(bucket)));
  return absl::OkStatus();
}

absl::Status ParameterGatherer::StartUnit(int unit) {
  for (int bucket : store_.BucketsOf(unit)) WEFT_RETURN_IF_ERROR(Start(bucket));
  return absl::OkStatus();
}

absl::Status ParameterGatherer::Changed(int bucket) {
  ++changes_;
  if (!store_.ComesAndGoes()) return Start(bucket);
  if (!StateOf(bucket).is_there) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(group_.Wait(StateOf(bucket).gather));
  Drop(bucket);
  return absl::OkStatus();
}

absl::Status ParameterGatherer::Prefetch() {
  return store_.ComesAndGoes() ? StartUnit(0) : absl::OkStatus();
}

absl::Status ParameterGatherer::Enter(int unit, bool backward) {
  if (store_.ComesAndGoes()) {
    WEFT_RETURN_IF_ERROR(StartUnit(unit));
    for (int bucket : store_.BucketsOf(unit)) ++StateOf(bucket).readers;
  }
  for (int bucket : store_.BucketsOf(unit)) {
    WEFT_RETURN_IF_ERROR(group_.Wait(StateOf(bucket).gather));
  }
  const int next = backward ? unit - 1 : unit + 1;
  const bool is_near = next >= 0 && next < store_.units() &&
                       UnitOf(next).chunk == UnitOf(unit).chunk &&
                       (!backward || UnitOf(next).is_read_backward);
  return store_.ComesAndGoes() && is_near ? StartUnit(next) : absl::OkStatus();
}

void ParameterGatherer::Leave(int unit) {
  if (!store_.ComesAndGoes()) return;
  for (int bucket : store_.BucketsOf(unit)) {
    if (StateOf(bucket).readers > 0 && --StateOf(bucket).readers == 0) Drop(bucket);
  }
}

void ParameterGatherer::LeaveAll() {
  if (!store_.ComesAndGoes()) return;
  for (size_t b = 0; b < states_.size(); ++b) {
    if (states_[b].readers == 0) continue;
    states_[b].readers = 0;
    Drop(static_cast<int>(b));
  }
}

void ParameterGatherer::Drop(int bucket) {
  StateOf(bucket).is_there = false;
  store_.Detach(store_.bucket(bucket));
}

absl::Status ParameterGatherer::WaitAll() {
  for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
    WEFT_RETURN_IF_ERROR(group_.Wait(state->gather));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
