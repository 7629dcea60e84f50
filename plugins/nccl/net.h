// The plugin itself, in the terms of the newest table; net_tables.cc adapts it to each version that
// NCCL asks for. Nothing throws past these calls, none blocks, and each logs its failure once.
#ifndef WEFT_PLUGINS_NCCL_NET_H_
#define WEFT_PLUGINS_NCCL_NET_H_

#include <cstdint>
#include <vector>

#include "plugins/nccl/abi/net.h"

namespace weft::nccl {

struct Context;  // of one NCCL communicator

// For tables without contexts (v7 to v10): one for the whole process.
Context* SharedContext();

// Reads the settings and looks for devices, once a process; fails when either makes no sense, so
// that NCCL says so and goes on without us. Thread-safe. `table`: the version of NCCL's table that
// it was called by.
abi::Result Init(int table, abi::LogFunction log);
// `config`: the communicator's; null: none.
abi::Result NewContext(uint64_t comm_id, const abi::CommConfig* config, void** context);
// Reaps connections that were begun and given up. Null is fine: NCCL 2.28 passes it after a failed
// init.
abi::Result Finalize(void* context);

// With those that were merged, but not where NCCL counts anew: as the first call after the only
// context that stands was made.
abi::Result Devices(int* count);
// Pure after Init; the strings live until the library is unloaded.
abi::Result Properties(int device, abi::PropertiesV12* properties);

// A device that merges others; *device is its number, one behind the last. Leaves all as it was
// when it fails.
abi::Result MakeVirtualDevice(int* device, const std::vector<int>& parts);

abi::Result Listen(Context* context, int device, void* handle, void** listen_comm);
abi::Result Connect(Context* context, int device, void* handle, void** send_comm,
                    const abi::CommConfig* config = nullptr);
abi::Result Accept(void* listen_comm, void** receive_comm);

abi::Result RegisterMemory(void* comm, void* data, size_t size, int type, void** memory);
// `fd` is NCCL's, and closed when this has returned.
abi::Result RegisterDmaBuf(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** memory);
abi::Result DeregisterMemory(void* comm, void* memory);

// From now on NCCL's profiler hears of links; null is ignored.
void SetProfiler(abi::ProfilerFunction profiler);
// `event`: what the profiler knows the message by; null: nothing.
abi::Result Send(void* send_comm, void* data, size_t size, int tag, void* memory, void** request,
                 void* event = nullptr);
// `sizes` of the caller's width.
template <typename Size>
abi::Result Receive(void* receive_comm, int count, void** data, const Size* sizes, const int* tags,
                    void** memory, void** request, void* event = nullptr);
// Host memory needs none: done at once (a null request).
abi::Result Flush(void* receive_comm, int count, void** data, const int* sizes, void** memory,
                  void** request);
abi::Result Test(void* request, int* done, int* sizes);

abi::Result CloseSend(void* send_comm);
abi::Result CloseReceive(void* receive_comm);
abi::Result CloseListen(void* listen_comm);

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_NET_H_
