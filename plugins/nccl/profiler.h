// Writes what NCCL does into this process's ring of records (base/records.h), as our own transports
// and engine do, for weft-top, weft-trace, weft-diagnose and weft-agent. profiler_tables.cc adapts
// it to each version of NCCL's table.
//
// A call (collective, send, receive) begins when it is enqueued, or, where NCCL says when its
// kernels run, with the first of these; it ends with the last of its kernels and of the proxy's
// operations. A call that has none of either for half a second is taken to have ended when it was
// enqueued. Calls are numbered by communicator in the order in which they are enqueued. A flow is
// all messages of a communicator to or from one peer.
//
// By any thread. Events cost no lock, no system call and no allocation, but for the first of a
// communicator; what does not fit into the slots (profiler_slots.h) is counted and left out. A
// thread of its own samples flows every 100 ms. Nothing ever fails: without records there are no
// events.
#ifndef WEFT_PLUGINS_NCCL_PROFILER_H_
#define WEFT_PLUGINS_NCCL_PROFILER_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/records.h"
#include "plugins/nccl/profiler_slots.h"

namespace weft::nccl {

// Numbers up to kReceive are NCCL's (abi::ProfilerFunctionV1).
enum class CallKind : uint8_t {
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kSendReceive,
  kSend,
  kReceive,
  kAllToAll,
  kGather,
  kScatter,
  kOther,
};
inline constexpr size_t kCallKinds = 12;

struct ProfiledCommunicator {
  const char* name = nullptr;  // the user's; null: none
  uint64_t id = 0;             // equal on all its ranks
  int rank = -1;
  int ranks = 0;  // 0: not known
};

struct ProfiledCall {
  CallKind kind = CallKind::kOther;
  uint8_t type = 0;    // collectives::DataType
  uint64_t count = 0;  // elements, as the caller gave them
  uint64_t element_bytes = 1;
  int root = 0;
  int peer = -1;     // of the communicator
  int channels = 0;  // that it has kernels on; 0: not known
};

class Profiler {
 public:
  static Profiler& OfProcess();  // lives until the process ends; the ring until then at most
  Profiler() = default;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // A context; null: there are to be no events. `about` null: Introduce() will say.
  void* Open(const ProfiledCommunicator* about);
  // To be called with each of its calls, before NCCL 2.27.
  void Introduce(void* context, const ProfiledCommunicator& about);
  void Close(void* context);
  // Whether events of kernels are wanted, as the settings say.
  bool kernels() const { return kernels_.load(std::memory_order_relaxed); }

  // Each returns a handle, null: there is no event. A handle that is not of the kind that is
  // expected, or whose event has ended, does nothing.
  void* StartCall(void* context, const ProfiledCall& call);
  void* StartKernel(void* call);
  // `pid`: whose call it is.
  void* StartOperation(void* context, void* call, int pid, int peer, bool sends);
  void* StartStep(void* operation, int step);
  void* StartNet(void* step, int64_t id, const void* data);
  void Stop(void* event);

  // States of a step (v4 on).
  void PostStep(void* step);
  void MatchStep(void* step, uint64_t bytes);
  // States of an operation (up to v3): NCCL's number of the step, and of bytes up to now; any state
  // counts for Count(), before what else it means.
  void Count(void* operation, uint64_t bytes);
  void Post(void* operation, int steps);
  void Match(void* operation, int steps, uint64_t bytes);
  void Finish(void* operation, int steps, uint64_t bytes);

  // Events that found no slot, since the process began.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // A sample of all flows, and a look at calls that have no parts.
  void Tick(int64_t now_ns);
  // The end of the process: no events any more.
  void End();

  static constexpr size_t kCallsMax = 4096, kOperationsMax = 4096, kFlowsMax = 2048,
                          kCommunicatorsMax = 1024;

 private:
  struct Communicator {
    std::atomic<uint64_t> state{0};  // busy: open
    std::atomic<bool> introduced{false};
    std::atomic<bool> muted{false};  // this process holds another of its ranks
    std::atomic<uint64_t> id{0};
    std::atomic<int> rank{-1}, ranks{0};
    std::atomic<uint32_t> sequence{0};
    std::atomic<RecordName> group{0}, flows{0};
  };

  template <typename Change>
  void ChangeCall(const EventHandle& handle, Change change);
  bool AddPart(const EventHandle& call);
  void EndPart(const EventHandle& call);
  void EndOperation(const EventHandle& handle);
  FlowSlot* FlowOf(uint16_t communicator, int peer, bool sends);
  void Drop();

  // With mutex_ held.
  bool Begin();
  void OpenRing(const ProfiledCommunicator& about);
  void Describe(Communicator& communicator, const ProfiledCommunicator& about);
  void CloseRing();
  void StartSampler();
  void StopSampler();

  void SampleFlow(FlowSlot& flow, int64_t now_ns);
  void Settle(CallSlot& call, int64_t now_ns);
  void Abandon(uint16_t communicator, int64_t now_ns);
  template <typename T>
  void Write(const T& record);

  SlotRing<Communicator, kCommunicatorsMax> communicators_;
  SlotRing<CallSlot, kCallsMax> calls_;
  SlotRing<OperationSlot, kOperationsMax> operations_;
  std::array<FlowSlot, kFlowsMax> flows_;
  std::array<std::atomic<RecordName>, kCallKinds> names_{};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> kernels_{false};
  std::atomic<Records*> records_{nullptr};  // owned
  std::atomic<int> writers_{0};             // threads that use *records_ now
  std::atomic<int> owner_pid_{0};

  std::mutex mutex_;  // guards what follows
  size_t open_ = 0;   // communicators
  bool ring_tried_ = false;
  int rank_ = 0, world_size_ = 1;
  std::unique_ptr<std::thread> sampler_;

  std::mutex sample_mutex_;  // guards flows' watches, and what follows
  std::condition_variable wake_;
  bool stop_ = false;
  uint64_t dropped_before_ = 0;  // this ring began
  uint64_t said_dropped_ = 0;    // of it
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILER_H_
