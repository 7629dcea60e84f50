// What NCCL's proxy has under way in this process: operations of calls, their steps (messages), and
// the flows that they add up to. A flow is all messages of a communicator to or from one peer.
//
// By any thread, without a lock, a system call or an allocation, but for Sample() and Abandon(). A
// handle that is not of the kind that is expected, or whose event has ended, does nothing.
#ifndef WEFT_PLUGINS_NCCL_PROFILED_FLOWS_H_
#define WEFT_PLUGINS_NCCL_PROFILED_FLOWS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/records.h"
#include "net/flow_watch.h"
#include "plugins/nccl/profiled_calls.h"
#include "plugins/nccl/profiler_ring.h"
#include "plugins/nccl/profiler_slots.h"

namespace weft::nccl {

struct FlowSlot {
  static constexpr uint64_t kRemoved = ~uint64_t{0};

  std::atomic<uint64_t> key{0};  // 0: free
  std::atomic<uint64_t> posted{0}, matched{0}, done{0};
  std::atomic<uint64_t> bytes_matched{0}, bytes_done{0};
  std::atomic<uint64_t> repeats{0};
  std::atomic<int64_t> rtt_ns{0};
  net::FlowWatch watch;  // of the sampler

  static uint64_t KeyOf(uint16_t communicator, int peer, bool sends) {
    return (uint64_t{communicator} + 1) << 33 | uint64_t{sends} << 32 | static_cast<uint32_t>(peer);
  }
  uint16_t communicator() const {
    return static_cast<uint16_t>((key.load(std::memory_order_acquire) >> 33) - 1);
  }
  void Post() { posted.fetch_add(1, std::memory_order_relaxed); }
  void Match(uint64_t bytes) {
    matched.fetch_add(1, std::memory_order_relaxed);
    bytes_matched.fetch_add(bytes, std::memory_order_relaxed);
  }
  void Finish(uint64_t bytes) {
    done.fetch_add(1, std::memory_order_relaxed);
    bytes_done.fetch_add(bytes, std::memory_order_relaxed);
  }
  net::FlowCounters Counters() const;
  void Clear();
};

// One proxy operation: one peer, one direction, one channel, of one call. Its messages are steps of
// their own from v4 on; before, their numbers are states of the operation.
struct OperationSlot {
  static constexpr size_t kSteps = 8;  // NCCL_STEPS: under way at most
  static constexpr uint64_t kPosted = 1, kMatched = 2, kStages = 3;

  std::atomic<uint64_t> state{0};
  std::atomic<uint16_t> communicator{0};
  std::atomic<bool> sends{false};
  std::atomic<uint64_t> call{0};                                      // its handle
  std::atomic<FlowSlot*> flow{nullptr};                               // null: there are too many
  std::array<std::atomic<uint64_t>, kSteps> steps{};                  // bytes << 2 | stage
  std::atomic<int> posted_steps{0}, matched_steps{0}, done_steps{0};  // NCCL's numbers
  std::atomic<uint64_t> posted{0}, matched{0}, done{0};               // messages
  std::atomic<uint64_t> bytes{0}, bytes_done{0};
  // What NCCL had counted when the operation began: it goes on from where an earlier one stopped.
  static constexpr uint64_t kNotKnown = ~uint64_t{0};
  std::atomic<uint64_t> bytes_before{kNotKnown};
};

class ProfiledFlows {
 public:
  static constexpr size_t kOperationsMax = 4096, kFlowsMax = 2048;

  ProfiledFlows(ProfilerRing& ring, ProfiledCalls& calls) : ring_(ring), calls_(calls) {}

  // The name that the records of a communicator's flows bear.
  void SetName(uint16_t communicator, RecordName name) { names_[communicator] = name; }

  // Handles; null: there is no event.
  void* StartOperation(uint16_t communicator, void* call, int peer, bool sends);
  void* StartStep(void* operation, int step);
  void* StartNet(void* step, int64_t id, const void* data);
  void StopOperation(const EventHandle& operation);
  void StopStep(const EventHandle& step);

  // States of a step (v4 on).
  void PostStep(void* step);
  void MatchStep(void* step, uint64_t bytes);
  // States of an operation (up to v3): NCCL's number of the step, and of bytes up to now; any state
  // counts for Count(), before what else it means.
  void Count(void* operation, uint64_t bytes);
  void Post(void* operation, int steps);
  void Match(void* operation, int steps, uint64_t bytes);
  void Finish(void* operation, int steps, uint64_t bytes);

  // Writes a record of each flow that has something new.
  void Sample(int64_t now_ns);
  // Ends what the communicator has under way, and its flows.
  void Abandon(uint16_t communicator, int64_t now_ns);

 private:
  FlowSlot* FlowOf(uint16_t communicator, int peer, bool sends);
  void SampleFlow(FlowSlot& flow, int64_t now_ns);

  ProfilerRing& ring_;
  ProfiledCalls& calls_;
  SlotRing<OperationSlot, kOperationsMax> operations_;
  std::array<FlowSlot, kFlowsMax> flows_;
  std::array<std::atomic<RecordName>, kCommunicatorsMax> names_{};
  std::mutex mutex_;  // guards the flows' watches
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILED_FLOWS_H_
