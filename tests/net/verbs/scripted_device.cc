// The devices: what a program calls, checked as strictly as a driver does.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/net/verbs/scripted_core.h"

namespace weft::net::scripted {
namespace {

using Core = ScriptedFabric::Core;
using Lock = std::lock_guard<std::mutex>;

constexpr std::chrono::seconds kPatience{20};  // of who is held

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
      out[count++] = state_.completions.front().completion;
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
  ~ScriptedReceives() override {
    Lock lock(core_->mutex);
    for (const auto& [number, pair] : core_->pairs) {
      core_->receives_lost += pair->shared == &state_ ? 1 : 0;
    }
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
        core_->may_go_on.wait_for(lock, kPatience, [&] { return !core_->holds_destroy; });
    core_->destroyed_while_held += may ? 0 : 1;
    core_->ToReset(&state_);
    core_->pairs.erase(state_.number);
  }
  uint32_t number() const override { return state_.number; }

  absl::Status ToInit(int, int) override {
    return Move("to_init", PairState::kReset, PairState::kInit);
  }
  absl::Status ToReadyToReceive(const NicPath& path) override {
    {
      std::unique_lock<std::mutex> lock(core_->mutex);
      const auto is_held = [&] { return state_.device->options.name == core_->holds_connect; };
      const bool waits = is_held();
      core_->held_connects += waits ? 1 : 0;
      if (!core_->may_go_on.wait_for(lock, kPatience, [&] { return !is_held(); })) {
        ++core_->connected_while_held;
      }
      if (waits) return ErrnoStatus(ETIMEDOUT, "ibv_modify_qp to RTR");
    }
    const ScriptedDeviceOptions& options = state_.device->options;
    if ((options.ethernet || options.needs_global) && !path.global) {
      return ErrnoStatus(EINVAL, "ibv_modify_qp to RTR");
    }
    WEFT_RETURN_IF_ERROR(Move("to_rtr", PairState::kInit, PairState::kReadyToReceive));
    Lock lock(core_->mutex);
    state_.path = path;
    return absl::OkStatus();
  }
  absl::Status ToReadyToSend(const NicPath&) override {
    return Move("to_rts", PairState::kReadyToReceive, PairState::kReadyToSend);
  }
  absl::Status ToError() override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("to_error", state_.device));
    core_->ToError(&state_);
    return absl::OkStatus();
  }
  absl::Status ToReset() override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("to_reset", state_.device));
    core_->ToReset(&state_);
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
      const bool covered =
          write.in_line || write.length == 0 ||
          core_->memory.Covers(write.local_key, state_.device, begin, write.length);
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
      Add(std::move(request),
          core_->memory.Covers(send.local_key, state_.device, begin, send.length));
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
    Add(std::move(request),
        core_->memory.Covers(read.local_key, state_.device, begin, read.length));
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
      return core_->Complete(state_, flushed);
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
  std::string pci_address() const override { return state_->options.pci_address; }
  bool ResolvesAddresses() const override { return state_->options.resolves_addresses; }
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
    out.needs_global = state_->options.needs_global;
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
    if (data == nullptr) return ErrnoStatus(EFAULT, "ibv_reg_mr");
    return core_->memory.Add(state_, data, size, access.readable);
  }
  absl::StatusOr<NicMemory> RegisterDmaBuf(int fd, uint64_t offset, size_t size, void* data,
                                           const NicAccess& access) override {
    Lock lock(core_->mutex);
    WEFT_RETURN_IF_ERROR(core_->Call("register_dma_buf", state_));
    void* mapped =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) return ErrnoStatus(errno, "ibv_reg_dmabuf_mr");
    return core_->memory.AddDmaBuf(state_, data, size, access.readable,
                                   static_cast<std::byte*>(mapped));
  }
  absl::Status ProbeDmaBuf() override {
    if (state_->options.dma_bufs) return absl::OkStatus();
    return absl::UnimplementedError("ibv_reg_dmabuf_mr: Operation not supported");
  }
  void Deregister(const NicMemory& memory) override {
    Lock lock(core_->mutex);
    core_->memory.Remove(memory.local_key);
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

std::unique_ptr<Nic> MakeNic(std::shared_ptr<Core> core, std::vector<std::string> names) {
  return std::make_unique<ScriptedNic>(std::move(core), std::move(names));
}

}  // namespace weft::net::scripted
