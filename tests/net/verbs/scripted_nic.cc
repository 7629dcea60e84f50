#include "tests/net/verbs/scripted_nic.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr std::chrono::seconds kDestroyPatience{20};  // of a queue pair that is held
constexpr uint64_t kAgainTicks = 8;                   // until a reliable message is sent again

enum class PairState : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kError };

void Ring(int fd) {
  const uint64_t one = 1;
  if (write(fd, &one, sizeof one) < 0) return;  // rung already
}

void Quiet(int fd) {
  uint64_t count = 0;
  if (read(fd, &count, sizeof count) < 0) return;
}

struct DeviceState;

struct QueueState {
  DeviceState* device = nullptr;
  size_t depth = 0;
  std::deque<NicCompletion> completions;
  bool armed = false;
};

struct WorkRequest {
  // Of a message (is_message): id, local, length, local_key, signaled; of a read (is_read) all but
  // what is said beside it.
  NicWrite write;
  bool is_message = false, is_read = false;
  std::vector<std::byte> copy;  // inline
  ScriptedFate fate;
  bool fate_known = false;
  uint64_t earliest = 0;  // tick
};

struct ReceiveQueueState {
  DeviceState* device = nullptr;
  size_t depth = 0;
  std::deque<NicReceive> receives;
};

struct PairStatus {
  DeviceState* device = nullptr;
  QueueState* queue = nullptr;
  ReceiveQueueState* shared = nullptr;
  NicQueuePairOptions options;
  uint32_t number = 0;
  PairState state = PairState::kReset;
  NicPath path;
  std::deque<WorkRequest> writes;
  std::deque<uint64_t> receives;
};

struct MemoryState {
  DeviceState* device = nullptr;
  uintptr_t begin = 0, end = 0;
  bool readable = false;
  // Of a DMA-BUF: where the test's eyes do not look, the memory itself, and what is on its way.
  std::byte* mapped = nullptr;
  std::vector<std::pair<size_t, std::vector<std::byte>>> unseen;
};

struct DeviceState {
  ScriptedDeviceOptions options;
  bool active = true;
  int completion_fd = -1, event_fd = -1;
  std::deque<NicEvent> events;
  double rate = 0, budget = 0;
  uint64_t bytes = 0;
  int messages_dropped = 0;
  int opened = 0;  // while it is, there are descriptors
  std::vector<NicGid> gids;
};

struct Late {
  uint64_t due = 0;
  QueueState* queue = nullptr;
  NicCompletion completion;
};

std::vector<NicGid> GidsOf(const ScriptedDeviceOptions& options) {
  Gid link_local{};
  link_local[0] = 0xFE, link_local[1] = 0x80;
  Gid global{};
  if (options.ipv6) {
    global[0] = 0xFD;
  } else {
    global[10] = global[11] = 0xFF;
  }
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint8_t>(options.address >> (24 - 8 * i));
    link_local[12 + i] = global[12 + i] = byte;
  }
  link_local[8] = 2;
  if (!options.ethernet) return {{0, link_local, GidKind::kInfiniband}};
  return {{0, link_local, GidKind::kRoceV1},
          {1, link_local, GidKind::kRoceV2},
          {2, global, GidKind::kRoceV1},
          {3, global, GidKind::kRoceV2}};
}

}  // namespace

struct ScriptedFabric::Core {
  mutable std::mutex mutex;
  OnCall on_call;
  OnTransfer on_transfer;
  std::map<std::string, std::unique_ptr<DeviceState>> devices;
  std::map<uint32_t, PairStatus*> pairs;
  std::map<uint32_t, MemoryState> memory;
  std::vector<Late> late;
  uint32_t next_pair = 17, next_key = 0x1000;
  uint64_t tick = 0;
  int overruns = 0, not_ready = 0;
  bool holds_destroy = false;
  int destroyed_while_held = 0;
  std::condition_variable may_destroy;
  uint32_t sent_last = 0;  // the queue pair

  absl::Status Call(const char* call, const DeviceState* device) const {
    if (!on_call) return absl::OkStatus();
    return on_call(call, device == nullptr ? "" : device->options.name);
  }

  void Complete(QueueState* queue, const NicCompletion& completion) {
    if (queue->completions.size() >= queue->depth) ++overruns;
    queue->completions.push_back(completion);
    if (std::exchange(queue->armed, false)) Ring(queue->device->completion_fd);
  }
  void CompleteLater(QueueState* queue, const NicCompletion& completion, int ticks) {
    if (ticks <= 0) return Complete(queue, completion);
    late.push_back({tick + static_cast<uint64_t>(ticks), queue, completion});
  }

  bool Covers(uint32_t key, const DeviceState* device, uintptr_t begin, size_t size) const {
    auto found = memory.find(key);
    return found != memory.end() && found->second.device == device &&
           begin >= found->second.begin && begin + size <= found->second.end;
  }

  std::byte* At(uint32_t key, uintptr_t address) {
    const MemoryState& state = memory.at(key);
    if (state.mapped != nullptr) return state.mapped + (address - state.begin);
    return reinterpret_cast<std::byte*>(address);  // NOLINT: it is one
  }

  void Write(uint32_t key, uintptr_t address, const std::byte* from, size_t bytes) {
    MemoryState& state = memory.at(key);
    if (state.mapped == nullptr) {
      std::memcpy(At(key, address), from, bytes);
    } else {
      state.unseen.emplace_back(address - state.begin, std::vector<std::byte>(from, from + bytes));
    }
  }

  // What this device has written anywhere arrives before what it reads.
  NicStatus Read(const NicWrite& read, const DeviceState* device) {
    if (!Covers(read.remote_key, device, read.remote, read.length) ||
        !memory.at(read.remote_key).readable) {
      return NicStatus::kRemoteAccess;
    }
    for (auto& [key, state] : memory) {
      if (state.device != device) continue;
      for (const auto& [offset, bytes] : std::exchange(state.unseen, {})) {
        std::memcpy(state.mapped + offset, bytes.data(), bytes.size());
      }
    }
    std::memcpy(const_cast<std::byte*>(read.local), At(read.remote_key, read.remote), read.length);
    return NicStatus::kOk;
  }

  // The other end, if it would take what this one sends.
  PairStatus* RemoteOf(const PairStatus& pair) const {
    auto found = pairs.find(pair.path.remote_queue_pair);
    if (found == pairs.end()) return nullptr;
    PairStatus* remote = found->second;
    const bool listens =
        remote->state == PairState::kReadyToReceive || remote->state == PairState::kReadyToSend;
    const bool knows_us = remote->path.remote_queue_pair == pair.number;
    const auto& gids = remote->device->gids;
    const bool is_there =
        !pair.path.ethernet || std::any_of(gids.begin(), gids.end(), [&](const NicGid& gid) {
          return gid.gid == pair.path.remote_gid;
        });
    return listens && knows_us && is_there && remote->device->active ? remote : nullptr;
  }

  void ToError(PairStatus* pair) {
    if (pair->state == PairState::kError) return;
    pair->state = PairState::kError;
    NicCompletion flushed;
    flushed.status = NicStatus::kFlushed;
    for (const WorkRequest& one : std::exchange(pair->writes, {})) {
      flushed.id = one.write.id;
      Complete(pair->queue, flushed);
    }
    for (uint64_t id : std::exchange(pair->receives, {})) {
      flushed.id = id;
      Complete(pair->queue, flushed);
    }
  }

  void FailFront(PairStatus* pair, NicStatus status) {
    NicCompletion completion;
    completion.id = pair->writes.front().write.id;
    completion.status = status;
    pair->writes.pop_front();
    Complete(pair->queue, completion);
    ToError(pair);
  }

  // kOk, or why the device at the other end refuses.
  NicStatus Deliver(const WorkRequest& request, PairStatus* remote) {
    const NicWrite& write = request.write;
    if (request.is_read) return Read(write, remote->device);
    if (write.length > 0) {
      const std::byte* from = request.copy.empty()
                                  ? At(write.local_key, reinterpret_cast<uintptr_t>(write.local))
                                  : request.copy.data();
      if (!Covers(write.remote_key, remote->device, write.remote, write.length)) {
        return NicStatus::kRemoteAccess;
      }
      Write(write.remote_key, write.remote, from, write.length);
    }
    if (!write.has_immediate) return NicStatus::kOk;
    if (remote->receives.empty()) {
      ++not_ready;
      return NicStatus::kReceiverNotReady;
    }
    NicCompletion completion;
    completion.id = remote->receives.front();
    completion.receive = true;
    completion.immediate = write.immediate;
    remote->receives.pop_front();
    if (request.fate.lose_receive) return NicStatus::kOk;
    CompleteLater(remote->queue, completion, request.fate.late_receive);
    if (request.fate.twice) CompleteLater(remote->queue, completion, request.fate.late_receive + 1);
    return NicStatus::kOk;
  }

  // A message into one of the receives that the other end shares: kOk, or why it is not taken.
  NicStatus TakeMessage(const WorkRequest& request, PairStatus* remote) {
    if (remote->shared == nullptr || remote->shared->receives.empty()) {
      return NicStatus::kReceiverNotReady;
    }
    const NicReceive receive = remote->shared->receives.front();
    const auto begin = reinterpret_cast<uintptr_t>(receive.local);
    if (request.write.length > receive.length ||
        !Covers(receive.local_key, remote->device, begin, receive.length)) {
      return NicStatus::kRemoteInvalidRequest;
    }
    remote->shared->receives.pop_front();
    std::memcpy(receive.local, request.write.local, request.write.length);
    NicCompletion completion;
    completion.id = receive.id;
    completion.receive = true;
    completion.bytes = request.write.length;
    CompleteLater(remote->queue, completion, request.fate.late_receive);
    return NicStatus::kOk;
  }

  // Of an unreliable connection: it is taken whole, or nobody hears of it.
  void PumpUnreliable(PairStatus* pair) {
    const WorkRequest& request = pair->writes.front();
    const ScriptedFate fate = request.fate;
    if (fate.fails) return FailFront(pair, fate.status);  // on this side
    PairStatus* remote = RemoteOf(*pair);
    if (remote != nullptr && remote->options.service != NicService::kUnreliable) remote = nullptr;
    if (remote == nullptr || fate.lost || TakeMessage(request, remote) != NicStatus::kOk) {
      ++pair->device->messages_dropped;
    }
    pair->device->bytes += request.write.length;
    CompleteFront(pair, fate);
  }

  // Of a reliable one: what was lost is sent again, what finds no receive waits. False: so it does.
  bool PumpReliable(PairStatus* pair) {
    WorkRequest& request = pair->writes.front();
    const ScriptedFate fate = request.fate;
    if (std::exchange(request.fate.lost, false)) {
      ++pair->device->messages_dropped;
      request.earliest = tick + kAgainTicks;
      return false;
    }
    PairStatus* remote = RemoteOf(*pair);
    if (remote != nullptr && remote->options.service != NicService::kReliable) remote = nullptr;
    if (remote == nullptr) {
      FailFront(pair, NicStatus::kRetryExceeded);
      return true;
    }
    NicStatus taken = NicStatus::kOk;
    if (!fate.fails || fate.arrives) taken = TakeMessage(request, remote);
    if (taken == NicStatus::kReceiverNotReady) {
      ++not_ready;
      request.earliest = tick + kAgainTicks;
      return false;
    }
    if (taken != NicStatus::kOk) ToError(remote);
    if (taken == NicStatus::kOk && !fate.fails) {
      pair->device->bytes += request.write.length;
      CompleteFront(pair, fate);
    } else {
      FailFront(pair, fate.fails ? fate.status : taken);
    }
    return true;
  }

  void Pump(PairStatus* pair) {
    while (pair->state == PairState::kReadyToSend && !pair->writes.empty()) {
      WorkRequest& request = pair->writes.front();
      DeviceState& device = *pair->device;
      if (!std::exchange(request.fate_known, true) && on_transfer) {
        request.fate = on_transfer({device.options.name, pair->number, pair->path.flow_label,
                                    request.write.length, request.write.has_immediate, tick,
                                    request.is_message, request.is_read, pair->path.traffic_class});
        request.earliest = tick + static_cast<uint64_t>(request.fate.hold_ticks);
      }
      if (tick < request.earliest || !device.active) return;
      if (device.rate > 0) {
        if (device.budget <= 0) return;
        device.budget -= request.write.length;
      }
      sent_last = pair->number;
      const ScriptedFate fate = request.fate;
      if (request.is_message) {
        if (pair->options.service == NicService::kUnreliable) {
          PumpUnreliable(pair);
        } else if (!PumpReliable(pair)) {
          return;
        }
        continue;
      }
      PairStatus* remote = RemoteOf(*pair);
      if (remote == nullptr) return FailFront(pair, NicStatus::kRetryExceeded);
      if (!fate.fails || fate.arrives) {
        const NicStatus refused = Deliver(request, remote);
        if (refused == NicStatus::kRemoteAccess) ToError(remote);
        if (refused != NicStatus::kOk) return FailFront(pair, refused);
        device.bytes += request.write.length;
      }
      if (fate.fails) return FailFront(pair, fate.status);
      CompleteFront(pair, fate);
    }
  }

  void CompleteFront(PairStatus* pair, const ScriptedFate& fate) {
    NicCompletion completion;
    completion.id = pair->writes.front().write.id;
    const bool signaled = pair->writes.front().write.signaled;
    pair->writes.pop_front();
    if (!signaled || fate.lose_send) return;
    CompleteLater(pair->queue, completion, fate.late_send);
    if (fate.twice) CompleteLater(pair->queue, completion, fate.late_send + 1);
  }

  void PumpAll() {
    // Whoever sent last comes last, as devices take turns.
    std::vector<PairStatus*> order;
    for (auto it = pairs.upper_bound(sent_last); it != pairs.end(); ++it) {
      order.push_back(it->second);
    }
    for (auto it = pairs.begin(); order.size() < pairs.size(); ++it) order.push_back(it->second);
    for (PairStatus* pair : order) {
      if (!pair->writes.empty()) Pump(pair);
    }
  }

  void Tick() {
    ++tick;
    if (!late.empty()) {
      std::vector<Late> due;
      std::erase_if(late, [&](const Late& one) {
        if (one.due <= tick) due.push_back(one);
        return one.due <= tick;
      });
      for (const Late& one : due) Complete(one.queue, one.completion);
    }
    PumpAll();
  }
};

namespace {

using Core = ScriptedFabric::Core;
using Lock = std::lock_guard<std::mutex>;

class ScriptedQueue final : public NicCompletionQueue {
 public:
  ScriptedQueue(std::shared_ptr<Core> core, DeviceState* device, int depth)
      : core_(std::move(core)) {
    state_.device = device;
    state_.depth = static_cast<size_t>(depth);
  }
  ~ScriptedQueue() override {
    Lock lock(core_->mutex);
    std::erase_if(core_->late, [&](const Late& one) { return one.queue == &state_; });
  }
  absl::StatusOr<size_t> Poll(absl::Span<NicCompletion> out) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("poll", state_.device));
    core_->Tick();
    size_t count = 0;
    while (count < out.size() && !state_.completions.empty()) {
      out[count++] = state_.completions.front();
      state_.completions.pop_front();
    }
    return count;
  }
  absl::Status Arm() override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("arm", state_.device));
    state_.armed = true;
    return absl::OkStatus();
  }
  QueueState* state() { return &state_; }

 private:
  std::shared_ptr<Core> core_;
  QueueState state_;
};

class ScriptedReceives final : public NicReceiveQueue {
 public:
  ScriptedReceives(std::shared_ptr<Core> core, DeviceState* device, size_t depth)
      : core_(std::move(core)) {
    state_.device = device;
    state_.depth = depth;
  }
  absl::Status Post(absl::Span<const NicReceive> receives) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("post_receives", state_.device));
    if (state_.receives.size() + receives.size() > state_.depth) {
      return absl::UnavailableError("ibv_post_srq_recv: Cannot allocate memory");
    }
    state_.receives.insert(state_.receives.end(), receives.begin(), receives.end());
    return absl::OkStatus();
  }
  ReceiveQueueState* state() { return &state_; }

 private:
  std::shared_ptr<Core> core_;
  ReceiveQueueState state_;
};

class ScriptedPair final : public NicQueuePair {
 public:
  ScriptedPair(std::shared_ptr<Core> core, DeviceState* device, const NicQueuePairOptions& options)
      : core_(std::move(core)) {
    state_.device = device;
    state_.queue = static_cast<ScriptedQueue*>(options.completions)->state();
    if (options.receives != nullptr) {
      state_.shared = static_cast<ScriptedReceives*>(options.receives)->state();
    }
    state_.options = options;
    state_.number = core_->next_pair++;
    core_->pairs[state_.number] = &state_;
  }
  ~ScriptedPair() override {
    std::unique_lock<std::mutex> lock(core_->mutex);
    const bool may =
        core_->may_destroy.wait_for(lock, kDestroyPatience, [&] { return !core_->holds_destroy; });
    core_->destroyed_while_held += may ? 0 : 1;
    core_->pairs.erase(state_.number);
  }
  uint32_t number() const override { return state_.number; }

  absl::Status ToInit(int, int) override {
    return Move("to_init", PairState::kReset, PairState::kInit);
  }
  absl::Status ToReadyToReceive(const NicPath& path) override {
    WEFT_RETURN_IF_ERROR(Move("to_rtr", PairState::kInit, PairState::kReadyToReceive));
    Lock lock(core_->mutex);
    state_.path = path;
    return absl::OkStatus();
  }
  absl::Status ToReadyToSend(const NicPath&) override {
    return Move("to_rts", PairState::kReadyToReceive, PairState::kReadyToSend);
  }
  absl::Status ToReset() override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("to_reset", state_.device));
    state_.state = PairState::kReset;
    state_.writes.clear();
    state_.receives.clear();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> State() override {
    static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "ERR"};
    return std::string(kNames[static_cast<size_t>(state_.state)]);
  }

  absl::Status PostWrites(absl::Span<const NicWrite> writes) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("post_writes", state_.device));
    for (const NicWrite& write : writes) {
      WEFT_RETURN_IF_ERROR(MayPost());
      WorkRequest request;
      request.write = write;
      const auto begin = reinterpret_cast<uintptr_t>(write.local);
      if (write.in_line) {
        if (write.length > state_.options.inline_bytes) {
          return absl::UnavailableError("ibv_post_send: more inline than was granted");
        }
        request.copy.assign(write.local, write.local + write.length);
      }
      const bool covered = write.in_line || write.length == 0 ||
                           core_->Covers(write.local_key, state_.device, begin, write.length);
      Add(std::move(request), covered);
    }
    core_->Pump(&state_);
    return absl::OkStatus();
  }

  absl::Status PostSends(absl::Span<const NicSend> sends) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("post_sends", state_.device));
    for (const NicSend& send : sends) {
      WEFT_RETURN_IF_ERROR(MayPost());
      WorkRequest request;
      request.is_message = true;
      request.write.id = send.id;
      request.write.local = send.local;
      request.write.length = send.length;
      request.write.signaled = send.signaled;
      const auto begin = reinterpret_cast<uintptr_t>(send.local);
      Add(std::move(request), core_->Covers(send.local_key, state_.device, begin, send.length));
    }
    core_->Pump(&state_);
    return absl::OkStatus();
  }

  absl::Status PostRead(const NicRead& read) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("post_reads", state_.device));
    WEFT_RETURN_IF_ERROR(MayPost());
    WorkRequest request;
    request.is_read = true;
    request.write = {.id = read.id,
                     .local = read.local,
                     .length = read.length,
                     .local_key = read.local_key,
                     .remote = read.remote,
                     .remote_key = read.remote_key,
                     .signaled = true};
    const auto begin = reinterpret_cast<uintptr_t>(read.local);
    Add(std::move(request), core_->Covers(read.local_key, state_.device, begin, read.length));
    core_->Pump(&state_);
    return absl::OkStatus();
  }

  absl::Status PostReceives(uint64_t first_id, int count) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("post_receives", state_.device));
    for (int i = 0; i < count; ++i) {
      if (state_.receives.size() >= state_.options.receive_depth) {
        return absl::UnavailableError("ibv_post_recv: Cannot allocate memory");
      }
      state_.receives.push_back(first_id + static_cast<uint64_t>(i));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status MayPost() const {
    if (state_.state != PairState::kReadyToSend && state_.state != PairState::kError) {
      return absl::UnavailableError("ibv_post_send: Invalid argument");
    }
    if (state_.writes.size() >= state_.options.send_depth) {
      return absl::UnavailableError("ibv_post_send: Cannot allocate memory");
    }
    return absl::OkStatus();
  }
  void Add(WorkRequest request, bool covered) {
    const uint64_t id = request.write.id;
    if (state_.state == PairState::kError) {
      NicCompletion flushed;
      flushed.id = id;
      flushed.status = NicStatus::kFlushed;
      return core_->Complete(state_.queue, flushed);
    }
    state_.writes.push_back(std::move(request));
    if (!covered) core_->FailFront(&state_, NicStatus::kLocalProtection);
  }
  absl::Status Move(const char* call, PairState from, PairState to) {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call(call, state_.device));
    if (state_.state != from) return absl::UnavailableError("ibv_modify_qp: Invalid argument");
    state_.state = to;
    return absl::OkStatus();
  }

  std::shared_ptr<Core> core_;
  PairStatus state_;
};

class ScriptedDevice final : public NicDevice {
 public:
  // Under the fabric's lock.
  ScriptedDevice(std::shared_ptr<Core> core, DeviceState* state)
      : core_(std::move(core)), state_(state) {
    if (state_->opened++ > 0) return;
    state_->completion_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    state_->event_fd = eventfd(state_->events.empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC);
  }
  ~ScriptedDevice() override {
    Lock lock(core_->mutex);
    if (--state_->opened > 0) return;
    close(std::exchange(state_->completion_fd, -1));
    close(std::exchange(state_->event_fd, -1));
  }
  const std::string& name() const override { return state_->options.name; }
  absl::StatusOr<NicLimits> Limits() override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("limits", state_));
    return NicLimits{state_->options.ports, 1 << 16, 1 << 14, state_->options.completions_max};
  }
  absl::StatusOr<NicPort> QueryPort(int port) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("query_port", state_));
    NicPort out;
    out.number = port;
    out.active = state_->active;
    out.state = state_->active ? "ACTIVE" : "DOWN";
    out.ethernet = state_->options.ethernet;
    out.mtu = 4096;
    out.gbps = 100;
    out.lid = static_cast<uint16_t>(state_->options.address);
    return out;
  }
  absl::StatusOr<std::vector<NicGid>> QueryGids(int) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("query_gids", state_));
    return state_->gids;
  }
  absl::StatusOr<NicMemory> Register(void* data, size_t size, const NicAccess& access) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("register", state_));
    return Add(data, size, access, nullptr);
  }
  absl::StatusOr<NicMemory> RegisterDmaBuf(int fd, uint64_t offset, size_t size, void* data,
                                           const NicAccess& access) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("register_dma_buf", state_));
    void* mapped =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) return ErrnoStatus(errno, "ibv_reg_dmabuf_mr");
    return Add(data, size, access, static_cast<std::byte*>(mapped));
  }
  absl::Status ProbeDmaBuf() override {
    if (state_->options.dma_bufs) return absl::OkStatus();
    return absl::UnimplementedError("ibv_reg_dmabuf_mr: Operation not supported");
  }
  void Deregister(const NicMemory& memory) override {
    Lock lock(core_->mutex);
    auto found = core_->memory.find(memory.local_key);
    const MemoryState& state = found->second;
    if (state.mapped != nullptr) munmap(state.mapped, state.end - state.begin);
    core_->memory.erase(found);
  }
  absl::StatusOr<std::unique_ptr<NicCompletionQueue>> CreateCompletionQueue(int depth) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("create_completion_queue", state_));
    return std::make_unique<ScriptedQueue>(core_, state_, depth);
  }
  absl::StatusOr<std::unique_ptr<NicReceiveQueue>> CreateReceiveQueue(uint32_t depth) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("create_receive_queue", state_));
    return std::make_unique<ScriptedReceives>(core_, state_, depth);
  }
  absl::StatusOr<std::unique_ptr<NicQueuePair>> CreateQueuePair(
      NicQueuePairOptions* options) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("create_queue_pair", state_));
    options->inline_bytes = std::min(options->inline_bytes, state_->options.inline_max);
    return std::make_unique<ScriptedPair>(core_, state_, *options);
  }
  int completion_fd() const override { return state_->completion_fd; }
  void DrainCompletionEvents() override { Quiet(state_->completion_fd); }
  int event_fd() const override { return state_->event_fd; }
  bool NextEvent(NicEvent* event) override {
    Lock lock(core_->mutex);
    if (state_->events.empty()) {
      Quiet(state_->event_fd);
      return false;
    }
    *event = state_->events.front();
    state_->events.pop_front();
    return true;
  }

 private:
  NicMemory Add(void* data, size_t size, const NicAccess& access, std::byte* mapped) {
    const uint32_t key = core_->next_key++;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    core_->memory[key] = {state_, begin, begin + size, access.readable, mapped, {}};
    return NicMemory{key, key, key};
  }

  std::shared_ptr<Core> core_;
  DeviceState* state_;
};

class ScriptedNic final : public Nic {
 public:
  ScriptedNic(std::shared_ptr<Core> core, std::vector<std::string> names)
      : core_(std::move(core)), names_(std::move(names)) {}
  absl::StatusOr<std::vector<std::string>> DeviceNames() override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("list", nullptr));
    return names_;
  }
  absl::StatusOr<std::unique_ptr<NicDevice>> Open(absl::string_view name) override {
    Lock lock(core_->mutex);
    auto found = core_->devices.find(std::string(name));
    if (found == core_->devices.end()) return absl::UnavailableError("ibv_open_device: no such");
    WEFT_RETURN_IF_ERROR(core_->Call("open", found->second.get()));
    return std::make_unique<ScriptedDevice>(core_, found->second.get());
  }

 private:
  std::shared_ptr<Core> core_;
  std::vector<std::string> names_;
};

}  // namespace

ScriptedFabric::ScriptedFabric() : core_(std::make_shared<Core>()) {}

ScriptedFabric::~ScriptedFabric() = default;

void ScriptedFabric::set_on_call(OnCall script) {
  Lock lock(core_->mutex);
  core_->on_call = std::move(script);
}

void ScriptedFabric::set_on_transfer(OnTransfer script) {
  Lock lock(core_->mutex);
  core_->on_transfer = std::move(script);
}

std::unique_ptr<Nic> ScriptedFabric::MakeNic(const std::vector<ScriptedDeviceOptions>& devices) {
  Lock lock(core_->mutex);
  std::vector<std::string> names;
  for (const ScriptedDeviceOptions& options : devices) {
    auto device = std::make_unique<DeviceState>();
    device->options = options;
    device->gids = GidsOf(options);
    names.push_back(options.name);
    WEFT_CHECK(core_->devices.emplace(options.name, std::move(device)).second, options.name);
  }
  return std::make_unique<ScriptedNic>(core_, std::move(names));
}

std::unique_ptr<Nic> ScriptedFabric::ReopenNic(const std::vector<std::string>& devices) {
  return std::make_unique<ScriptedNic>(core_, devices);
}

void ScriptedFabric::PushEvent(const std::string& device, const NicEvent& event) {
  Lock lock(core_->mutex);
  DeviceState& state = *core_->devices.at(device);
  state.events.push_back(event);
  Ring(state.event_fd);
}

void ScriptedFabric::SetPortActive(const std::string& device, bool active) {
  Lock lock(core_->mutex);
  core_->devices.at(device)->active = active;
  core_->PumpAll();
}

void ScriptedFabric::HoldDestroy(bool hold) {
  Lock lock(core_->mutex);
  core_->holds_destroy = hold;
  core_->may_destroy.notify_all();
}

int ScriptedFabric::destroyed_while_held() const {
  Lock lock(core_->mutex);
  return core_->destroyed_while_held;
}

void ScriptedFabric::SetRate(const std::string& device, double bytes_per_second) {
  Lock lock(core_->mutex);
  core_->devices.at(device)->rate = bytes_per_second;
}

void ScriptedFabric::Advance(absl::Duration step) {
  Lock lock(core_->mutex);
  for (auto& [name, device] : core_->devices) {
    const double fresh = device->rate * absl::ToDoubleSeconds(step);
    device->budget = std::min(device->budget + fresh, fresh);
  }
  core_->PumpAll();
}

std::vector<uint32_t> ScriptedFabric::QueuePairs(const std::string& device) const {
  Lock lock(core_->mutex);
  std::vector<uint32_t> out;
  for (const auto& [number, pair] : core_->pairs) {
    if (pair->device->options.name == device && pair->state != PairState::kReset) {
      out.push_back(number);
    }
  }
  return out;
}

uint64_t ScriptedFabric::bytes_from(const std::string& device) const {
  Lock lock(core_->mutex);
  return core_->devices.at(device)->bytes;
}

int ScriptedFabric::dropped_from(const std::string& device) const {
  Lock lock(core_->mutex);
  return core_->devices.at(device)->messages_dropped;
}

int ScriptedFabric::overruns() const {
  Lock lock(core_->mutex);
  return core_->overruns;
}

int ScriptedFabric::not_ready() const {
  Lock lock(core_->mutex);
  return core_->not_ready;
}

size_t ScriptedFabric::registrations() const {
  Lock lock(core_->mutex);
  return core_->memory.size();
}
size_t ScriptedFabric::unseen_writes() const {
  Lock lock(core_->mutex);
  size_t count = 0;
  for (const auto& [key, state] : core_->memory) count += state.unseen.size();
  return count;
}

}  // namespace weft::net
