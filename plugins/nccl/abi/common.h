// What the interfaces between NCCL and its plugins share, in every version from 2.19 to 2.30.
// Declared here from the published interface (NVIDIA/nccl, plugins/*/README.md and the headers of
// v2.19.4 to v2.30.7), checked below and in tests/plugins/nccl: an error of one byte here is silent
// corruption of a job's data. x86-64 and every other LP64 machine lay these out alike.
#ifndef WEFT_PLUGINS_NCCL_ABI_COMMON_H_
#define WEFT_PLUGINS_NCCL_ABI_COMMON_H_

#include <cstddef>
#include <cstdint>

namespace weft::nccl::abi {

// ncclResult_t. Of these kInProgress never leaves a plugin.
enum Result : int32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDebugLogLevel, and the subsystems that lines belong to.
enum LogLevel : int32_t { kLogNone = 0, kLogVersion, kLogWarn, kLogInfo, kLogAbort, kLogTrace };
inline constexpr unsigned long kLogInit = 0x1, kLogNet = 0x10, kLogEnv = 0x80, kLogAll = ~0ul;

// ncclDebugLogger_t: printf-like, adds the line end itself, thread-safe.
using LogFunction = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                             const char* format, ...);

// ncclProfilerCallback_t: type 0 starts an event, 1 stops, 2 updates, 3 updates and stops it.
using ProfilerFunction = Result (*)(void** event, int type, void* parent, int64_t plugin_id,
                                    void* data);

// Kinds of memory that a plugin can be given.
inline constexpr int kPointerHost = 1, kPointerCuda = 2, kPointerDmaBuf = 4;

inline constexpr size_t kHandleBytes = 128;  // NCCL_NET_HANDLE_MAXSIZE
// Receives that may be in flight on one communicator; each may be a group of `maxRecvs`.
inline constexpr int kRequestsMax = 32;
// The most receives that NCCL groups.
inline constexpr int kGroupedReceivesMax = 8;
// What NCCL leaves in *request of irecv to permit completion before the data is there.
inline constexpr uintptr_t kOptionalReceiveCompletion = 0x1;

// ncclNetDeviceType: where the bytes are put together.
enum DeviceType : int32_t { kDeviceHost = 0, kDeviceUnpack = 1 };
inline constexpr int kDeviceUnpackVersion = 7;

// ncclNetDeviceHandle_v7..v12. A plugin of type kDeviceHost never touches one.
struct DeviceHandle {
  DeviceType type;
  int version;
  void* handle;
  size_t size;
  int needs_proxy_progress;
};

static_assert(sizeof(Result) == 4 && sizeof(LogLevel) == 4 && sizeof(DeviceType) == 4);
static_assert(sizeof(DeviceHandle) == 32);
static_assert(offsetof(DeviceHandle, type) == 0 && offsetof(DeviceHandle, version) == 4 &&
              offsetof(DeviceHandle, handle) == 8 && offsetof(DeviceHandle, size) == 16 &&
              offsetof(DeviceHandle, needs_proxy_progress) == 24);
static_assert(sizeof(unsigned long) == 8 && sizeof(void*) == 8, "LP64 only");

}  // namespace weft::nccl::abi

#endif  // WEFT_PLUGINS_NCCL_ABI_COMMON_H_
