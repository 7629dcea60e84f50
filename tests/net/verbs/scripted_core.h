// Inside a scripted fabric: the states of its devices, queues and queue pairs, and what becomes of
// work requests. For the fabric's own files; tests see scripted_nic.h.
#ifndef WEFT_TESTS_NET_VERBS_SCRIPTED_CORE_H_
#define WEFT_TESTS_NET_VERBS_SCRIPTED_CORE_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/net/verbs/scripted_memory.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {
namespace scripted {

void Ring(int fd);   // an eventfd
void Quiet(int fd);  // likewise

enum class PairState : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kError };

struct QueueState {
  struct Completed {
    NicCompletion completion;
    uint32_t queue_pair = 0;
  };
  DeviceState* device = nullptr;
  size_t depth = 0;
  std::deque<Completed> completions;
  bool armed = false;
};

struct WorkRequest {
  // A message (is_message) has id, local, length, local_key, signaled; a read (is_read) has all but
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
  uint64_t sent_at = 0;  // the fabric's count of what was sent, when this one last did
};

// What lets so many bytes per second through; 0: all.
struct Throttle {
  double rate = 0, budget = 0;
  bool IsOpen() const { return rate == 0 || budget > 0; }
  void Take(double bytes) { budget -= rate > 0 ? bytes : 0; }
  void Advance(absl::Duration step) {
    const double fresh = rate * absl::ToDoubleSeconds(step);
    budget = std::min(budget + fresh, fresh);
  }
};

struct Spine {
  Throttle throttle;
  uint64_t bytes = 0;
};

struct DeviceState {
  ScriptedDeviceOptions options;
  bool active = true;
  int completion_fd = -1, event_fd = -1;
  std::deque<NicEvent> events;
  Throttle throttle;
  uint64_t bytes = 0;
  int messages_dropped = 0;
  int opened = 0;  // while it is, there are descriptors
  std::vector<NicGid> gids;
};

struct Late {
  uint64_t due = 0;
  QueueState* queue = nullptr;
  QueueState::Completed what;
};

}  // namespace scripted

// Under its mutex, all of it.
struct ScriptedFabric::Core {
  using DeviceState = scripted::DeviceState;
  using PairState = scripted::PairState;
  using PairStatus = scripted::PairStatus;
  using QueueState = scripted::QueueState;
  using WorkRequest = scripted::WorkRequest;

  mutable std::mutex mutex;
  OnCall on_call;
  OnTransfer on_transfer;
  std::map<std::string, std::unique_ptr<DeviceState>> devices;
  std::map<uint32_t, PairStatus*> pairs;
  scripted::MemoryTable memory;
  std::vector<scripted::Late> late;
  uint32_t next_pair = 17;
  uint64_t tick = 0;
  int overruns = 0, not_ready = 0;
  bool holds_destroy = false;
  int destroyed_while_held = 0;
  std::string holds_connect;  // a device
  int receives_lost = 0;
  int held_connects = 0, connected_while_held = 0;
  std::condition_variable may_go_on;
  uint64_t sent = 0;
  SpineOf spine_of;
  std::vector<scripted::Spine> spines;

  absl::Status Call(const char* call, const DeviceState* device) const;
  void Complete(const PairStatus& pair, const NicCompletion& completion);
  void CompleteLater(const PairStatus& pair, const NicCompletion& completion, int ticks);
  void Push(QueueState* queue, const QueueState::Completed& what);
  // The other end, if it would take what this one sends.
  PairStatus* RemoteOf(const PairStatus& pair) const;
  void ToError(PairStatus* pair);
  void ToReset(PairStatus* pair);  // nothing of it that was not polled is heard of
  void FailFront(PairStatus* pair, NicStatus status);
  // kOk, or why the device at the other end refuses.
  NicStatus Deliver(const WorkRequest& request, PairStatus* remote);
  // A message into one of the receives that the other end shares: kOk, or why it is not taken.
  NicStatus TakeMessage(const WorkRequest& request, PairStatus* remote);
  // An unreliable connection's message is taken whole, or nobody hears of it.
  void PumpUnreliable(PairStatus* pair);
  // A reliable one repeats what was lost; what finds no receive waits. False: it waits.
  bool PumpReliable(PairStatus* pair);
  void Pump(PairStatus* pair);
  void CompleteFront(PairStatus* pair, const ScriptedFate& fate);
  void PumpAll();
  void Tick();
};

namespace scripted {
// The devices of one host, by name.
std::unique_ptr<Nic> MakeNic(std::shared_ptr<ScriptedFabric::Core> core,
                             std::vector<std::string> names);
}  // namespace scripted

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_VERBS_SCRIPTED_CORE_H_
