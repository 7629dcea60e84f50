// The calls of libweft-cuda.so: streams, events, device and pinned memory, NCCL communicators.
//
// All CUDA code is in that one library. It is loaded at run time (device.h) where there is a GPU,
// and is built by the preset `cuda`; nothing else includes or links CUDA, so one build of
// everything else serves machines with and without. This page is the C interface between the two
// and includes nothing of CUDA.
//
// Every call returns 0, or an error whose text LastError() of the same thread gives, naming the
// CUDA or NCCL call. Streams, events and communicators are opaque; sizes are bytes unless said
// otherwise. The calls are as thread-safe as CUDA's and NCCL's own: anything but two threads on one
// communicator.
#ifndef WEFT_COLLECTIVES_CUDA_DEVICE_TABLE_H_
#define WEFT_COLLECTIVES_CUDA_DEVICE_TABLE_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// Raised with every change of WeftDeviceTable; a library of another version is refused.
inline constexpr uint32_t kWeftDeviceTableVersion = 4;
inline constexpr size_t kWeftNcclIdBytes = 128;

struct WeftStream;
struct WeftEvent;
struct WeftNcclCommunicator;

struct WeftDeviceTable {
  uint32_t version;      // kWeftDeviceTableVersion
  uint32_t size;         // sizeof(WeftDeviceTable)
  int32_t cuda_version;  // of the runtime it was built with, as 13000
  int32_t nccl_version;  // of the NCCL it was built with, as 22809

  const char* (*LastError)();

  // Devices.
  int (*DeviceCount)(int* count);
  int (*SetDevice)(int device);  // of this thread
  int (*DeviceName)(int device, char* name, size_t size);

  // Memory. CopyAsync takes any mixture of host and device addresses; host memory should be pinned.
  int (*Allocate)(void** device_memory, size_t size);
  int (*Free)(void* device_memory);
  int (*AllocatePinned)(void** host_memory, size_t size);
  int (*FreePinned)(void* host_memory);
  int (*CopyAsync)(void* target, const void* source, size_t size, WeftStream* stream);

  // Streams and events. Priority: 0 is normal, 1 is the device's highest (communication's).
  int (*StreamCreate)(WeftStream** stream, int high_priority);
  int (*StreamDestroy)(WeftStream* stream);
  int (*StreamSynchronize)(WeftStream* stream);
  int (*StreamWaitEvent)(WeftStream* stream, WeftEvent* event);
  int (*EventCreate)(WeftEvent** event);  // with timing
  int (*EventDestroy)(WeftEvent* event);
  int (*EventRecord)(WeftEvent* event, WeftStream* stream);
  int (*EventQuery)(WeftEvent* event, int* done);
  int (*EventElapsed)(WeftEvent* start, WeftEvent* end, float* milliseconds);

  // NCCL. `type` and `op` are the values of collectives/data_type.h; counts are elements.
  int (*NcclUniqueId)(uint8_t id[kWeftNcclIdBytes]);
  // What the loaded NCCL has beyond that: ncclCommSplit, ncclCommInitRankScalable.
  int (*NcclCan)(int* splits, int* scales);
  // `ids`: `id_count` of them, one after the other. See nccl_entry.h for what is called.
  int (*NcclInit)(WeftNcclCommunicator** communicator, int size, const uint8_t* ids, int id_count,
                  int rank);
  int (*NcclSplit)(WeftNcclCommunicator* parent, int color, int key, WeftNcclCommunicator** child);
  int (*NcclDestroy)(WeftNcclCommunicator* communicator);
  // All that may wait for one another in one call: aborting a communicator waits for its kernels,
  // which the GPU may not begin before those of another one have ended.
  int (*NcclAbort)(WeftNcclCommunicator* const* communicators, int count);
  int (*NcclAsyncError)(WeftNcclCommunicator* communicator);  // 0: all is well so far
  int (*NcclAllReduce)(WeftNcclCommunicator* communicator, const void* input, void* output,
                       size_t count, int type, int op, WeftStream* stream);
  int (*NcclAllGather)(WeftNcclCommunicator* communicator, const void* input, void* output,
                       size_t count, int type, WeftStream* stream);
  int (*NcclReduceScatter)(WeftNcclCommunicator* communicator, const void* input, void* output,
                           size_t count, int type, int op, WeftStream* stream);
  int (*NcclBroadcast)(WeftNcclCommunicator* communicator, const void* input, void* output,
                       size_t count, int type, int root, WeftStream* stream);
  // All to all, of any number of elements: from `input`, beginning at element input_begins[i], the
  // input_counts[i] for rank i, and likewise what comes from it into `output`; arrays of `size`.
  int (*NcclExchange)(WeftNcclCommunicator* communicator, const void* input,
                      const size_t* input_counts, const size_t* input_begins, void* output,
                      const size_t* output_counts, const size_t* output_begins, int size, int type,
                      WeftStream* stream);
};

// The library's one symbol.
const WeftDeviceTable* weft_device_table();

}  // extern "C"

#endif  // WEFT_COLLECTIVES_CUDA_DEVICE_TABLE_H_
