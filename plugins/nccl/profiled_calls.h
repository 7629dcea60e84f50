// The calls (collectives, sends, receives) that NCCL has under way in this process, and the records
// of their start and end.
//
// A call begins when it is enqueued, or, where NCCL says when its kernels run, with the first of
// these; it ends with the last of its kernels and of the proxy's operations, its parts. A call that
// has none of either for half a second is taken to have ended when it was enqueued. Collectives are
// numbered by communicator in the order in which they are enqueued.
//
// By any thread, without a lock, a system call or an allocation.
#ifndef WEFT_PLUGINS_NCCL_PROFILED_CALLS_H_
#define WEFT_PLUGINS_NCCL_PROFILED_CALLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/records.h"
#include "plugins/nccl/profiler_ring.h"
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

struct ProfiledCall {
  CallKind kind = CallKind::kOther;
  uint8_t type = 0;    // collectives::DataType
  uint64_t count = 0;  // elements, as the caller gave them
  uint64_t element_bytes = 1;
  int root = 0;
  int peer = -1;     // of the communicator
  int channels = 0;  // that it has kernels on; 0: not known
};

struct CallSlot {
  std::atomic<uint64_t> state{0};
  std::atomic<uint16_t> communicator{0};
  std::atomic<RecordName> name{0}, group{0};
  std::atomic<uint8_t> type{0};
  std::atomic<bool> reported{false};  // there is a record of its start
  std::atomic<uint16_t> kernels_expected{0}, kernels_ended{0};
  std::atomic<uint32_t> sequence{0};
  std::atomic<int32_t> peer{-1};
  std::atomic<uint64_t> bytes{0}, count{0}, check{0};
  std::atomic<int64_t> start_ns{0};
  std::atomic<int64_t> last_ns{0};  // a part, or the enqueueing, ended last

  CallRecord ToRecord(RecordKind kind) const;
};

class ProfiledCalls {
 public:
  static constexpr size_t kCallsMax = 4096;

  // What a call has of its communicator.
  struct Caller {
    uint16_t communicator = 0;  // its slot
    int ranks = 0;
    RecordName group = 0;
    std::atomic<uint32_t>& sequence;  // of its next collective
  };

  explicit ProfiledCalls(ProfilerRing& ring) : ring_(ring) {}

  // When the ring of records has been made: puts the names of calls into it.
  void WriteNames(Records& records);

  // Handles; null: there is no event. `kernels`: how many NCCL will report; 0: none.
  void* Start(const Caller& caller, const ProfiledCall& call, int kernels);
  void* StartKernel(void* call);
  // NCCL has enqueued the call.
  void Stop(const EventHandle& call);
  void StopKernel(const EventHandle& kernel);
  // Parts of a call; the first opens a call again that has ended. False: there is no such call.
  bool AddPart(const EventHandle& call);
  void EndPart(const EventHandle& call);

  // Ends the calls that are enqueued and have had no part under way for half a second.
  void Settle(int64_t now_ns);
  bool HasPartsUnderWay(uint16_t communicator);
  // Ends what the communicator has under way: NCCL has given it up.
  void Abandon(uint16_t communicator, int64_t now_ns);

 private:
  template <typename Change>
  void ChangeState(const EventHandle& handle, Change change);
  void Settle(CallSlot& call, int64_t now_ns);

  ProfilerRing& ring_;
  SlotRing<CallSlot, kCallsMax> calls_;
  std::array<std::atomic<RecordName>, kCallKinds> names_{};
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILED_CALLS_H_
