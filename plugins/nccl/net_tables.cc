// The tables that NCCL looks up, thin skins over net.h: they translate and decide nothing.
#include <algorithm>
#include <vector>

#include "plugins/nccl/abi/net.h"
#include "plugins/nccl/net.h"

namespace weft::nccl {
namespace {

using abi::CommConfig;
using abi::DeviceHandle;
using abi::LogFunction;
using abi::ProfilerFunction;
using abi::Result;

constexpr char kName[] = "weft";

template <int kTable>
Result InitPlain(LogFunction log) {
  return Init(kTable, log);
}
template <int kTable>
Result InitWithProfiler(LogFunction log, ProfilerFunction profiler) {
  SetProfiler(profiler);
  return Init(kTable, log);
}
template <int kTable>
Result InitContext(void** context, uint64_t comm_id, CommConfig* config, LogFunction log,
                   ProfilerFunction profiler) {
  *context = nullptr;
  SetProfiler(profiler);
  Result result = Init(kTable, log);
  return result == abi::kSuccess ? NewContext(comm_id, config, context) : result;
}

// Narrows what is in every version, then what the version has more.
template <typename To>
Result PropertiesAs(int device, To* to) {
  abi::PropertiesV12 all;
  if (Result result = Properties(device, &all); result != abi::kSuccess) return result;
  to->name = all.name;
  to->pci_path = all.pci_path;
  to->guid = all.guid;
  to->ptr_support = all.ptr_support;
  to->speed = all.speed;
  to->port = all.port;
  to->latency = all.latency;
  to->max_comms = all.max_comms;
  to->max_recvs = all.max_recvs;
  to->device_type = all.device_type;
  to->device_version = all.device_version;
  if constexpr (requires { to->reg_is_global; }) to->reg_is_global = all.reg_is_global;
  if constexpr (requires { to->virtual_device; }) {
    to->force_flush = all.force_flush;
    constexpr int kRoom = sizeof(to->virtual_device.devices) / sizeof(int);
    to->virtual_device.count = std::min(all.virtual_device.count, kRoom);
    std::copy_n(all.virtual_device.devices, to->virtual_device.count, to->virtual_device.devices);
    to->max_p2p_bytes = all.max_p2p_bytes;
    to->max_coll_bytes = all.max_coll_bytes;
  }
  if constexpr (requires { to->max_multi_request_size; }) {
    to->max_multi_request_size = all.max_multi_request_size;
  }
  if constexpr (requires { to->rail_id; }) {
    to->rail_id = all.rail_id;
    to->plane_id = all.plane_id;
  }
  return abi::kSuccess;
}

template <typename Parts>
Result MakeVirtual(int* device, Parts* parts) {
  constexpr int kRoom = sizeof(parts->devices) / sizeof(int);
  const int count = std::clamp(parts->count, 0, kRoom);
  return MakeVirtualDevice(device, std::vector<int>(parts->devices, parts->devices + count));
}

Result ListenPlain(int device, void* handle, void** comm) {
  return Listen(SharedContext(), device, handle, comm);
}
Result ListenIn(void* context, int device, void* handle, void** comm) {
  return Listen(static_cast<Context*>(context), device, handle, comm);
}

Result ConnectPlain(int device, void* handle, void** comm, DeviceHandle** /*device_handle*/) {
  return Connect(SharedContext(), device, handle, comm);
}
Result ConnectWithConfig(int device, CommConfig* config, void* handle, void** comm,
                         DeviceHandle** /*device_handle*/) {
  return Connect(SharedContext(), device, handle, comm, config);
}
Result ConnectIn(void* context, int device, void* handle, void** comm,
                 DeviceHandle** /*device_handle*/) {
  return Connect(static_cast<Context*>(context), device, handle, comm);
}

Result AcceptHost(void* listen_comm, void** comm, DeviceHandle** /*device_handle*/) {
  return Accept(listen_comm, comm);
}

Result RegisterInt(void* comm, void* data, int size, int type, void** memory) {
  return RegisterMemory(comm, data, static_cast<size_t>(size), type, memory);
}

Result SendInt(void* comm, void* data, int size, int tag, void* memory, void** request) {
  return Send(comm, data, static_cast<size_t>(size), tag, memory, request);
}
Result SendSize(void* comm, void* data, size_t size, int tag, void* memory, void** request) {
  return Send(comm, data, size, tag, memory, request);
}
Result SendEvent(void* comm, void* data, size_t size, int tag, void* memory, void* event,
                 void** request) {
  return Send(comm, data, size, tag, memory, request, event);
}

Result ReceiveInt(void* comm, int n, void** data, int* sizes, int* tags, void** memory,
                  void** request) {
  return Receive(comm, n, data, sizes, tags, memory, request);
}
Result ReceiveSize(void* comm, int n, void** data, size_t* sizes, int* tags, void** memory,
                   void** request) {
  return Receive(comm, n, data, sizes, tags, memory, request);
}
Result ReceiveEvent(void* comm, int n, void** data, size_t* sizes, int* tags, void** memory,
                    void** events, void** request) {
  return Receive(comm, n, data, sizes, tags, memory, request,
                 events == nullptr ? nullptr : events[0]);
}

Result FlushAll(void* comm, int n, void** data, int* sizes, void** memory, void** request) {
  return Flush(comm, n, data, sizes, memory, request);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))

// Null: what GPUs would do with the network by themselves (getDeviceMr, irecvConsumed), and hints
// that no transport has a use for (setNetAttr).
WEFT_EXPORT const abi::NetV7 ncclNetPlugin_v7;
const abi::NetV7 ncclNetPlugin_v7 = {kName,          InitPlain<7>,
                                     Devices,        PropertiesAs<abi::PropertiesV7>,
                                     ListenPlain,    ConnectPlain,
                                     AcceptHost,     RegisterInt,
                                     RegisterDmaBuf, DeregisterMemory,
                                     SendInt,        ReceiveInt,
                                     FlushAll,       Test,
                                     CloseSend,      CloseReceive,
                                     CloseListen,    nullptr,
                                     nullptr};

WEFT_EXPORT const abi::NetV8 ncclNetPlugin_v8;
const abi::NetV8 ncclNetPlugin_v8 = {kName,          InitPlain<8>,
                                     Devices,        PropertiesAs<abi::PropertiesV8>,
                                     ListenPlain,    ConnectPlain,
                                     AcceptHost,     RegisterMemory,
                                     RegisterDmaBuf, DeregisterMemory,
                                     SendInt,        ReceiveInt,
                                     FlushAll,       Test,
                                     CloseSend,      CloseReceive,
                                     CloseListen,    nullptr,
                                     nullptr};

WEFT_EXPORT const abi::NetV9 ncclNetPlugin_v9;
const abi::NetV9 ncclNetPlugin_v9 = {kName,          InitPlain<9>,
                                     Devices,        PropertiesAs<abi::PropertiesV9>,
                                     ListenPlain,    ConnectPlain,
                                     AcceptHost,     RegisterMemory,
                                     RegisterDmaBuf, DeregisterMemory,
                                     SendSize,       ReceiveSize,
                                     FlushAll,       Test,
                                     CloseSend,      CloseReceive,
                                     CloseListen,    nullptr,
                                     nullptr,        MakeVirtual<abi::VirtualDeviceV9>};

WEFT_EXPORT const abi::NetV10 ncclNetPlugin_v10;
const abi::NetV10 ncclNetPlugin_v10 = {kName,          InitWithProfiler<10>,
                                       Devices,        PropertiesAs<abi::PropertiesV9>,
                                       ListenPlain,    ConnectWithConfig,
                                       AcceptHost,     RegisterMemory,
                                       RegisterDmaBuf, DeregisterMemory,
                                       SendEvent,      ReceiveEvent,
                                       FlushAll,       Test,
                                       CloseSend,      CloseReceive,
                                       CloseListen,    nullptr,
                                       nullptr,        MakeVirtual<abi::VirtualDeviceV9>};

WEFT_EXPORT const abi::NetV11 ncclNetPlugin_v11;
const abi::NetV11 ncclNetPlugin_v11 = {kName,          InitContext<11>,
                                       Devices,        PropertiesAs<abi::PropertiesV11>,
                                       ListenIn,       ConnectIn,
                                       AcceptHost,     RegisterMemory,
                                       RegisterDmaBuf, DeregisterMemory,
                                       SendEvent,      ReceiveEvent,
                                       FlushAll,       Test,
                                       CloseSend,      CloseReceive,
                                       CloseListen,    nullptr,
                                       nullptr,        MakeVirtual<abi::VirtualDeviceV9>,
                                       Finalize,       nullptr};

WEFT_EXPORT const abi::NetV12 ncclNetPlugin_v12;
const abi::NetV12 ncclNetPlugin_v12 = {kName,          InitContext<12>,
                                       Devices,        PropertiesAs<abi::PropertiesV12>,
                                       ListenIn,       ConnectIn,
                                       AcceptHost,     RegisterMemory,
                                       RegisterDmaBuf, DeregisterMemory,
                                       SendEvent,      ReceiveEvent,
                                       FlushAll,       Test,
                                       CloseSend,      CloseReceive,
                                       CloseListen,    nullptr,
                                       nullptr,        MakeVirtual<abi::VirtualDeviceV12>,
                                       Finalize,       nullptr};
// NOLINTEND(readability-identifier-naming)

}  // namespace weft::nccl
