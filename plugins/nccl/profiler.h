// Writes what NCCL does into this process's ring of records (base/records.h), as our own transports
// and engine do, for weft-top, weft-trace, weft-diagnose and weft-agent. profiler_tables.cc adapts
// it to each version of NCCL's table.
//
// Its parts: calls (profiled_calls.h), what the proxy does for them (profiled_flows.h), and the
// ring (profiler_ring.h). This class keeps the communicators, and the thread that samples.
//
// By any thread. Events cost no lock, no system call and no allocation, but for the first of a
// communicator; what does not fit into the slots (profiler_slots.h) is counted and left out. A
// thread of its own samples flows every 100 ms. Nothing ever fails: without records there are no
// events.
#ifndef WEFT_PLUGINS_NCCL_PROFILER_H_
#define WEFT_PLUGINS_NCCL_PROFILER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "base/records.h"
#include "plugins/nccl/profiled_calls.h"
#include "plugins/nccl/profiled_flows.h"
#include "plugins/nccl/profiler_ring.h"
#include "plugins/nccl/profiler_slots.h"

namespace weft::nccl {

struct ProfiledCommunicator {
  const char* name = nullptr;  // the user's; null: none
  uint64_t id = 0;             // equal on all its ranks
  int rank = -1;
  int ranks = 0;  // 0: not known
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
  // `pid`: whose call it is.
  void* StartOperation(void* context, void* call, int pid, int peer, bool sends);
  void Stop(void* event);  // of any kind
  ProfiledCalls& calls() { return calls_; }
  ProfiledFlows& flows() { return flows_; }

  // Events that found no slot, since the process began.
  uint64_t dropped() const { return ring_.dropped(); }
  // A sample of all flows, and a look at calls that have no parts.
  void Tick(int64_t now_ns);
  // The end of the process: no events any more.
  void End();

 private:
  struct Communicator {
    std::atomic<uint64_t> state{0};  // busy: open
    std::atomic<bool> introduced{false};
    std::atomic<bool> muted{false};  // this process holds another of its ranks
    std::atomic<uint64_t> id{0};
    std::atomic<int> rank{-1}, ranks{0};
    std::atomic<uint32_t> sequence{0};
    std::atomic<RecordName> group{0};
  };

  // With mutex_ held.
  bool Begin();
  void OpenRing(const ProfiledCommunicator& about);
  void Describe(uint16_t index, const ProfiledCommunicator& about);
  void StartSampler();
  void StopSampler();

  // Null: of this communicator nothing is recorded.
  Communicator* Recorded(const EventHandle& context);

  ProfilerRing ring_;
  ProfiledCalls calls_{ring_};
  ProfiledFlows flows_{ring_, calls_};
  SlotRing<Communicator, kCommunicatorsMax> communicators_;
  std::atomic<bool> kernels_{false};
  std::atomic<int> owner_pid_{0};

  std::mutex mutex_;  // guards what follows
  size_t open_ = 0;   // communicators
  bool ring_tried_ = false;
  int rank_ = 0, world_size_ = 1;
  std::unique_ptr<std::thread> sampler_;

  std::mutex sample_mutex_;  // guards stop_
  std::condition_variable wake_;
  bool stop_ = false;
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILER_H_
