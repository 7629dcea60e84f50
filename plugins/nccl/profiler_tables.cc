// The profiler's tables that NCCL looks up in its profiler's library, else in the net plugin's:
// thin skins over profiler.h, which translate and decide nothing.
#include <cstring>

#include "collectives/data_type.h"
#include "plugins/nccl/abi/profiler.h"
#include "plugins/nccl/log.h"
#include "plugins/nccl/profiler.h"

namespace weft::nccl {
namespace {

using abi::Result;
using collectives::DataType;

constexpr char kName[] = "weft";

constexpr uint64_t kMaskOld =
    abi::kEventCollective | abi::kEventMessage | abi::kEventProxyOperation;
// 2.26 has events of networks, too, but hangs them on steps that are not theirs.
constexpr uint64_t kMaskNew = kMaskOld | abi::kEventProxyStep | abi::kEventNet;

struct Type {
  const char* name;
  DataType type;
  uint64_t bytes;
};
// In the order of ncclDataType_t. The unsigned ones are what has their size.
constexpr Type kTypes[] = {
    {"ncclInt8", DataType::kInt8, 1},        {"ncclUint8", DataType::kUint8, 1},
    {"ncclInt32", DataType::kInt32, 4},      {"ncclUint32", DataType::kInt32, 4},
    {"ncclInt64", DataType::kInt64, 8},      {"ncclUint64", DataType::kInt64, 8},
    {"ncclFloat16", DataType::kFloat16, 2},  {"ncclFloat32", DataType::kFloat32, 4},
    {"ncclFloat64", DataType::kFloat64, 8},  {"ncclBfloat16", DataType::kBFloat16, 2},
    {"ncclFloat8e4m3", DataType::kUint8, 1}, {"ncclFloat8e5m2", DataType::kUint8, 1}};

Type TypeOf(uint8_t number) { return kTypes[number < std::size(kTypes) ? number : 1]; }
Type TypeOf(const char* name) {
  for (const Type& type : kTypes) {
    if (name != nullptr && std::strcmp(name, type.name) == 0) return type;
  }
  return kTypes[1];  // ncclUint8 has no name in 2.24 to 2.30
}

CallKind KindOf(uint8_t function) {
  return function <= abi::kFunctionReceive ? static_cast<CallKind>(function) : CallKind::kOther;
}
CallKind KindOf(const char* function) {
  struct Function {
    const char* name;
    CallKind kind;
  };
  constexpr Function kFunctions[] = {{"AllReduce", CallKind::kAllReduce},
                                     {"AllGather", CallKind::kAllGather},
                                     {"ReduceScatter", CallKind::kReduceScatter},
                                     {"Broadcast", CallKind::kBroadcast},
                                     {"Reduce", CallKind::kReduce},
                                     {"Send", CallKind::kSend},
                                     {"Recv", CallKind::kReceive},
                                     {"SendRecv", CallKind::kSendReceive},
                                     {"AlltoAll", CallKind::kAllToAll},
                                     {"Gather", CallKind::kGather},
                                     {"Scatter", CallKind::kScatter}};
  for (const Function& one : kFunctions) {
    if (function != nullptr && std::strcmp(function, one.name) == 0) return one.kind;
  }
  return CallKind::kOther;
}

template <typename Call>
ProfiledCall CallOf(const Call& call) {
  const Type type = TypeOf(call.type);
  ProfiledCall out{.kind = KindOf(call.function),
                   .type = static_cast<uint8_t>(type.type),
                   .count = call.count,
                   .element_bytes = type.bytes};
  if constexpr (requires { call.root; }) out.root = call.root;
  if constexpr (requires { call.peer; }) out.peer = call.peer;
  if constexpr (requires { call.channels; }) out.channels = call.channels;
  return out;
}

template <typename Call>
void* StartCall(void* context, const Call& call, int rank) {
  Profiler& profiler = Profiler::OfProcess();
  if constexpr (requires { call.comm_hash; }) {
    profiler.Introduce(context, {.name = call.comm_name, .id = call.comm_hash, .rank = rank});
  }
  return profiler.StartCall(context, CallOf(call));
}

template <typename Event>
Result Start(void* context, void** event, Event* what) {
  Profiler& profiler = Profiler::OfProcess();
  *event = nullptr;
  switch (what->type) {
    case abi::kEventGroup:
      *event = EventHandle{EventKind::kGroup}.ToPointer();
      break;
    case abi::kEventCollective:
      *event = StartCall(context, what->collective, what->rank);
      break;
    case abi::kEventMessage:
      *event = StartCall(context, what->message, what->rank);
      break;
    case abi::kEventProxyOperation:
      *event = profiler.StartOperation(context, what->parent, what->operation.pid,
                                       what->operation.peer, what->operation.is_send != 0);
      break;
    case abi::kEventProxyStep:
      *event = profiler.flows().StartStep(what->parent, what->step.step);
      break;
    case abi::kEventKernelChannel:
      *event = profiler.calls().StartKernel(what->parent);
      break;
    case abi::kEventNet:
      *event = profiler.flows().StartNet(what->parent, what->net.id, what->net.data);
      break;
    default:
      break;
  }
  return abi::kSuccess;
}

Result Stop(void* event) {
  Profiler::OfProcess().Stop(event);
  return abi::kSuccess;
}

// Up to v3 the messages of an operation are states of it.
Result RecordV1(void* event, int state, abi::ProfilerStateV1* arguments) {
  if (arguments == nullptr) return abi::kSuccess;
  Profiler& profiler = Profiler::OfProcess();
  const auto& [bytes, steps] = arguments->operation;
  if (state > abi::kOperationReceiveDone) return abi::kSuccess;
  profiler.flows().Count(event, bytes);
  switch (state) {
    case abi::kOperationSendPeerWait:
    case abi::kOperationReceivePosted:
      profiler.flows().Post(event, steps);
      break;
    case abi::kOperationSendTransmitted:
    case abi::kOperationReceiveReceived:
      profiler.flows().Match(event, steps, bytes);
      break;
    case abi::kOperationSendDone:
      profiler.flows().Finish(event, steps, bytes);
      break;
    default:
      break;
  }
  return abi::kSuccess;
}

Result RecordV4(void* event, int state, abi::ProfilerStateV4* arguments) {
  Profiler& profiler = Profiler::OfProcess();
  switch (state) {
    case abi::kStepSendPeerWait:
    case abi::kStepReceiveWait:
      profiler.flows().PostStep(event);
      break;
    case abi::kStepSendWait:
    case abi::kStepReceiveFlushWait:
      profiler.flows().MatchStep(event, arguments == nullptr ? 0 : arguments->step.bytes);
      break;
    default:
      break;
  }
  return abi::kSuccess;
}

Result InitV1(void** context, int* mask) {
  *context = Profiler::OfProcess().Open(nullptr);
  *mask = *context == nullptr ? 0 : static_cast<int>(kMaskOld);
  return abi::kSuccess;
}
Result InitV4(void** context, int* mask, const char* comm_name, uint64_t comm_hash, int /*nodes*/,
              int ranks, int rank, abi::LogFunction log) {
  SetLogFunction(log);
  Profiler& profiler = Profiler::OfProcess();
  const ProfiledCommunicator about{comm_name, comm_hash, rank, ranks};
  *context = profiler.Open(&about);
  const uint64_t kernels = profiler.kernels() ? abi::kEventKernelChannel : 0;
  *mask = *context == nullptr ? 0 : static_cast<int>(kMaskNew | kernels);
  return abi::kSuccess;
}
Result InitV5(void** context, uint64_t comm_id, int* mask, const char* comm_name, int nodes,
              int ranks, int rank, abi::LogFunction log) {
  return InitV4(context, mask, comm_name, comm_id, nodes, ranks, rank, log);
}
Result Finalize(void* context) {
  Profiler::OfProcess().Close(context);
  return abi::kSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))

WEFT_EXPORT const abi::ProfilerV1 ncclProfiler_v1;
const abi::ProfilerV1 ncclProfiler_v1 = {kName, InitV1,   Start<abi::ProfilerEventV1>,
                                         Stop,  RecordV1, Finalize};
WEFT_EXPORT const abi::ProfilerV2 ncclProfiler_v2;
const abi::ProfilerV2 ncclProfiler_v2 = {kName, InitV1,   Start<abi::ProfilerEventV2>,
                                         Stop,  RecordV1, Finalize};
WEFT_EXPORT const abi::ProfilerV3 ncclProfiler_v3;
const abi::ProfilerV3 ncclProfiler_v3 = {kName, InitV1,   Start<abi::ProfilerEventV3>,
                                         Stop,  RecordV1, Finalize};
WEFT_EXPORT const abi::ProfilerV4 ncclProfiler_v4;
const abi::ProfilerV4 ncclProfiler_v4 = {kName, InitV4,   Start<abi::ProfilerEventV4>,
                                         Stop,  RecordV4, Finalize};
WEFT_EXPORT const abi::ProfilerV5 ncclProfiler_v5, ncclProfiler_v6;
const abi::ProfilerV5 ncclProfiler_v5 = {kName, InitV5,   Start<abi::ProfilerEventV5>,
                                         Stop,  RecordV4, Finalize};
const abi::ProfilerV5 ncclProfiler_v6 = ncclProfiler_v5;
// NOLINTEND(readability-identifier-naming)

}  // namespace weft::nccl
