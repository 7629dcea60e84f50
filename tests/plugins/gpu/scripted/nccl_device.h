// What NCCL and its kernels tell each other: our own declarations of the structures that NCCL
// writes to GPU memory and gives to a kernel (its src/include/device.h), which are alike in
// versions 2.22 to 2.32; layout.h has the others. Only what the scripted GPU reads has a name of
// its own.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_NCCL_DEVICE_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_NCCL_DEVICE_H_

#include <cstddef>
#include <cstdint>

namespace weft::scripted {

// ncclGetVersion() of those whose kernels are emulated.
inline constexpr int kNcclVersionFirst = 22200, kNcclVersionLast = 23299;

inline constexpr int kSteps = 8;  // NCCL_STEPS: the slots of a connection's buffer
inline constexpr int kProtoLl = 0, kProtoSimple = 2, kProtos = 3;

inline constexpr int kFifoOffset = 1;  // a slot's data is at an offset of the buffer

// One direction of a connection on one channel.
struct ConnInfo {
  char* buffs[kProtos];
  void* mhandles[kProtos];
  uint64_t* tail;  // steps that the sender has filled
  uint64_t* head;  // steps that the receiver has taken
  int flags;
  int shared;
  int step_size;  // bytes of a slot of the simple protocol
  void** ptr_exchange;
  uint64_t* red_op_arg_exchange;
  char* fifo;     // [kSteps], see Layout; null where no proxy is between
  uint64_t step;  // steps done, kept from kernel to kernel
  uint64_t ll_last_cleaning;
  struct {
    int type, version;
    void* handle;
    size_t size;
    int needs_progress;
  } net_device;
};
static_assert(offsetof(ConnInfo, tail) == 48 && offsetof(ConnInfo, fifo) == 96);
static_assert(sizeof(ConnInfo) == 152);

struct ChannelPeer {
  ConnInfo send[2], recv[2];  // [0] collectives, [1] send and receive
};

struct ProfilerCounters {
  struct {
    uint64_t counter, timestamp;
  } data[64];
};

// Part of a send and of a receive, for one channel among several.
struct alignas(16) P2pWork {
  char *send_address, *recv_address;
  size_t send_bytes, recv_bytes;
  int send_rank, recv_rank;
  uint8_t channels, channel_base;
  uint8_t send_channels, recv_channels;      // 0: nothing in this direction
  uint8_t send_chunk_size, recv_chunk_size;  // 8-bit floating point, see ChunkBytes
  uint8_t send_ll : 1, recv_ll : 1, send_registered : 1, recv_registered : 1;
  uint8_t send_ipc : 1, recv_ipc : 1, profiled : 1;
};
static_assert(sizeof(P2pWork) == 48);

enum class WorkType : uint8_t { kP2p, kCollective, kRegisteredCollective };

struct alignas(16) WorkBatch {
  uint32_t next_jump : 14, next_extends : 1, work_type : 2, function : 15;
  uint32_t offset_base;
  uint64_t offset_bits;  // bit i: a work at offset_base + i * sizeof(work)
};
static_assert(sizeof(WorkBatch) == 16);

// Followed by the batches; the channel of the n-th block is the n-th set bit of the mask.
struct alignas(16) KernelArgs {
  const char* communicator;  // see Layout
  uint64_t channel_mask;
  uint8_t storage;  // 0: works lie in these arguments, otherwise in work_buffer
  uint32_t work_mask;
  char* work_buffer;
};
static_assert(sizeof(KernelArgs) == 32);

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_NCCL_DEVICE_H_
