// The function tables that NCCL looks up by dlsym: ncclNetPlugin_v7 to v12. Members in NCCL's
// order; what each call means, who calls it on which thread, and what it may not do:
// docs/nccl-harness.md.
//
//   v7 -> v8   registered memory may be larger than int
//   v8 -> v9   message sizes are size_t; makeVDevice
//   v9 -> v10  profiler callback and handles; connect gets a config (traffic class)
//   v10 -> v11 init for each communicator, which gets a context; finalize; setNetAttr
//   v11 -> v12 only the properties and the virtual device grew
#ifndef WEFT_PLUGINS_NCCL_ABI_NET_H_
#define WEFT_PLUGINS_NCCL_ABI_NET_H_

#include "plugins/nccl/abi/common.h"
#include "plugins/nccl/abi/net_properties.h"

namespace weft::nccl::abi {

struct NetV7 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV7* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  Result (*reg_mr)(void* comm, void* data, int size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
};

struct NetV8 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
};

struct NetV9 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, VirtualDeviceV9* parts);
};

struct NetV10 {
  const char* name;
  Result (*init)(LogFunction log, ProfilerFunction profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, CommConfig* config, void* handle, void** send_comm,
                    DeviceHandle** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                  void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                  void** phandles, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, VirtualDeviceV9* parts);
};

struct NetV11 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, CommConfig* config, LogFunction log,
                 ProfilerFunction profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV11* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm,
                    DeviceHandle** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                  void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                  void** phandles, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, VirtualDeviceV9* parts);
  Result (*finalize)(void* context);
  Result (*set_net_attributes)(void* context, NetAttributes* attributes);
};

struct NetV12 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, CommConfig* config, LogFunction log,
                 ProfilerFunction profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV12* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm,
                    DeviceHandle** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                  void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                  void** phandles, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                   void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, VirtualDeviceV12* parts);
  Result (*finalize)(void* context);
  Result (*set_net_attributes)(void* context, NetAttributes* attributes);
};

static_assert(sizeof(NetV7) == 152);
WEFT_ABI_AT(NetV7, name, 0);
WEFT_ABI_AT(NetV7, init, 8);
WEFT_ABI_AT(NetV7, devices, 16);
WEFT_ABI_AT(NetV7, get_properties, 24);
WEFT_ABI_AT(NetV7, listen, 32);
WEFT_ABI_AT(NetV7, connect, 40);
WEFT_ABI_AT(NetV7, accept, 48);
WEFT_ABI_AT(NetV7, reg_mr, 56);
WEFT_ABI_AT(NetV7, reg_mr_dma_buf, 64);
WEFT_ABI_AT(NetV7, dereg_mr, 72);
WEFT_ABI_AT(NetV7, isend, 80);
WEFT_ABI_AT(NetV7, irecv, 88);
WEFT_ABI_AT(NetV7, iflush, 96);
WEFT_ABI_AT(NetV7, test, 104);
WEFT_ABI_AT(NetV7, close_send, 112);
WEFT_ABI_AT(NetV7, close_recv, 120);
WEFT_ABI_AT(NetV7, close_listen, 128);
WEFT_ABI_AT(NetV7, get_device_mr, 136);
WEFT_ABI_AT(NetV7, irecv_consumed, 144);

static_assert(sizeof(NetV8) == 152);
WEFT_ABI_AT(NetV8, name, 0);
WEFT_ABI_AT(NetV8, init, 8);
WEFT_ABI_AT(NetV8, devices, 16);
WEFT_ABI_AT(NetV8, get_properties, 24);
WEFT_ABI_AT(NetV8, listen, 32);
WEFT_ABI_AT(NetV8, connect, 40);
WEFT_ABI_AT(NetV8, accept, 48);
WEFT_ABI_AT(NetV8, reg_mr, 56);
WEFT_ABI_AT(NetV8, reg_mr_dma_buf, 64);
WEFT_ABI_AT(NetV8, dereg_mr, 72);
WEFT_ABI_AT(NetV8, isend, 80);
WEFT_ABI_AT(NetV8, irecv, 88);
WEFT_ABI_AT(NetV8, iflush, 96);
WEFT_ABI_AT(NetV8, test, 104);
WEFT_ABI_AT(NetV8, close_send, 112);
WEFT_ABI_AT(NetV8, close_recv, 120);
WEFT_ABI_AT(NetV8, close_listen, 128);
WEFT_ABI_AT(NetV8, get_device_mr, 136);
WEFT_ABI_AT(NetV8, irecv_consumed, 144);

static_assert(sizeof(NetV9) == 160);
WEFT_ABI_AT(NetV9, name, 0);
WEFT_ABI_AT(NetV9, init, 8);
WEFT_ABI_AT(NetV9, devices, 16);
WEFT_ABI_AT(NetV9, get_properties, 24);
WEFT_ABI_AT(NetV9, listen, 32);
WEFT_ABI_AT(NetV9, connect, 40);
WEFT_ABI_AT(NetV9, accept, 48);
WEFT_ABI_AT(NetV9, reg_mr, 56);
WEFT_ABI_AT(NetV9, reg_mr_dma_buf, 64);
WEFT_ABI_AT(NetV9, dereg_mr, 72);
WEFT_ABI_AT(NetV9, isend, 80);
WEFT_ABI_AT(NetV9, irecv, 88);
WEFT_ABI_AT(NetV9, iflush, 96);
WEFT_ABI_AT(NetV9, test, 104);
WEFT_ABI_AT(NetV9, close_send, 112);
WEFT_ABI_AT(NetV9, close_recv, 120);
WEFT_ABI_AT(NetV9, close_listen, 128);
WEFT_ABI_AT(NetV9, get_device_mr, 136);
WEFT_ABI_AT(NetV9, irecv_consumed, 144);
WEFT_ABI_AT(NetV9, make_virtual_device, 152);

static_assert(sizeof(NetV10) == 160);
WEFT_ABI_AT(NetV10, name, 0);
WEFT_ABI_AT(NetV10, init, 8);
WEFT_ABI_AT(NetV10, devices, 16);
WEFT_ABI_AT(NetV10, get_properties, 24);
WEFT_ABI_AT(NetV10, listen, 32);
WEFT_ABI_AT(NetV10, connect, 40);
WEFT_ABI_AT(NetV10, accept, 48);
WEFT_ABI_AT(NetV10, reg_mr, 56);
WEFT_ABI_AT(NetV10, reg_mr_dma_buf, 64);
WEFT_ABI_AT(NetV10, dereg_mr, 72);
WEFT_ABI_AT(NetV10, isend, 80);
WEFT_ABI_AT(NetV10, irecv, 88);
WEFT_ABI_AT(NetV10, iflush, 96);
WEFT_ABI_AT(NetV10, test, 104);
WEFT_ABI_AT(NetV10, close_send, 112);
WEFT_ABI_AT(NetV10, close_recv, 120);
WEFT_ABI_AT(NetV10, close_listen, 128);
WEFT_ABI_AT(NetV10, get_device_mr, 136);
WEFT_ABI_AT(NetV10, irecv_consumed, 144);
WEFT_ABI_AT(NetV10, make_virtual_device, 152);

static_assert(sizeof(NetV11) == 176);
WEFT_ABI_AT(NetV11, name, 0);
WEFT_ABI_AT(NetV11, init, 8);
WEFT_ABI_AT(NetV11, devices, 16);
WEFT_ABI_AT(NetV11, get_properties, 24);
WEFT_ABI_AT(NetV11, listen, 32);
WEFT_ABI_AT(NetV11, connect, 40);
WEFT_ABI_AT(NetV11, accept, 48);
WEFT_ABI_AT(NetV11, reg_mr, 56);
WEFT_ABI_AT(NetV11, reg_mr_dma_buf, 64);
WEFT_ABI_AT(NetV11, dereg_mr, 72);
WEFT_ABI_AT(NetV11, isend, 80);
WEFT_ABI_AT(NetV11, irecv, 88);
WEFT_ABI_AT(NetV11, iflush, 96);
WEFT_ABI_AT(NetV11, test, 104);
WEFT_ABI_AT(NetV11, close_send, 112);
WEFT_ABI_AT(NetV11, close_recv, 120);
WEFT_ABI_AT(NetV11, close_listen, 128);
WEFT_ABI_AT(NetV11, get_device_mr, 136);
WEFT_ABI_AT(NetV11, irecv_consumed, 144);
WEFT_ABI_AT(NetV11, make_virtual_device, 152);
WEFT_ABI_AT(NetV11, finalize, 160);
WEFT_ABI_AT(NetV11, set_net_attributes, 168);

static_assert(sizeof(NetV12) == 176);
WEFT_ABI_AT(NetV12, name, 0);
WEFT_ABI_AT(NetV12, init, 8);
WEFT_ABI_AT(NetV12, devices, 16);
WEFT_ABI_AT(NetV12, get_properties, 24);
WEFT_ABI_AT(NetV12, listen, 32);
WEFT_ABI_AT(NetV12, connect, 40);
WEFT_ABI_AT(NetV12, accept, 48);
WEFT_ABI_AT(NetV12, reg_mr, 56);
WEFT_ABI_AT(NetV12, reg_mr_dma_buf, 64);
WEFT_ABI_AT(NetV12, dereg_mr, 72);
WEFT_ABI_AT(NetV12, isend, 80);
WEFT_ABI_AT(NetV12, irecv, 88);
WEFT_ABI_AT(NetV12, iflush, 96);
WEFT_ABI_AT(NetV12, test, 104);
WEFT_ABI_AT(NetV12, close_send, 112);
WEFT_ABI_AT(NetV12, close_recv, 120);
WEFT_ABI_AT(NetV12, close_listen, 128);
WEFT_ABI_AT(NetV12, get_device_mr, 136);
WEFT_ABI_AT(NetV12, irecv_consumed, 144);
WEFT_ABI_AT(NetV12, make_virtual_device, 152);
WEFT_ABI_AT(NetV12, finalize, 160);
WEFT_ABI_AT(NetV12, set_net_attributes, 168);

}  // namespace weft::nccl::abi

#endif  // WEFT_PLUGINS_NCCL_ABI_NET_H_
