#include "plugins/nccl/profiled_calls.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "base/clock.h"

namespace weft::nccl {
namespace {

// The proxy starts its operations as soon as it turns; later ones open their call again.
constexpr int64_t kSettleNs = 500'000'000;

constexpr std::array<const char*, kCallKinds> kNames = {
    "broadcast", "reduce",  "all_gather", "reduce_scatter", "all_reduce", "send_receive",
    "send",      "receive", "all_to_all", "gather",         "scatter",    "other"};

bool IsMessage(CallKind kind) {
  return kind == CallKind::kSend || kind == CallKind::kReceive || kind == CallKind::kSendReceive;
}

// The size of the whole buffer, also where NCCL's count is one rank's part.
uint64_t BytesOf(const ProfiledCall& call, int ranks) {
  const bool parts = call.kind == CallKind::kAllGather || call.kind == CallKind::kReduceScatter ||
                     call.kind == CallKind::kAllToAll;
  return call.count * call.element_bytes * (parts && ranks > 0 ? static_cast<uint64_t>(ranks) : 1);
}

// FNV-1a of what all ranks mean alike.
uint64_t CheckOf(const ProfiledCall& call) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t value : {static_cast<uint64_t>(call.kind), uint64_t{call.type}, call.count,
                         static_cast<uint64_t>(call.root)}) {
    for (int i = 0; i < 8; ++i) {
      hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
    }
  }
  return hash;
}

int64_t Now() { return SystemClock::Nanoseconds(); }

}  // namespace

CallRecord CallSlot::ToRecord(RecordKind kind) const {
  CallRecord record;
  record.kind = kind;
  record.name = name.load(std::memory_order_relaxed);
  record.group = group.load(std::memory_order_relaxed);
  record.type = type.load(std::memory_order_relaxed);
  record.sequence = sequence.load(std::memory_order_relaxed);
  record.peer = peer.load(std::memory_order_relaxed);
  record.bytes = bytes.load(std::memory_order_relaxed);
  record.count = count.load(std::memory_order_relaxed);
  record.check = check.load(std::memory_order_relaxed);
  record.start_ns = start_ns.load(std::memory_order_relaxed);
  if (kind == RecordKind::kDone) record.end_ns = last_ns.load(std::memory_order_relaxed);
  return record;
}

void ProfiledCalls::WriteNames(Records& records) {
  for (size_t i = 0; i < kCallKinds; ++i) names_[i] = records.Name(kNames[i]);
}

void* ProfiledCalls::Start(const Caller& caller, const ProfiledCall& call, int kernels) {
  const bool is_message = IsMessage(call.kind);
  const uint32_t sequence = is_message ? 0 : caller.sequence.fetch_add(1);
  const auto taken = calls_.Take();
  if (!taken.has_value()) {
    ring_.Drop();
    return nullptr;
  }
  CallSlot& slot = calls_[taken->first];
  const int64_t now_ns = Now();
  slot.communicator = caller.communicator;
  slot.name = names_[static_cast<size_t>(call.kind)].load(std::memory_order_relaxed);
  slot.group = caller.group;
  slot.type = call.type;
  slot.sequence = sequence;
  slot.peer = is_message ? call.peer : -1;
  slot.bytes = BytesOf(call, caller.ranks);
  slot.count = call.count;
  slot.check = CheckOf(call);
  slot.start_ns = now_ns;
  slot.last_ns = now_ns;
  slot.kernels_ended = 0;
  slot.kernels_expected = static_cast<uint16_t>(kernels);
  const bool begins = slot.kernels_expected == 0;
  slot.reported = begins;
  if (begins) ring_.Write(slot.ToRecord(RecordKind::kCall));
  return EventHandle{EventKind::kCall, 0, taken->first, taken->second}.ToPointer();
}

// `change` gives the state after `state`. Where the call has ended with that, its slot is free, and
// whoever frees it writes the record.
template <typename Change>
void ProfiledCalls::ChangeState(const EventHandle& handle, Change change) {
  if (handle.index >= kCallsMax) return;
  CallSlot& call = calls_[handle.index];
  uint64_t bits = call.state.load(std::memory_order_acquire);
  while (true) {
    const SlotState state{bits};
    if (!state.busy() || state.generation() != handle.generation) return;
    SlotState next{change(state)};
    const uint16_t expected = call.kernels_expected;
    const bool ended = next.stopped() && next.parts() == 0 &&
                       (expected == 0 ? next.seen() : call.kernels_ended >= expected);
    if (!ended) {
      if (call.state.compare_exchange_weak(bits, next.bits, std::memory_order_acq_rel)) return;
      continue;
    }
    const CallRecord done = call.ToRecord(RecordKind::kDone);
    next.bits &= ~SlotState::kBusy;
    if (!call.state.compare_exchange_weak(bits, next.bits, std::memory_order_acq_rel)) continue;
    ring_.Write(done);
    return;
  }
}

// Opens a call that has ended again.
bool ProfiledCalls::AddPart(const EventHandle& handle) {
  if (handle.kind != EventKind::kCall || handle.index >= kCallsMax) return false;
  CallSlot& call = calls_[handle.index];
  uint64_t bits = call.state.load(std::memory_order_acquire);
  while (SlotState{bits}.generation() == handle.generation &&
         SlotState{bits}.parts() < SlotState::kPartsMask) {
    const bool again = !SlotState{bits}.busy();
    const uint64_t next = (bits | SlotState::kBusy | SlotState::kSeen) + 1;
    if (!call.state.compare_exchange_weak(bits, next, std::memory_order_acq_rel)) continue;
    if (again && call.reported) ring_.Write(call.ToRecord(RecordKind::kCall));
    return true;
  }
  return false;
}

void ProfiledCalls::EndPart(const EventHandle& handle) {
  if (handle.index >= kCallsMax) return;
  calls_[handle.index].last_ns = Now();
  ChangeState(handle,
              [](SlotState state) { return state.parts() > 0 ? state.bits - 1 : state.bits; });
}

void* ProfiledCalls::StartKernel(void* call) {
  EventHandle handle = EventHandle::Of(call);
  if (!AddPart(handle)) return nullptr;
  CallSlot& slot = calls_[handle.index];
  if (!slot.reported.exchange(true)) {
    slot.start_ns = Now();
    ring_.Write(slot.ToRecord(RecordKind::kCall));
  }
  handle.kind = EventKind::kKernel;
  return handle.ToPointer();
}

void ProfiledCalls::Stop(const EventHandle& handle) {
  CallSlot* const call = calls_.Find(handle);
  if (call == nullptr) return;
  // A part that has ended before says when the call did.
  if (!SlotState{call->state}.seen()) call->last_ns = Now();
  ChangeState(handle, [](SlotState state) { return state.bits | SlotState::kStopped; });
}

void ProfiledCalls::StopKernel(const EventHandle& kernel) {
  CallSlot* const call = calls_.Find(kernel);
  if (call == nullptr) return;
  call->kernels_ended.fetch_add(1);
  EndPart(kernel);
}

// Frees a call that is enqueued and has had no part under way for some time. One whose kernels are
// to come is behind others on its GPU, or is none of the network's: a kernel opens it again.
void ProfiledCalls::Settle(CallSlot& call, int64_t now_ns) {
  uint64_t bits = call.state.load(std::memory_order_acquire);
  const SlotState state{bits};
  if (!state.busy() || !state.stopped() || state.parts() > 0) return;
  if (now_ns - call.last_ns < kSettleNs) return;
  const CallRecord done = call.ToRecord(RecordKind::kDone);
  const bool begun = call.reported || state.seen();
  if (call.state.compare_exchange_strong(bits, bits & ~SlotState::kBusy) && begun)
    ring_.Write(done);
}

void ProfiledCalls::Settle(int64_t now_ns) {
  for (size_t i = 0; i < kCallsMax; ++i) Settle(calls_[i], now_ns);
}

bool ProfiledCalls::HasPartsUnderWay(uint16_t communicator) {
  for (size_t i = 0; i < kCallsMax; ++i) {
    const SlotState state{calls_[i].state.load(std::memory_order_acquire)};
    if (state.busy() && state.parts() > 0 && calls_[i].communicator == communicator) return true;
  }
  return false;
}

void ProfiledCalls::Abandon(uint16_t communicator, int64_t now_ns) {
  for (size_t i = 0; i < kCallsMax; ++i) {
    CallSlot& call = calls_[i];
    uint64_t bits = call.state.load(std::memory_order_acquire);
    if (!SlotState{bits}.busy() || call.communicator != communicator) continue;
    CallRecord done = call.ToRecord(RecordKind::kDone);
    const bool given_up = SlotState{bits}.parts() > 0;
    const bool begun = call.reported || SlotState{bits}.seen();
    if (!call.state.compare_exchange_strong(bits, bits & ~SlotState::kBusy) || !begun) continue;
    if (given_up) {
      done.code = static_cast<uint8_t>(absl::StatusCode::kAborted);
      done.end_ns = now_ns;
      ring_.MarkFailed();
    }
    ring_.Write(done);
  }
}

}  // namespace weft::nccl
