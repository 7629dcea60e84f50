#include "collectives/store/server/store_members.h"

#include <utility>

#include "collectives/store/protocol/store_budget.h"

namespace weft::collectives {
namespace {

// Bytes of a run: its node in the map, and the hello, though runs that were split share one.
Bytes RunBytes(const StoreHello& hello) {
  return Bytes(sizeof(StoreHello) + 192) + HeapBytes(hello.id) + HeapBytes(hello.name) +
         HeapBytes(hello.job) + HeapBytes(hello.host);
}

}  // namespace

Bytes StoreMembers::BytesOf(const StoreHello& hello) {
  return hello.ranks == 0 ? Bytes(0) : RunBytes(hello) * 3;
}

bool StoreMembers::Enroll(const std::shared_ptr<const StoreHello>& hello, uint64_t session) {
  const int32_t end = hello->rank + hello->ranks;
  SplitAt(hello->rank);
  SplitAt(end);
  bool replaces = false;
  int32_t first = hello->rank;  // of the ranks that it takes, up to the next that it does not
  for (auto run = runs_.lower_bound(hello->rank); run != runs_.end() && run->first < end;) {
    const StoreHello& held = *run->second.member.hello;
    const bool later = held.generation < hello->generation;
    replaces = replaces || later;
    if (later || (held.generation == hello->generation && hello->ranks <= held.ranks)) {
      run = Erase(run);
      continue;
    }
    if (first < run->first) Put(first, {run->first, {hello, session}});
    first = run->second.end;
    ++run;
  }
  if (first < end) Put(first, {end, {hello, session}});
  return replaces;
}

const StoreMembers::Member* StoreMembers::Find(int32_t rank) const {
  auto run = runs_.upper_bound(rank);
  if (run == runs_.begin()) return nullptr;
  --run;
  return rank < run->second.end ? &run->second.member : nullptr;
}

// So that a run begins there, if any holds it.
void StoreMembers::SplitAt(int32_t rank) {
  auto run = runs_.lower_bound(rank);
  if (run == runs_.begin()) return;
  --run;
  if (run->second.end <= rank) return;
  Put(rank, run->second);
  run->second.end = rank;
}

void StoreMembers::Put(int32_t first, Run run) {
  bytes_ += RunBytes(*run.member.hello);
  runs_.emplace(first, std::move(run));
}

StoreMembers::Runs::iterator StoreMembers::Erase(Runs::iterator run) {
  bytes_ -= RunBytes(*run->second.member.hello);
  return runs_.erase(run);
}

}  // namespace weft::collectives
