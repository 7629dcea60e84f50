// What a net plugin says of a device: ncclNetProperties_v7 to v12, and the structs beside it that
// grew with the versions. NCCL owns the memory and believes the symbol's version: what is written
// must not be a byte longer.
//
//   v7 -> v8   + regIsGlobal          v9 -> v11   + maxMultiRequestSize  (v10 as v9)
//   v8 -> v9   + forceFlush, vProps, maxP2pBytes, maxCollBytes
//   v11 -> v12 vProps from 4 devices to 8, + railId, planeId
#ifndef WEFT_PLUGINS_NCCL_ABI_NET_PROPERTIES_H_
#define WEFT_PLUGINS_NCCL_ABI_NET_PROPERTIES_H_

#include "plugins/nccl/abi/common.h"

namespace weft::nccl::abi {

struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;  // Mbit/s
  int port;
  float latency;  // microseconds
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
};

// ncclNetVDeviceProps: the devices that make up a virtual one.
template <int kDevices>
struct VirtualDevice {
  int count;
  int devices[kDevices];
};
using VirtualDeviceV9 = VirtualDevice<4>;  // v9, v10, v11
using VirtualDeviceV12 = VirtualDevice<8>;

struct PropertiesV9 {  // v9 and v10
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
  VirtualDeviceV9 virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
  VirtualDeviceV9 virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request_size;
};

inline constexpr int16_t kIdUndefined = -1;

struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
  VirtualDeviceV12 virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request_size;
  int16_t rail_id;
  int16_t plane_id;
};

// ncclNetCommConfig_v10..v12.
struct CommConfig {
  int traffic_class;  // -1: undefined
};

// ncclNetAttr_v11, v12: hints; -1: undefined.
struct CommAttributes {
  int32_t max_concurrent_peers;
  int32_t min_concurrent_peers;
  int32_t max_flows_per_peer;
  int32_t min_flows_per_peer;
};
struct NetAttributes {
  CommAttributes send;
  CommAttributes receive;
  uint32_t op;  // bit masks
  uint32_t algo;
  uint32_t proto;
};

#define WEFT_ABI_AT(type, field, offset) static_assert(offsetof(type, field) == (offset))

static_assert(sizeof(PropertiesV7) == 56);
WEFT_ABI_AT(PropertiesV7, name, 0);
WEFT_ABI_AT(PropertiesV7, pci_path, 8);
WEFT_ABI_AT(PropertiesV7, guid, 16);
WEFT_ABI_AT(PropertiesV7, ptr_support, 24);
WEFT_ABI_AT(PropertiesV7, speed, 28);
WEFT_ABI_AT(PropertiesV7, port, 32);
WEFT_ABI_AT(PropertiesV7, latency, 36);
WEFT_ABI_AT(PropertiesV7, max_comms, 40);
WEFT_ABI_AT(PropertiesV7, max_recvs, 44);
WEFT_ABI_AT(PropertiesV7, device_type, 48);
WEFT_ABI_AT(PropertiesV7, device_version, 52);

static_assert(sizeof(PropertiesV8) == 64);
WEFT_ABI_AT(PropertiesV8, name, 0);
WEFT_ABI_AT(PropertiesV8, pci_path, 8);
WEFT_ABI_AT(PropertiesV8, guid, 16);
WEFT_ABI_AT(PropertiesV8, ptr_support, 24);
WEFT_ABI_AT(PropertiesV8, reg_is_global, 28);
WEFT_ABI_AT(PropertiesV8, speed, 32);
WEFT_ABI_AT(PropertiesV8, port, 36);
WEFT_ABI_AT(PropertiesV8, latency, 40);
WEFT_ABI_AT(PropertiesV8, max_comms, 44);
WEFT_ABI_AT(PropertiesV8, max_recvs, 48);
WEFT_ABI_AT(PropertiesV8, device_type, 52);
WEFT_ABI_AT(PropertiesV8, device_version, 56);

// v9 to v12 begin alike.
#define WEFT_ABI_COMMON_PART(type)       \
  WEFT_ABI_AT(type, name, 0);            \
  WEFT_ABI_AT(type, pci_path, 8);        \
  WEFT_ABI_AT(type, guid, 16);           \
  WEFT_ABI_AT(type, ptr_support, 24);    \
  WEFT_ABI_AT(type, reg_is_global, 28);  \
  WEFT_ABI_AT(type, force_flush, 32);    \
  WEFT_ABI_AT(type, speed, 36);          \
  WEFT_ABI_AT(type, port, 40);           \
  WEFT_ABI_AT(type, latency, 44);        \
  WEFT_ABI_AT(type, max_comms, 48);      \
  WEFT_ABI_AT(type, max_recvs, 52);      \
  WEFT_ABI_AT(type, device_type, 56);    \
  WEFT_ABI_AT(type, device_version, 60); \
  WEFT_ABI_AT(type, virtual_device, 64)

static_assert(sizeof(VirtualDeviceV9) == 20 && sizeof(VirtualDeviceV12) == 36);
WEFT_ABI_AT(VirtualDeviceV9, devices, 4);
WEFT_ABI_AT(VirtualDeviceV12, devices, 4);

static_assert(sizeof(PropertiesV9) == 104);
WEFT_ABI_COMMON_PART(PropertiesV9);
WEFT_ABI_AT(PropertiesV9, max_p2p_bytes, 88);
WEFT_ABI_AT(PropertiesV9, max_coll_bytes, 96);

static_assert(sizeof(PropertiesV11) == 112);
WEFT_ABI_COMMON_PART(PropertiesV11);
WEFT_ABI_AT(PropertiesV11, max_p2p_bytes, 88);
WEFT_ABI_AT(PropertiesV11, max_coll_bytes, 96);
WEFT_ABI_AT(PropertiesV11, max_multi_request_size, 104);

static_assert(sizeof(PropertiesV12) == 128);
WEFT_ABI_COMMON_PART(PropertiesV12);
WEFT_ABI_AT(PropertiesV12, max_p2p_bytes, 104);
WEFT_ABI_AT(PropertiesV12, max_coll_bytes, 112);
WEFT_ABI_AT(PropertiesV12, max_multi_request_size, 120);
WEFT_ABI_AT(PropertiesV12, rail_id, 124);
WEFT_ABI_AT(PropertiesV12, plane_id, 126);

static_assert(sizeof(CommConfig) == 4 && sizeof(CommAttributes) == 16);
static_assert(sizeof(NetAttributes) == 44);
WEFT_ABI_AT(NetAttributes, receive, 16);
WEFT_ABI_AT(NetAttributes, op, 32);
WEFT_ABI_AT(NetAttributes, algo, 36);
WEFT_ABI_AT(NetAttributes, proto, 40);

}  // namespace weft::nccl::abi

#endif  // WEFT_PLUGINS_NCCL_ABI_NET_PROPERTIES_H_
