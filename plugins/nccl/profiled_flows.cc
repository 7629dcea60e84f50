#include "plugins/nccl/profiled_flows.h"

#include <algorithm>
#include <bit>

#include "plugins/nccl/profiled_link.h"

namespace weft::nccl {

net::FlowCounters FlowSlot::Counters() const {
  net::FlowCounters out;
  // In this order none of the later numbers is larger than an earlier one.
  out.bytes_done = bytes_done.load(std::memory_order_relaxed);
  out.messages_done = done.load(std::memory_order_acquire);
  out.bytes_matched = out.bytes_transmitted = bytes_matched.load(std::memory_order_relaxed);
  out.messages_matched = std::max(out.messages_done, matched.load(std::memory_order_acquire));
  out.messages_posted = std::max(out.messages_matched, posted.load(std::memory_order_acquire));
  out.bytes_done = std::min(out.bytes_done, out.bytes_matched);
  out.repeats = repeats.load(std::memory_order_relaxed);
  out.rtt_ns = rtt_ns.load(std::memory_order_relaxed);
  return out;
}

void FlowSlot::Clear() {
  posted = matched = done = 0;
  bytes_matched = bytes_done = repeats = 0;
  rtt_ns = 0;
  watch = {};
}

FlowSlot* ProfiledFlows::FlowOf(uint16_t communicator, int peer, bool sends) {
  const uint64_t key = FlowSlot::KeyOf(communicator, peer, sends);
  const uint64_t hash = key * 0x9e3779b97f4a7c15 >> 32;
  FlowSlot* free = nullptr;
  constexpr size_t kTries = 64;
  for (size_t i = 0; i < kTries; ++i) {
    FlowSlot& flow = flows_[(hash + i) % kFlowsMax];
    const uint64_t found = flow.key.load(std::memory_order_acquire);
    if (found == key) return &flow;
    if ((found == 0 || found == FlowSlot::kRemoved) && free == nullptr) free = &flow;
    if (found == 0) break;
  }
  if (free == nullptr) {
    ring_.Drop();
    return nullptr;
  }
  // One thread drives the operations of a communicator: no other adds this flow meanwhile.
  uint64_t before = free->key;
  if (before != 0 && before != FlowSlot::kRemoved) return nullptr;
  if (!free->key.compare_exchange_strong(before, key)) return nullptr;
  return free;
}

void* ProfiledFlows::StartOperation(uint16_t communicator, void* call, int peer, bool sends) {
  const auto taken = operations_.Take();
  if (!taken.has_value()) {
    ring_.Drop();
    return nullptr;
  }
  OperationSlot& slot = operations_[taken->first];
  slot.communicator = communicator;
  slot.sends = sends;
  slot.flow = FlowOf(communicator, peer, sends);
  for (auto& step : slot.steps) step = 0;
  slot.posted_steps = slot.matched_steps = slot.done_steps = 0;
  slot.posted = slot.matched = slot.done = 0;
  slot.bytes = slot.bytes_done = 0;
  slot.bytes_before = OperationSlot::kNotKnown;
  const EventHandle part_of = EventHandle::Of(call);
  slot.call = calls_.AddPart(part_of) ? std::bit_cast<uint64_t>(part_of) : 0;
  return EventHandle{EventKind::kOperation, 0, taken->first, taken->second}.ToPointer();
}

void ProfiledFlows::StopStep(const EventHandle& handle) {
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  const uint64_t step = operation->steps[handle.step].exchange(0);
  FlowSlot* const flow = operation->flow;
  const uint64_t stage = step & OperationSlot::kStages;
  if (flow == nullptr || stage == 0) return;
  if (stage == OperationSlot::kPosted) flow->Match(0);
  if (stage == OperationSlot::kPosted || operation->sends) flow->Finish(step >> 2);
}

void ProfiledFlows::StopOperation(const EventHandle& handle) {
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  FlowSlot* const flow = operation->flow;
  const auto call = std::bit_cast<EventHandle>(operation->call.load());
  for (size_t i = 0; i < OperationSlot::kSteps; ++i) {  // steps whose end NCCL did not say
    EventHandle step = handle;
    step.kind = EventKind::kStep;
    step.step = static_cast<uint8_t>(i);
    StopStep(step);
  }
  if (flow != nullptr) {
    const uint64_t posted = operation->posted, matched = operation->matched;
    for (uint64_t i = matched; i < posted; ++i) flow->Match(0);
    for (uint64_t i = operation->done; i < posted; ++i) {
      flow->Finish(i + 1 == posted ? operation->bytes - operation->bytes_done : 0);
    }
  }
  uint64_t bits = operation->state;
  if (SlotState{bits}.generation() != handle.generation || !SlotState{bits}.busy()) return;
  if (!operation->state.compare_exchange_strong(bits, bits & ~SlotState::kBusy)) return;
  if (call.kind == EventKind::kCall) calls_.EndPart(call);
}

void* ProfiledFlows::StartStep(void* operation, int step) {
  EventHandle handle = EventHandle::Of(operation);
  if (handle.kind != EventKind::kOperation) return nullptr;
  OperationSlot* const slot = operations_.Find(handle);
  if (slot == nullptr) return nullptr;
  handle.kind = EventKind::kStep;
  handle.step = static_cast<uint8_t>(static_cast<unsigned>(step) % OperationSlot::kSteps);
  StopStep(handle);  // a step whose end NCCL did not say
  return handle.ToPointer();
}

void ProfiledFlows::PostStep(void* event) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kStep) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  uint64_t before = 0;
  if (!operation->steps[handle.step].compare_exchange_strong(before, OperationSlot::kPosted)) {
    return;  // at every poll
  }
  if (FlowSlot* flow = operation->flow; flow != nullptr) flow->Post();
}

// A receive whose bytes are there is done as far as the network goes.
void ProfiledFlows::MatchStep(void* event, uint64_t bytes) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kStep) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  PostStep(event);
  uint64_t before = OperationSlot::kPosted;
  if (!operation->steps[handle.step].compare_exchange_strong(
          before, bytes << 2 | OperationSlot::kMatched)) {
    return;
  }
  FlowSlot* const flow = operation->flow;
  if (flow == nullptr) return;
  flow->Match(bytes);
  if (!operation->sends) flow->Finish(bytes);
}

void* ProfiledFlows::StartNet(void* step, int64_t id, const void* data) {
  const EventHandle handle = EventHandle::Of(step);
  if (id != kNetEventId || data == nullptr || handle.kind != EventKind::kStep) return nullptr;
  OperationSlot* const operation = operations_.Find(handle);
  FlowSlot* const flow = operation == nullptr ? nullptr : operation->flow.load();
  if (flow == nullptr) return nullptr;
  const auto* link = static_cast<const ProfiledLink*>(data);
  flow->rtt_ns = link->rtt_ns;
  flow->repeats.fetch_add(link->repeats, std::memory_order_relaxed);
  return nullptr;  // it has no end
}

void ProfiledFlows::Count(void* event, uint64_t bytes) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kOperation) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  uint64_t unknown = OperationSlot::kNotKnown;
  operation->bytes_before.compare_exchange_strong(unknown, bytes);
}

void ProfiledFlows::Post(void* event, int steps) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kOperation) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr || steps <= operation->posted_steps) return;
  operation->posted_steps = steps;
  ++operation->posted;
  if (FlowSlot* flow = operation->flow; flow != nullptr) flow->Post();
}

void ProfiledFlows::Match(void* event, int steps, uint64_t bytes) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kOperation) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr || steps <= operation->matched_steps) return;
  Post(event, steps);
  const uint64_t now = bytes - std::min(bytes, operation->bytes_before.load());
  const uint64_t before = operation->bytes.exchange(std::max(now, operation->bytes.load()));
  operation->matched_steps = steps;
  ++operation->matched;
  FlowSlot* const flow = operation->flow;
  const uint64_t more = operation->bytes - before;
  if (flow != nullptr) flow->Match(more);
  if (operation->sends) return;
  ++operation->done;
  operation->bytes_done += more;
  if (flow != nullptr) flow->Finish(more);
}

// NCCL says how many bytes were sent, not of which steps: those that are done have an equal part.
void ProfiledFlows::Finish(void* event, int steps, uint64_t bytes) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kOperation) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr || !operation->sends || steps <= operation->done_steps) return;
  operation->done_steps = steps;
  FlowSlot* const flow = operation->flow;
  // 2.23 adds a step's bytes only after it has said that the step is transmitted.
  const uint64_t now = bytes - std::min(bytes, operation->bytes_before.load());
  const uint64_t before = operation->bytes.exchange(std::max(now, operation->bytes.load()));
  const uint64_t more = operation->bytes - before;
  if (flow != nullptr) flow->bytes_matched.fetch_add(more, std::memory_order_relaxed);
  const uint64_t under_way = operation->matched - std::min(operation->done, operation->matched);
  if (under_way == 0) return;
  const uint64_t part = (operation->bytes - operation->bytes_done) / under_way;
  ++operation->done;
  operation->bytes_done += part;
  if (flow != nullptr) flow->Finish(part);
}

void ProfiledFlows::SampleFlow(FlowSlot& flow, int64_t now_ns) {
  FlowRecord record;
  if (!flow.watch.Sample(flow.Counters(), now_ns, &record)) return;
  const uint64_t key = flow.key;
  record.sends = static_cast<uint8_t>(key >> 32 & 1);
  record.peer = static_cast<int32_t>(key & 0xffffffff);
  record.name = names_[flow.communicator()];
  ring_.Write(record);
}

void ProfiledFlows::Sample(int64_t now_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (FlowSlot& flow : flows_) {
    const uint64_t key = flow.key.load(std::memory_order_acquire);
    if (key != 0 && key != FlowSlot::kRemoved) SampleFlow(flow, now_ns);
  }
}

void ProfiledFlows::Abandon(uint16_t communicator, int64_t now_ns) {
  for (size_t i = 0; i < kOperationsMax; ++i) {
    OperationSlot& operation = operations_[i];
    uint64_t bits = operation.state.load(std::memory_order_acquire);
    if (!SlotState{bits}.busy() || operation.communicator != communicator) continue;
    operation.state.compare_exchange_strong(bits, bits & ~SlotState::kBusy);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (FlowSlot& flow : flows_) {
    const uint64_t key = flow.key;
    if (key == 0 || key == FlowSlot::kRemoved || flow.communicator() != communicator) continue;
    SampleFlow(flow, now_ns);
    flow.Clear();
    flow.key = FlowSlot::kRemoved;
  }
}

}  // namespace weft::nccl
