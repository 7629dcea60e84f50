// libweft-cuda.so: the only file that includes CUDA or NCCL. See device_table.h.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_table.h"
#include "collectives/cuda/nccl_entry.h"
#include "collectives/data_type.h"

namespace weft::collectives {
namespace {

static_assert(NCCL_UNIQUE_ID_BYTES == kWeftNcclIdBytes);

using cuda::Check;
using cuda::Fail;
using cuda::LastError;

int Check(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return 0;
  const char* details = ncclGetLastError(communicator);
  char reason[448];
  std::snprintf(reason, sizeof reason, "%s%s%s", ncclGetErrorString(result),
                details != nullptr && details[0] != '\0' ? "; " : "", details ? details : "");
  return Fail(call, reason);
}

cudaStream_t Native(WeftStream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t Native(WeftEvent* event) { return reinterpret_cast<cudaEvent_t>(event); }
ncclComm_t Native(WeftNcclCommunicator* communicator) {
  return reinterpret_cast<ncclComm_t>(communicator);
}

bool Native(int type, ncclDataType_t* native) {
  switch (static_cast<DataType>(type)) {
    case DataType::kBool:
    case DataType::kUint8:
      *native = ncclUint8;
      return true;
    case DataType::kInt8:
      *native = ncclInt8;
      return true;
    case DataType::kInt32:
      *native = ncclInt32;
      return true;
    case DataType::kInt64:
      *native = ncclInt64;
      return true;
    case DataType::kFloat16:
      *native = ncclFloat16;
      return true;
    case DataType::kBFloat16:
      *native = ncclBfloat16;
      return true;
    case DataType::kFloat32:
      *native = ncclFloat32;
      return true;
    case DataType::kFloat64:
      *native = ncclFloat64;
      return true;
    default:
      return false;
  }
}

size_t ElementBytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

bool Native(int op, ncclRedOp_t* native) {
  switch (static_cast<ReduceOp>(op)) {
    case ReduceOp::kSum:
      *native = ncclSum;
      return true;
    case ReduceOp::kAverage:
      *native = ncclAvg;
      return true;
    case ReduceOp::kMin:
      *native = ncclMin;
      return true;
    case ReduceOp::kMax:
      *native = ncclMax;
      return true;
    case ReduceOp::kProduct:
      *native = ncclProd;
      return true;
    default:
      return false;
  }
}

int BadType(const char* call) { return Fail(call, "NCCL has no such number type or operator"); }

int DeviceCount(int* count) { return WEFT_CALL(cudaGetDeviceCount, count); }
int SetDevice(int device) { return WEFT_CALL(cudaSetDevice, device); }
int DeviceName(int device, char* name, size_t size) {
  cudaDeviceProp properties;
  if (int failed = WEFT_CALL(cudaGetDeviceProperties, &properties, device)) return failed;
  std::snprintf(name, size, "%s", properties.name);
  return 0;
}

int Allocate(void** memory, size_t size) { return WEFT_CALL(cudaMalloc, memory, size); }
int Free(void* memory) { return WEFT_CALL(cudaFree, memory); }
int AllocatePinned(void** memory, size_t size) {
  return WEFT_CALL(cudaHostAlloc, memory, size, cudaHostAllocPortable);
}
int FreePinned(void* memory) { return WEFT_CALL(cudaFreeHost, memory); }
int CopyAsync(void* target, const void* source, size_t size, WeftStream* stream) {
  return WEFT_CALL(cudaMemcpyAsync, target, source, size, cudaMemcpyDefault, Native(stream));
}

int StreamCreate(WeftStream** stream, int high_priority) {
  int lowest = 0;
  int highest = 0;
  if (int failed = WEFT_CALL(cudaDeviceGetStreamPriorityRange, &lowest, &highest)) return failed;
  cudaStream_t native = nullptr;
  int failed = WEFT_CALL(cudaStreamCreateWithPriority, &native, cudaStreamNonBlocking,
                         high_priority != 0 ? highest : lowest);
  *stream = reinterpret_cast<WeftStream*>(native);
  return failed;
}
int StreamDestroy(WeftStream* stream) { return WEFT_CALL(cudaStreamDestroy, Native(stream)); }
int StreamSynchronize(WeftStream* stream) {
  return WEFT_CALL(cudaStreamSynchronize, Native(stream));
}
int StreamWaitEvent(WeftStream* stream, WeftEvent* event) {
  return WEFT_CALL(cudaStreamWaitEvent, Native(stream), Native(event), 0);
}
int EventCreate(WeftEvent** event) {
  cudaEvent_t native = nullptr;
  int failed = WEFT_CALL(cudaEventCreate, &native);
  *event = reinterpret_cast<WeftEvent*>(native);
  return failed;
}
int EventDestroy(WeftEvent* event) { return WEFT_CALL(cudaEventDestroy, Native(event)); }
int EventRecord(WeftEvent* event, WeftStream* stream) {
  return WEFT_CALL(cudaEventRecord, Native(event), Native(stream));
}
int EventQuery(WeftEvent* event, int* done) {
  cudaError_t error = cudaEventQuery(Native(event));
  *done = error == cudaSuccess ? 1 : 0;
  if (error != cudaErrorNotReady) return Check(error, "cudaEventQuery");
  cudaGetLastError();  // or the check behind the next kernel's launch takes it for that one's error
  return 0;
}
int EventElapsed(WeftEvent* start, WeftEvent* end, float* milliseconds) {
  return WEFT_CALL(cudaEventElapsedTime, milliseconds, Native(start), Native(end));
}

int NcclUniqueId(uint8_t id[kWeftNcclIdBytes]) {
  ncclUniqueId native;
  int failed = WEFT_CALL(ncclGetUniqueId, &native);
  std::memcpy(id, native.internal, kWeftNcclIdBytes);
  return failed;
}
// Entry points of the NCCL that this process has loaded, which need not be that of the build.
const NcclEntry* Entry() {
  static const NcclEntry* const entry = [] {
    static NcclEntry found;
    Dl_info about;
    if (dladdr(reinterpret_cast<void*>(&ncclGetVersion), &about) == 0)
      return static_cast<NcclEntry*>(nullptr);
    void* library = dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return library != nullptr && found.Find(library) == nullptr ? &found : nullptr;
  }();
  return entry;
}

int NoEntry(const char* call) { return Fail(call, "the loaded NCCL does not have it"); }

int NcclCan(int* splits, int* scales) {
  if (Entry() == nullptr) return NoEntry("ncclCommInitRank");
  *splits = Entry()->splits() ? 1 : 0;
  *scales = Entry()->scales() ? 1 : 0;
  return 0;
}
int NcclInit(WeftNcclCommunicator** communicator, int size, const uint8_t* ids, int id_count,
             int rank) {
  if (Entry() == nullptr) return NoEntry("ncclCommInitRank");
  const char* call = "";
  int result =
      Entry()->Init(communicator, size, rank,
                    reinterpret_cast<const uint8_t(*)[kWeftNcclIdBytes]>(ids), id_count, &call);
  return Check(static_cast<ncclResult_t>(result), call);
}
int NcclSplit(WeftNcclCommunicator* parent, int color, int key, WeftNcclCommunicator** child) {
  if (Entry() == nullptr || !Entry()->splits()) return NoEntry("ncclCommSplit");
  const char* call = "";
  int result = Entry()->Split(parent, color, key, child, &call);
  return Check(static_cast<ncclResult_t>(result), call, Native(parent));
}
// `failed`: the outcome of the group's calls, whose error goes before that of the group's end.
int EndGroup(int failed) {
  const ncclResult_t ended = ncclGroupEnd();
  return failed != 0 ? failed : Check(ended, "ncclGroupEnd");
}

int NcclDestroy(WeftNcclCommunicator* communicator) {
  return WEFT_CALL(ncclCommDestroy, Native(communicator));
}
// Within a group NCCL tells the kernels of all to end before it waits for any (2.22 and later).
int NcclAbort(WeftNcclCommunicator* const* communicators, int count) {
  if (int failed = WEFT_CALL(ncclGroupStart)) return failed;
  int failed = 0;
  for (int i = 0; i < count; ++i) {
    const int one = WEFT_CALL(ncclCommAbort, Native(communicators[i]));
    if (failed == 0) failed = one;
  }
  return EndGroup(failed);
}
int NcclAsyncError(WeftNcclCommunicator* communicator) {
  ncclResult_t result = ncclSuccess;
  if (int failed = WEFT_CALL(ncclCommGetAsyncError, Native(communicator), &result)) return failed;
  return Check(result, "asynchronous NCCL error", Native(communicator));
}
int NcclAllReduce(WeftNcclCommunicator* communicator, const void* input, void* output, size_t count,
                  int type, int op, WeftStream* stream) {
  ncclDataType_t native_type;
  ncclRedOp_t native_op;
  if (!Native(type, &native_type) || !Native(op, &native_op)) return BadType("ncclAllReduce");
  return WEFT_CALL(ncclAllReduce, input, output, count, native_type, native_op,
                   Native(communicator), Native(stream));
}
int NcclAllGather(WeftNcclCommunicator* communicator, const void* input, void* output, size_t count,
                  int type, WeftStream* stream) {
  ncclDataType_t native_type;
  if (!Native(type, &native_type)) return BadType("ncclAllGather");
  return WEFT_CALL(ncclAllGather, input, output, count, native_type, Native(communicator),
                   Native(stream));
}
int NcclReduceScatter(WeftNcclCommunicator* communicator, const void* input, void* output,
                      size_t count, int type, int op, WeftStream* stream) {
  ncclDataType_t native_type;
  ncclRedOp_t native_op;
  if (!Native(type, &native_type) || !Native(op, &native_op)) return BadType("ncclReduceScatter");
  return WEFT_CALL(ncclReduceScatter, input, output, count, native_type, native_op,
                   Native(communicator), Native(stream));
}
int NcclBroadcast(WeftNcclCommunicator* communicator, const void* input, void* output, size_t count,
                  int type, int root, WeftStream* stream) {
  ncclDataType_t native_type;
  if (!Native(type, &native_type)) return BadType("ncclBroadcast");
  return WEFT_CALL(ncclBroadcast, input, output, count, native_type, root, Native(communicator),
                   Native(stream));
}

int NcclExchange(WeftNcclCommunicator* communicator, const void* input, const size_t* input_counts,
                 const size_t* input_begins, void* output, const size_t* output_counts,
                 const size_t* output_begins, int size, int type, WeftStream* stream) {
  ncclDataType_t native_type;
  if (!Native(type, &native_type)) return BadType("ncclSend");
  const size_t element = ElementBytes(native_type);
  if (int failed = WEFT_CALL(ncclGroupStart)) return failed;
  int failed = 0;
  for (int peer = 0; peer < size && failed == 0; ++peer) {
    const auto* from = static_cast<const char*>(input) + input_begins[peer] * element;
    auto* to = static_cast<char*>(output) + output_begins[peer] * element;
    if (input_counts[peer] > 0) {
      failed = WEFT_CALL(ncclSend, from, input_counts[peer], native_type, peer,
                         Native(communicator), Native(stream));
    }
    if (failed == 0 && output_counts[peer] > 0) {
      failed = WEFT_CALL(ncclRecv, to, output_counts[peer], native_type, peer, Native(communicator),
                         Native(stream));
    }
  }
  return EndGroup(failed);
}

constexpr WeftDeviceTable kTable = {
    .version = kWeftDeviceTableVersion,
    .size = sizeof(WeftDeviceTable),
    .cuda_version = CUDART_VERSION,
    .nccl_version = NCCL_VERSION_CODE,
    .LastError = LastError,
    .DeviceCount = DeviceCount,
    .SetDevice = SetDevice,
    .DeviceName = DeviceName,
    .Allocate = Allocate,
    .Free = Free,
    .AllocatePinned = AllocatePinned,
    .FreePinned = FreePinned,
    .CopyAsync = CopyAsync,
    .StreamCreate = StreamCreate,
    .StreamDestroy = StreamDestroy,
    .StreamSynchronize = StreamSynchronize,
    .StreamWaitEvent = StreamWaitEvent,
    .EventCreate = EventCreate,
    .EventDestroy = EventDestroy,
    .EventRecord = EventRecord,
    .EventQuery = EventQuery,
    .EventElapsed = EventElapsed,
    .NcclUniqueId = NcclUniqueId,
    .NcclCan = NcclCan,
    .NcclInit = NcclInit,
    .NcclSplit = NcclSplit,
    .NcclDestroy = NcclDestroy,
    .NcclAbort = NcclAbort,
    .NcclAsyncError = NcclAsyncError,
    .NcclAllReduce = NcclAllReduce,
    .NcclAllGather = NcclAllGather,
    .NcclReduceScatter = NcclReduceScatter,
    .NcclBroadcast = NcclBroadcast,
    .NcclExchange = NcclExchange,
};

}  // namespace
}  // namespace weft::collectives

extern "C" __attribute__((visibility("default"))) const WeftDeviceTable* weft_device_table() {
  return &weft::collectives::kTable;
}
