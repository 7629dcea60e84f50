#include "tests/net/verbs/scripted_core.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::net {
namespace scripted {
namespace {

constexpr uint64_t kAgainTicks = 8;  // until a reliable message is sent again

}  // namespace

void Ring(int fd) {
  const uint64_t one = 1;
  if (write(fd, &one, sizeof one) < 0) return;  // rung already
}

void Quiet(int fd) {
  uint64_t count = 0;
  if (read(fd, &count, sizeof count) < 0) return;
}

}  // namespace scripted

using scripted::kAgainTicks, scripted::Ring;
using scripted::Late, scripted::PairState, scripted::PairStatus;

absl::Status ScriptedFabric::Core::Call(const char* call, const DeviceState* device) const {
  if (!on_call) return absl::OkStatus();
  return on_call(call, device == nullptr ? "" : device->options.name);
}

void ScriptedFabric::Core::Push(QueueState* queue, const QueueState::Completed& what) {
  if (queue->completions.size() >= queue->depth) ++overruns;
  queue->completions.push_back(what);
  if (std::exchange(queue->armed, false)) Ring(queue->device->completion_fd);
}

void ScriptedFabric::Core::Complete(const PairStatus& pair, const NicCompletion& completion) {
  Push(pair.queue, {completion, pair.number});
}

void ScriptedFabric::Core::CompleteLater(const PairStatus& pair, const NicCompletion& completion,
                                         int ticks) {
  if (ticks <= 0) return Complete(pair, completion);
  late.push_back({tick + static_cast<uint64_t>(ticks), pair.queue, {completion, pair.number}});
}

scripted::PairStatus* ScriptedFabric::Core::RemoteOf(const PairStatus& pair) const {
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

void ScriptedFabric::Core::ToError(PairStatus* pair) {
  if (pair->state == PairState::kError) return;
  pair->state = PairState::kError;
  for (Late& one : late) {
    if (one.what.queue_pair == pair->number) Push(one.queue, one.what);
  }
  std::erase_if(late, [&](const Late& one) { return one.what.queue_pair == pair->number; });
  NicCompletion flushed;
  flushed.status = NicStatus::kFlushed;
  for (const WorkRequest& one : std::exchange(pair->writes, {})) {
    flushed.id = one.write.id;
    Complete(*pair, flushed);
  }
  for (uint64_t id : std::exchange(pair->receives, {})) {
    flushed.id = id;
    Complete(*pair, flushed);
  }
}

void ScriptedFabric::Core::ToReset(PairStatus* pair) {
  pair->state = PairState::kReset;
  pair->writes.clear();
  pair->receives.clear();
  std::erase_if(pair->queue->completions,
                [&](const auto& one) { return one.queue_pair == pair->number; });
  std::erase_if(late, [&](const Late& one) { return one.what.queue_pair == pair->number; });
}

void ScriptedFabric::Core::FailFront(PairStatus* pair, NicStatus status) {
  NicCompletion completion;
  completion.id = pair->writes.front().write.id;
  completion.status = status;
  pair->writes.pop_front();
  Complete(*pair, completion);
  ToError(pair);
}

NicStatus ScriptedFabric::Core::Deliver(const WorkRequest& request, PairStatus* remote) {
  const NicWrite& write = request.write;
  if (request.is_read) return memory.Read(write, remote->device);
  if (write.length > 0) {
    const std::byte* from =
        request.copy.empty() ? memory.At(write.local_key, reinterpret_cast<uintptr_t>(write.local))
                             : request.copy.data();
    if (!memory.Covers(write.remote_key, remote->device, write.remote, write.length)) {
      return NicStatus::kRemoteAccess;
    }
    memory.Write(write.remote_key, write.remote, from, write.length);
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
  CompleteLater(*remote, completion, request.fate.late_receive);
  if (request.fate.twice) CompleteLater(*remote, completion, request.fate.late_receive + 1);
  return NicStatus::kOk;
}

NicStatus ScriptedFabric::Core::TakeMessage(const WorkRequest& request, PairStatus* remote) {
  if (remote->shared == nullptr || remote->shared->receives.empty()) {
    return NicStatus::kReceiverNotReady;
  }
  const NicReceive receive = remote->shared->receives.front();
  const auto begin = reinterpret_cast<uintptr_t>(receive.local);
  if (request.write.length > receive.length ||
      !memory.Covers(receive.local_key, remote->device, begin, receive.length)) {
    return NicStatus::kRemoteInvalidRequest;
  }
  remote->shared->receives.pop_front();
  std::memcpy(receive.local, request.write.local, request.write.length);
  NicCompletion completion;
  completion.id = receive.id;
  completion.receive = true;
  completion.bytes = request.write.length;
  CompleteLater(*remote, completion, request.fate.late_receive);
  return NicStatus::kOk;
}

void ScriptedFabric::Core::PumpUnreliable(PairStatus* pair) {
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

bool ScriptedFabric::Core::PumpReliable(PairStatus* pair) {
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

void ScriptedFabric::Core::Pump(PairStatus* pair) {
  while (pair->state == PairState::kReadyToSend && !pair->writes.empty()) {
    WorkRequest& request = pair->writes.front();
    DeviceState& device = *pair->device;
    if (!std::exchange(request.fate_known, true) && on_transfer) {
      request.fate =
          on_transfer({device.options.name, pair->number, pair->path.flow_label,
                       request.write.length, request.write.has_immediate, tick, request.is_message,
                       request.is_read, pair->path.traffic_class, pair->path.udp_source_port});
      request.earliest = tick + static_cast<uint64_t>(request.fate.hold_ticks);
    }
    if (tick < request.earliest || !device.active) return;
    scripted::Spine* spine =
        spine_of ? &spines.at(spine_of(device.options.name, pair->path.flow_label)) : nullptr;
    if (!device.throttle.IsOpen() || (spine != nullptr && !spine->throttle.IsOpen())) return;
    device.throttle.Take(request.write.length);
    if (spine != nullptr) spine->throttle.Take(request.write.length);
    if (spine != nullptr) spine->bytes += request.write.length;
    pair->sent_at = ++sent;
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

void ScriptedFabric::Core::CompleteFront(PairStatus* pair, const ScriptedFate& fate) {
  NicCompletion completion;
  completion.id = pair->writes.front().write.id;
  const bool signaled = pair->writes.front().write.signaled;
  pair->writes.pop_front();
  if (!signaled || fate.lose_send) return;
  CompleteLater(*pair, completion, fate.late_send);
  if (fate.twice) CompleteLater(*pair, completion, fate.late_send + 1);
}

void ScriptedFabric::Core::PumpAll() {
  // Whoever sent last comes last, as devices take turns.
  std::vector<PairStatus*> order;
  for (const auto& [number, pair] : pairs) order.push_back(pair);
  std::stable_sort(order.begin(), order.end(), [](const PairStatus* a, const PairStatus* b) {
    return a->sent_at < b->sent_at;
  });
  for (PairStatus* pair : order) {
    if (!pair->writes.empty()) Pump(pair);
  }
}

void ScriptedFabric::Core::Tick() {
  ++tick;
  if (!late.empty()) {
    std::vector<Late> due;
    std::erase_if(late, [&](const Late& one) {
      if (one.due <= tick) due.push_back(one);
      return one.due <= tick;
    });
    for (const Late& one : due) Push(one.queue, one.what);
  }
  PumpAll();
}

}  // namespace weft::net
