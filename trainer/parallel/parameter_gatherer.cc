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
  absl::StatusOr<Pending> gather = group_.AllGather(bucket.values, store_.OwnPart(bucket));
  if (!gather.ok()) return Failed(index, gather.status());
  // With stage 3: until nothing writes there any more, whenever the bucket is given back.
  if (bucket.memory.defined()) gather->tensors.push_back(bucket.memory);
  state.gather = *std::move(gather);
  state.failure = absl::OkStatus();
  return absl::OkStatus();
}

absl::Status ParameterGatherer::Wait(int bucket) {
  const absl::Status waited = group_.Wait(StateOf(bucket).gather);
  return waited.ok() ? StateOf(bucket).failure : Failed(bucket, waited);
}

// What has not come whole must not be read: with stage 3 the next Enter gathers it again.
absl::Status ParameterGatherer::Failed(int bucket, const absl::Status& why) {
  if (store_.ComesAndGoes()) {
    Drop(bucket);
  } else {
    StateOf(bucket).failure = why;
  }
  return why;
}

absl::Status ParameterGatherer::StartUnit(int unit) {
  for (int bucket : store_.BucketsOf(unit)) WEFT_RETURN_IF_ERROR(Start(bucket));
  return absl::OkStatus();
}

absl::Status ParameterGatherer::Changed(int bucket) {
  ++changes_;
  if (!store_.ComesAndGoes()) return Start(bucket);
  if (!StateOf(bucket).is_there) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(Wait(bucket));
  Drop(bucket);
  return absl::OkStatus();
}

absl::Status ParameterGatherer::Prefetch() {
  return store_.ComesAndGoes() && store_.units() > 0 ? StartUnit(0) : absl::OkStatus();
}

absl::Status ParameterGatherer::Enter(int unit, bool backward) {
  if (store_.ComesAndGoes()) {
    for (int bucket : store_.BucketsOf(unit)) {
      WEFT_RETURN_IF_ERROR(Start(bucket));
      ++StateOf(bucket).readers;
    }
  }
  for (int bucket : store_.BucketsOf(unit)) WEFT_RETURN_IF_ERROR(Wait(bucket));
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
  StateOf(bucket).gather = Pending();
  store_.Detach(store_.bucket(bucket));
}

absl::Status ParameterGatherer::WaitAll() {
  for (size_t b = states_.size(); b-- > 0;) WEFT_RETURN_IF_ERROR(Wait(static_cast<int>(b)));
  return absl::OkStatus();
}

}  // namespace weft::train
