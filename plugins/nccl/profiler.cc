#include "plugins/nccl/profiler.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/settings.h"
#include "plugins/nccl/job_place.h"
#include "plugins/nccl/log.h"
#include "plugins/nccl/profiled_link.h"
#include "plugins/nccl/thread_without_signals.h"

namespace weft::nccl {
namespace {

constexpr auto kSamplePeriod = std::chrono::milliseconds(100);
// The proxy starts its operations as soon as it turns; later ones open their call again.
constexpr int64_t kSettleNs = 500'000'000;
// For the parts of a communicator's last calls to end, whose threads may serve others too.
constexpr int kCloseTries = 50;

constexpr std::array<const char*, kCallKinds> kNames = {
    "broadcast", "reduce",  "all_gather", "reduce_scatter", "all_reduce", "send_receive",
    "send",      "receive", "all_to_all", "gather",         "scatter",    "other"};

bool IsMessage(CallKind kind) {
  return kind == CallKind::kSend || kind == CallKind::kReceive || kind == CallKind::kSendReceive;
}

// Of the whole buffer, where NCCL's count is one rank's.
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

// The user's name, of which there may be several, and what tells them apart; short enough for
// "nccl NAME" to be a name in the ring. No spaces: it is a word of a line.
std::string GroupName(const ProfiledCommunicator& about) {
  constexpr size_t kUserBytes = 16;
  std::string name;
  for (const char* c = about.name; c != nullptr && *c != '\0' && name.size() < kUserBytes; ++c) {
    name += *c > ' ' && *c < 127 ? *c : '_';
  }
  return absl::StrFormat("%s-%08x", name.empty() ? "nccl" : name,
                         static_cast<uint32_t>(about.id ^ about.id >> 32));
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

Profiler& Profiler::OfProcess() {
  // Never deleted: NCCL's threads may outlive static objects.
  static Profiler* const profiler = new Profiler;
  struct Guard {
    ~Guard() { profiler->End(); }
  };
  static const Guard guard;
  return *profiler;
}

template <typename T>
void Profiler::Write(const T& record) {
  writers_.fetch_add(1);
  if (Records* records = records_.load(); records != nullptr) records->Write(record);
  writers_.fetch_sub(1);
}

void Profiler::Drop() {
  if (dropped_.fetch_add(1, std::memory_order_relaxed) == 0) {
    LogInfo("profiler: more is under way than it has room for; what does not fit is left out");
  }
}

// ---- Communicators

// Reads the settings for the first of several communicators at a time.
bool Profiler::Begin() {
  if (owner_pid_ !=
      static_cast<int>(getpid())) {  // a child of fork: the ring and the sampler are its parent's
    records_ = nullptr;
    static_cast<void>(sampler_.release());
    open_ = 0;
    owner_pid_ = static_cast<int>(getpid());
  }
  if (open_ > 0) return true;
  Settings settings(LibrarySettings());
  if (absl::Status status = settings.SetFromEnvironment(/*strict=*/false); !status.ok()) {
    LogWarning(absl::StrCat("profiler: ", status.message(), "; nothing is recorded"));
    return false;
  }
  const std::string& mode = settings.Text("nccl.profiler");
  if (mode == "off" || !settings.Bool("records.enabled")) return false;
  // NCCL finds a profiler in the net plugin's library, too, where nobody has asked for one.
  kernels_ =
      mode == "kernels" || (mode == "auto" && std::getenv("NCCL_PROFILER_PLUGIN") != nullptr);
  ring_tried_ = false;
  return true;
}

void* Profiler::Open(const ProfiledCommunicator* about) try {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!Begin()) return nullptr;
  const auto taken = communicators_.Take();
  if (!taken.has_value()) {
    Drop();
    return nullptr;
  }
  Communicator& communicator = communicators_[taken->first];
  communicator.introduced = communicator.muted = false;
  communicator.sequence = 0;
  communicator.rank = -1;
  communicator.ranks = 0;
  communicator.group = communicator.flows = 0;
  communicator.id = 0;
  ++open_;
  if (about != nullptr) Describe(communicator, *about);
  return EventHandle{EventKind::kCommunicator, 0, taken->first, taken->second}.ToPointer();
} catch (const std::exception& error) {
  LogWarning(absl::StrCat("profiler: ", error.what()));
  return nullptr;
}

void Profiler::Introduce(void* context, const ProfiledCommunicator& about) try {
  Communicator* communicator = communicators_.Find(EventHandle::Of(context));
  if (communicator == nullptr) return;
  if (communicator->introduced.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!communicator->introduced) Describe(*communicator, about);
} catch (const std::exception& error) {
  LogWarning(absl::StrCat("profiler: ", error.what()));
}

void Profiler::OpenRing(const ProfiledCommunicator& about) {
  ring_tried_ = true;
  Settings settings(LibrarySettings());
  if (!settings.SetFromEnvironment(/*strict=*/false).ok()) return;
  const JobPlace place = PlaceFromEnvironment();
  rank_ = place.rank.value_or(std::max(about.rank, 0));
  world_size_ = place.rank.has_value() ? place.world_size : std::max(about.ranks, rank_ + 1);
  const std::string job = place.job.empty() ? absl::StrFormat("nccl-%016x", about.id) : place.job;
  // Beside a ring of the job that the process may have from another library.
  std::unique_ptr<Records> records =
      Records::FromSettings(settings, absl::StrCat(job, "/nccl"), rank_, world_size_);
  if (records == nullptr) return;
  for (size_t i = 0; i < kCallKinds; ++i) names_[i] = records->Name(kNames[i]);
  LogInfo(
      absl::StrCat("profiler: records of job ", job, ", rank ", rank_, ", in ", records->path()));
  {
    std::lock_guard<std::mutex> lock(sample_mutex_);
    dropped_before_ = dropped();
    said_dropped_ = 0;
  }
  records_ = records.release();
  StartSampler();
}

// A communicator of all ranks in their order numbers its peers as the job does; which ranks those
// of another are readers find by the lines of all its members.
void Profiler::Describe(Communicator& communicator, const ProfiledCommunicator& about) {
  if (!ring_tried_) OpenRing(about);
  communicator.id = about.id;
  communicator.rank = about.rank;
  communicator.ranks = about.ranks;
  for (size_t i = 0; i < kCommunicatorsMax; ++i) {
    const Communicator& other = communicators_[i];
    if (&other == &communicator || !SlotState{other.state}.busy() || !other.introduced) continue;
    if (other.id != about.id || other.rank == about.rank || other.muted) continue;
    LogInfo(absl::StrCat("profiler: this process holds ranks ", other.rank.load(), " and ",
                         about.rank, " of one communicator; only the first is recorded"));
    communicator.muted = true;
    break;
  }
  if (Records* records = records_; records != nullptr && !communicator.muted) {
    const std::string group = GroupName(about);
    const bool is_world = about.ranks == world_size_ && about.rank == rank_;
    communicator.group = records->Name(group);
    communicator.flows = records->Name(absl::StrCat("nccl ", group));
    const std::string ranks = world_size_ > 1 ? absl::StrCat("0-", world_size_ - 1) : "0";
    records->Say(is_world ? absl::StrCat("group ", group, " ", ranks)
                          : absl::StrCat("member ", group, " ", about.rank, " ", about.ranks));
  }
  communicator.introduced.store(true, std::memory_order_release);
}

void Profiler::Close(void* context) {
  const EventHandle handle = EventHandle::Of(context);
  if (handle.kind != EventKind::kCommunicator) return;
  for (int tries = 0; tries < kCloseTries; ++tries) {
    bool under_way = false;
    for (size_t i = 0; i < kCallsMax && !under_way; ++i) {
      const SlotState state{calls_[i].state.load(std::memory_order_acquire)};
      under_way = state.busy() && state.parts() > 0 && calls_[i].communicator == handle.index;
    }
    if (!under_way) break;
    usleep(1000);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Communicator* communicator = communicators_.Find(handle);
  if (communicator == nullptr) return;
  Abandon(handle.index, Now());
  uint64_t bits = communicator->state;
  communicator->state = bits & ~SlotState::kBusy;
  if (--open_ > 0) return;
  StopSampler();
  CloseRing();
}

// What is under way when a communicator ends was given up by NCCL.
void Profiler::Abandon(uint16_t communicator, int64_t now_ns) {
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
      if (Records* records = records_; records != nullptr) records->MarkFailed();
    }
    Write(done);
  }
  for (size_t i = 0; i < kOperationsMax; ++i) {
    OperationSlot& operation = operations_[i];
    uint64_t bits = operation.state.load(std::memory_order_acquire);
    if (!SlotState{bits}.busy() || operation.communicator != communicator) continue;
    operation.state.compare_exchange_strong(bits, bits & ~SlotState::kBusy);
  }
  std::lock_guard<std::mutex> lock(sample_mutex_);
  for (FlowSlot& flow : flows_) {
    const uint64_t key = flow.key;
    if (key == 0 || key == FlowSlot::kRemoved || flow.communicator() != communicator) continue;
    SampleFlow(flow, now_ns);
    flow.Clear();
    flow.key = FlowSlot::kRemoved;
  }
}

void Profiler::CloseRing() {
  const std::unique_ptr<Records> records(records_.exchange(nullptr));
  while (writers_.load() != 0) sched_yield();  // no thread holds it for longer than a record takes
}

void Profiler::End() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || owner_pid_ != static_cast<int>(getpid()) || open_ == 0) return;
  StopSampler();
  CloseRing();
}

// ---- Calls

void* Profiler::StartCall(void* context, const ProfiledCall& call) {
  const EventHandle owner = EventHandle::Of(context);
  if (owner.kind != EventKind::kCommunicator) return nullptr;
  Communicator* communicator = communicators_.Find(owner);
  if (communicator == nullptr || records_.load(std::memory_order_relaxed) == nullptr ||
      !communicator->introduced.load(std::memory_order_acquire) || communicator->muted) {
    return nullptr;
  }
  const bool is_message = IsMessage(call.kind);
  const uint32_t sequence = is_message ? 0 : communicator->sequence.fetch_add(1);
  const auto taken = calls_.Take();
  if (!taken.has_value()) {
    Drop();
    return nullptr;
  }
  CallSlot& slot = calls_[taken->first];
  const int64_t now_ns = Now();
  slot.communicator = owner.index;
  slot.name = names_[static_cast<size_t>(call.kind)].load(std::memory_order_relaxed);
  slot.group = communicator->group.load(std::memory_order_relaxed);
  slot.type = call.type;
  slot.sequence = sequence;
  slot.peer = is_message ? call.peer : -1;
  slot.bytes = BytesOf(call, communicator->ranks);
  slot.count = call.count;
  slot.check = CheckOf(call);
  slot.start_ns = now_ns;
  slot.last_ns = now_ns;
  slot.kernels_ended = 0;
  slot.kernels_expected = static_cast<uint16_t>(kernels() ? std::max(call.channels, 0) : 0);
  const bool begins = slot.kernels_expected == 0;
  slot.reported = begins;
  if (begins) Write(slot.ToRecord(RecordKind::kCall));
  return EventHandle{EventKind::kCall, 0, taken->first, taken->second}.ToPointer();
}

// `change` gives the state after `state`. Where the call has ended with that, its slot is free, and
// whoever frees it writes the record.
template <typename Change>
void Profiler::ChangeCall(const EventHandle& handle, Change change) {
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
    Write(done);
    return;
  }
}

// Opens a call that has ended again.
bool Profiler::AddPart(const EventHandle& handle) {
  if (handle.kind != EventKind::kCall || handle.index >= kCallsMax) return false;
  CallSlot& call = calls_[handle.index];
  uint64_t bits = call.state.load(std::memory_order_acquire);
  while (SlotState{bits}.generation() == handle.generation &&
         SlotState{bits}.parts() < SlotState::kPartsMask) {
    const bool again = !SlotState{bits}.busy();
    const uint64_t next = (bits | SlotState::kBusy | SlotState::kSeen) + 1;
    if (!call.state.compare_exchange_weak(bits, next, std::memory_order_acq_rel)) continue;
    if (again && call.reported) Write(call.ToRecord(RecordKind::kCall));
    return true;
  }
  return false;
}

void Profiler::EndPart(const EventHandle& handle) {
  if (handle.index >= kCallsMax) return;
  calls_[handle.index].last_ns = Now();
  ChangeCall(handle,
             [](SlotState state) { return state.parts() > 0 ? state.bits - 1 : state.bits; });
}

void* Profiler::StartKernel(void* call) {
  EventHandle handle = EventHandle::Of(call);
  if (!AddPart(handle)) return nullptr;
  CallSlot& slot = calls_[handle.index];
  if (!slot.reported.exchange(true)) {
    slot.start_ns = Now();
    Write(slot.ToRecord(RecordKind::kCall));
  }
  handle.kind = EventKind::kKernel;
  return handle.ToPointer();
}

void Profiler::Stop(void* event) {
  const EventHandle handle = EventHandle::Of(event);
  switch (handle.kind) {
    case EventKind::kCall:
      if (CallSlot* call = calls_.Find(handle); call != nullptr) {
        // A part that has ended before says when the call did.
        if (!SlotState{call->state}.seen()) call->last_ns = Now();
        ChangeCall(handle, [](SlotState state) { return state.bits | SlotState::kStopped; });
      }
      break;
    case EventKind::kKernel:
      if (CallSlot* call = calls_.Find(handle); call != nullptr) {
        call->kernels_ended.fetch_add(1);
        EndPart(handle);
      }
      break;
    case EventKind::kOperation:
      EndOperation(handle);
      break;
    case EventKind::kStep:
      if (OperationSlot* operation = operations_.Find(handle); operation != nullptr) {
        const uint64_t step = operation->steps[handle.step].exchange(0);
        FlowSlot* const flow = operation->flow;
        const uint64_t stage = step & OperationSlot::kStages;
        if (flow == nullptr || stage == 0) break;
        if (stage == OperationSlot::kPosted) flow->Match(0);
        if (stage == OperationSlot::kPosted || operation->sends) flow->Finish(step >> 2);
      }
      break;
    case EventKind::kNone:
    case EventKind::kGroup:
    case EventKind::kCommunicator:
    case EventKind::kNet:
      break;
  }
}

// ---- What the proxy does

FlowSlot* Profiler::FlowOf(uint16_t communicator, int peer, bool sends) {
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
    Drop();
    return nullptr;
  }
  // One thread drives the operations of a communicator: no other adds this flow meanwhile.
  uint64_t before = free->key;
  if (before != 0 && before != FlowSlot::kRemoved) return nullptr;
  if (!free->key.compare_exchange_strong(before, key)) return nullptr;
  return free;
}

void* Profiler::StartOperation(void* context, void* call, int pid, int peer, bool sends) {
  // Of another process, whose GPU uses a NIC near this one's (PXN): it shows its own calls.
  if (pid != owner_pid_) return nullptr;
  const EventHandle owner = EventHandle::Of(context);
  if (owner.kind != EventKind::kCommunicator) return nullptr;
  Communicator* communicator = communicators_.Find(owner);
  if (communicator == nullptr || records_.load(std::memory_order_relaxed) == nullptr ||
      communicator->muted) {
    return nullptr;
  }
  const auto taken = operations_.Take();
  if (!taken.has_value()) {
    Drop();
    return nullptr;
  }
  OperationSlot& slot = operations_[taken->first];
  slot.communicator = owner.index;
  slot.sends = sends;
  slot.flow = FlowOf(owner.index, peer, sends);
  for (auto& step : slot.steps) step = 0;
  slot.posted_steps = slot.matched_steps = slot.done_steps = 0;
  slot.posted = slot.matched = slot.done = 0;
  slot.bytes = slot.bytes_done = 0;
  slot.bytes_before = OperationSlot::kNotKnown;
  const EventHandle part_of = EventHandle::Of(call);
  slot.call = AddPart(part_of) ? std::bit_cast<uint64_t>(part_of) : 0;
  return EventHandle{EventKind::kOperation, 0, taken->first, taken->second}.ToPointer();
}

void Profiler::EndOperation(const EventHandle& handle) {
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  FlowSlot* const flow = operation->flow;
  const auto call = std::bit_cast<EventHandle>(operation->call.load());
  for (size_t i = 0; i < OperationSlot::kSteps; ++i) {  // steps whose end NCCL did not say
    EventHandle step = handle;
    step.kind = EventKind::kStep;
    step.step = static_cast<uint8_t>(i);
    Stop(step.ToPointer());
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
  if (call.kind == EventKind::kCall) EndPart(call);
}

void* Profiler::StartStep(void* operation, int step) {
  EventHandle handle = EventHandle::Of(operation);
  if (handle.kind != EventKind::kOperation) return nullptr;
  OperationSlot* const slot = operations_.Find(handle);
  if (slot == nullptr) return nullptr;
  handle.kind = EventKind::kStep;
  handle.step = static_cast<uint8_t>(static_cast<unsigned>(step) % OperationSlot::kSteps);
  Stop(handle.ToPointer());  // a step whose end NCCL did not say
  return handle.ToPointer();
}

void Profiler::PostStep(void* event) {
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
void Profiler::MatchStep(void* event, uint64_t bytes) {
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

void* Profiler::StartNet(void* step, int64_t id, const void* data) {
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

void Profiler::Count(void* event, uint64_t bytes) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kOperation) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr) return;
  uint64_t unknown = OperationSlot::kNotKnown;
  operation->bytes_before.compare_exchange_strong(unknown, bytes);
}

void Profiler::Post(void* event, int steps) {
  const EventHandle handle = EventHandle::Of(event);
  if (handle.kind != EventKind::kOperation) return;
  OperationSlot* const operation = operations_.Find(handle);
  if (operation == nullptr || steps <= operation->posted_steps) return;
  operation->posted_steps = steps;
  ++operation->posted;
  if (FlowSlot* flow = operation->flow; flow != nullptr) flow->Post();
}

void Profiler::Match(void* event, int steps, uint64_t bytes) {
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
void Profiler::Finish(void* event, int steps, uint64_t bytes) {
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

// ---- The sampler

void Profiler::StartSampler() try {
  stop_ = false;
  sampler_ = std::make_unique<std::thread>(ThreadWithoutSignals([this] {
    std::unique_lock<std::mutex> lock(sample_mutex_);
    while (!wake_.wait_for(lock, kSamplePeriod, [this] { return stop_; })) {
      lock.unlock();
      Tick(Now());
      lock.lock();
    }
  }));
} catch (const std::exception& error) {
  LogWarning(absl::StrCat("profiler: no thread that samples flows: ", error.what()));
}

void Profiler::StopSampler() {
  if (sampler_ == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(sample_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  sampler_->join();
  sampler_.reset();
}

void Profiler::SampleFlow(FlowSlot& flow, int64_t now_ns) {
  FlowRecord record;
  if (!flow.watch.Sample(flow.Counters(), now_ns, &record)) return;
  const uint64_t key = flow.key;
  record.sends = static_cast<uint8_t>(key >> 32 & 1);
  record.peer = static_cast<int32_t>(key & 0xffffffff);
  record.name = communicators_[flow.communicator()].flows;
  Write(record);
}

// Frees a call that is enqueued and has had no part under way for some time. One whose kernels are
// to come is behind others on its GPU, or is none of the network's: a kernel opens it again.
void Profiler::Settle(CallSlot& call, int64_t now_ns) {
  uint64_t bits = call.state.load(std::memory_order_acquire);
  const SlotState state{bits};
  if (!state.busy() || !state.stopped() || state.parts() > 0) return;
  if (now_ns - call.last_ns < kSettleNs) return;
  const CallRecord done = call.ToRecord(RecordKind::kDone);
  const bool begun = call.reported || state.seen();
  if (call.state.compare_exchange_strong(bits, bits & ~SlotState::kBusy) && begun) Write(done);
}

void Profiler::Tick(int64_t now_ns) {
  for (size_t i = 0; i < kCallsMax; ++i) Settle(calls_[i], now_ns);
  std::lock_guard<std::mutex> lock(sample_mutex_);
  for (FlowSlot& flow : flows_) {
    const uint64_t key = flow.key.load(std::memory_order_acquire);
    if (key != 0 && key != FlowSlot::kRemoved) SampleFlow(flow, now_ns);
  }
  writers_.fetch_add(1);
  if (Records* records = records_.load(); records != nullptr) {
    records->SetAlive(now_ns);
    // A line for each doubling: what is said stays.
    const uint64_t dropped = this->dropped() - dropped_before_;
    if (dropped >= std::max<uint64_t>(1, 2 * said_dropped_)) {
      records->Say(absl::StrCat("dropped ", dropped));
      said_dropped_ = dropped;
    }
  }
  writers_.fetch_sub(1);
}

}  // namespace weft::nccl
