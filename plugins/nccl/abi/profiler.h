// The tables of NCCL's profiler plugins, ncclProfiler_v1 to v6, and of the events what we read.
//
// v1: NCCL 2.23. v2: 2.24, 2.25. v3: 2.26. v4: 2.27. v5: 2.28. v6: from 2.29 on. From v2 on names
// (functions, types) are texts; from v4 on the communicator is named to init and not in its events;
// from v5 on the event's type has 64 bits.
//
// The mask that init writes is one for the process. Calls come from the application's, the proxy's
// and the net's threads at once; results are ignored but for init's. NCCL keeps what start_event
// leaves in *event; null is no event (2.23 stops that as well).
#ifndef WEFT_PLUGINS_NCCL_ABI_PROFILER_H_
#define WEFT_PLUGINS_NCCL_ABI_PROFILER_H_

#include "plugins/nccl/abi/common.h"

namespace weft::nccl::abi {

// Bits of the mask, and types of events.
inline constexpr uint64_t kEventGroup = 1, kEventCollective = 2, kEventMessage = 4,
                          kEventProxyOperation = 8, kEventProxyStep = 16, kEventProxyControl = 32,
                          kEventKernelChannel = 64, kEventNet = 128;

// ncclProfilerEventState_t.
enum ProfilerState : int {
  // States of proxy operations, up to v3. A send: its step is ready and waits for the receiver (at
  // every poll), was given to the network, is done. A receive: posted, its bytes are there, done.
  kOperationSendPosted = 0,
  kOperationSendPeerWait = 1,
  kOperationSendTransmitted = 2,
  kOperationSendDone = 3,
  kOperationReceivePosted = 4,
  kOperationReceiveReceived = 5,
  kOperationReceiveTransmitted = 6,
  kOperationReceiveDone = 7,
  // States of proxy steps. A send waits for the GPU, the receiver (from v4 on, at every poll), the
  // network; a receive for the network, for its flush, for the GPU.
  kStepSendGpuWait = 8,
  kStepSendWait = 9,
  kStepReceiveWait = 10,
  kStepReceiveFlushWait = 11,
  kStepReceiveGpuWait = 12,
  kStepSendPeerWait = 20,
  kNetUpdate = 21,
  kKernelChannelStop = 22,
};

// ncclFunc_t, of v1.
enum ProfilerFunctionV1 : uint8_t {
  kFunctionBroadcast,
  kFunctionReduce,
  kFunctionAllGather,
  kFunctionReduceScatter,
  kFunctionAllReduce,
  kFunctionSendReceive,
  kFunctionSend,
  kFunctionReceive,
};

struct CollectiveEventV1 {
  const char* comm_name;
  uint64_t comm_hash, sequence;
  uint8_t function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  uint8_t type;
  uint32_t op;
  size_t traffic_bytes;
  uint8_t channels_max, warps, algorithm, protocol;
  int is_collnet, is_nvls;
};
struct MessageEventV1 {
  const char* comm_name;
  uint64_t comm_hash;
  uint8_t function;
  void* buffer;
  uint8_t type;
  size_t count;
  int peer;
};

struct CollectiveEventV2 {
  const char* comm_name;
  uint64_t comm_hash, sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* type;
  size_t traffic_bytes;
  uint8_t channels_max, warps;
  const char *algorithm, *protocol;
};
struct MessageEventV2 {  // and v3
  const char* comm_name;
  uint64_t comm_hash;
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int peer;
};

struct CollectiveEventV3 {
  const char* comm_name;
  uint64_t comm_hash, sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* type;
  uint8_t channels_max, warps;
  const char *algorithm, *protocol;
};

struct CollectiveEventV4 {  // v5 and v6 have more behind it
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* type;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
  void* group;  // from v5 on
};
struct MessageEventV4 {
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int peer;
  uint8_t channels;
  void* group;  // from v5 on
};

struct ProxyOperationEvent {
  int pid;  // of the process that `parent` belongs to
  uint8_t channel;
  int peer;  // rank of the communicator
  int steps, chunk_bytes, is_send;
};
struct ProxyStepEvent {
  int step;
};
struct KernelChannelEvent {
  uint8_t channel;
  uint64_t timer;  // GPU's; from v4 on
};
struct NetEvent {
  int64_t id;
  void* data;
};

template <typename Type, typename Collective, typename Message>
struct ProfilerEvent {  // ncclProfilerEventDescr_vN
  Type type;
  void* parent;
  int rank;
  union {
    Collective collective;
    Message message;
    ProxyOperationEvent operation;
    ProxyStepEvent step;
    KernelChannelEvent kernel;
    NetEvent net;
  };
};
using ProfilerEventV1 = ProfilerEvent<uint8_t, CollectiveEventV1, MessageEventV1>;
using ProfilerEventV2 = ProfilerEvent<uint8_t, CollectiveEventV2, MessageEventV2>;
using ProfilerEventV3 = ProfilerEvent<uint8_t, CollectiveEventV3, MessageEventV2>;
using ProfilerEventV4 = ProfilerEvent<uint8_t, CollectiveEventV4, MessageEventV4>;
using ProfilerEventV5 = ProfilerEvent<uint64_t, CollectiveEventV4, MessageEventV4>;  // and v6

union ProfilerStateV1 {  // up to v3; null with states of steps
  struct {
    size_t bytes;  // of the operation up to now
    int steps;
  } operation;
  int appended;
};
union ProfilerStateV4 {
  struct {
    size_t bytes;  // of this step
  } step;
  int appended;
  void* net;
  uint64_t timer;
};

template <typename Init, typename Event, typename State>
struct ProfilerTable {
  const char* name;
  Init init;
  Result (*start_event)(void* context, void** event, Event* what);
  Result (*stop_event)(void* event);
  Result (*record_event_state)(void* event, int state, State* arguments);
  Result (*finalize)(void* context);
};
using ProfilerInitV1 = Result (*)(void** context, int* mask);
using ProfilerInitV4 = Result (*)(void** context, int* mask, const char* comm_name,
                                  uint64_t comm_hash, int nodes, int ranks, int rank,
                                  LogFunction log);
using ProfilerInitV5 = Result (*)(void** context, uint64_t comm_id, int* mask,
                                  const char* comm_name, int nodes, int ranks, int rank,
                                  LogFunction log);
using ProfilerV1 = ProfilerTable<ProfilerInitV1, ProfilerEventV1, ProfilerStateV1>;
using ProfilerV2 = ProfilerTable<ProfilerInitV1, ProfilerEventV2, ProfilerStateV1>;
using ProfilerV3 = ProfilerTable<ProfilerInitV1, ProfilerEventV3, ProfilerStateV1>;
using ProfilerV4 = ProfilerTable<ProfilerInitV4, ProfilerEventV4, ProfilerStateV4>;
using ProfilerV5 = ProfilerTable<ProfilerInitV5, ProfilerEventV5, ProfilerStateV4>;  // and v6

#define WEFT_ABI_PROFILER(type)                                                                 \
  static_assert(sizeof(type) == 48 && offsetof(type, name) == 0 && offsetof(type, init) == 8 && \
                offsetof(type, start_event) == 16 && offsetof(type, stop_event) == 24 &&        \
                offsetof(type, record_event_state) == 32 && offsetof(type, finalize) == 40)
WEFT_ABI_PROFILER(ProfilerV1);
WEFT_ABI_PROFILER(ProfilerV4);
WEFT_ABI_PROFILER(ProfilerV5);

static_assert(offsetof(ProfilerEventV1, parent) == 8 && offsetof(ProfilerEventV1, rank) == 16 &&
              offsetof(ProfilerEventV1, operation) == 24 &&
              offsetof(ProfilerEventV5, operation) == 24);
static_assert(offsetof(CollectiveEventV1, sequence) == 16 &&
              offsetof(CollectiveEventV1, function) == 24 &&
              offsetof(CollectiveEventV1, count) == 48 && offsetof(CollectiveEventV1, root) == 56 &&
              offsetof(CollectiveEventV1, type) == 60 &&
              offsetof(CollectiveEventV1, channels_max) == 80);
static_assert(offsetof(MessageEventV1, function) == 16 && offsetof(MessageEventV1, type) == 32 &&
              offsetof(MessageEventV1, count) == 40 && offsetof(MessageEventV1, peer) == 48);
static_assert(offsetof(CollectiveEventV2, function) == 24 &&
              offsetof(CollectiveEventV2, count) == 48 && offsetof(CollectiveEventV2, type) == 64 &&
              offsetof(CollectiveEventV2, channels_max) == 80);
static_assert(offsetof(MessageEventV2, function) == 16 && offsetof(MessageEventV2, type) == 32 &&
              offsetof(MessageEventV2, count) == 40 && offsetof(MessageEventV2, peer) == 48);
static_assert(offsetof(CollectiveEventV3, type) == 64 &&
              offsetof(CollectiveEventV3, channels_max) == 72);
static_assert(offsetof(CollectiveEventV4, function) == 8 &&
              offsetof(CollectiveEventV4, count) == 32 && offsetof(CollectiveEventV4, root) == 40 &&
              offsetof(CollectiveEventV4, type) == 48 &&
              offsetof(CollectiveEventV4, channels) == 56);
static_assert(offsetof(MessageEventV4, type) == 16 && offsetof(MessageEventV4, count) == 24 &&
              offsetof(MessageEventV4, peer) == 32 && offsetof(MessageEventV4, channels) == 36);
static_assert(offsetof(ProxyOperationEvent, channel) == 4 &&
              offsetof(ProxyOperationEvent, peer) == 8 &&
              offsetof(ProxyOperationEvent, is_send) == 20);
static_assert(offsetof(ProfilerStateV1, operation.steps) == 8);

}  // namespace weft::nccl::abi

#endif  // WEFT_PLUGINS_NCCL_ABI_PROFILER_H_
