// What NCCL 2.28 and its kernels tell each other: our own declarations of the structures that NCCL
// writes to GPU memory and gives to a kernel (its src/include/device.h, v2.28.9-1). Only what the
// scripted GPU reads has a name of its own.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_NCCL_DEVICE_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_NCCL_DEVICE_H_

#include <cstddef>
#include <cstdint>

namespace weft::scripted {

inline constexpr int kNcclVersion = 22809;  // ncclGetVersion of the NCCL whose layout this is

inline constexpr int kSteps = 8;  // NCCL_STEPS: the slots of a connection's buffer
inline constexpr int kProtoLl = 0, kProtoSimple = 2, kProtos = 3;

// A slot's word between the kernel and the proxy thread that talks to the network plugin.
struct ConnFifo {
  int mode;    // 1: the slot's data is at `offset` of the buffer
  int offset;  // bytes
  int64_t size;
  void* ptr;
};
inline constexpr int kFifoOffset = 1;

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
  ConnFifo* fifo;  // null where no proxy is between
  uint64_t step;   // steps done, kept from kernel to kernel
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

struct alignas(16) Channel {
  ChannelPeer** peers;  // [ranks]
  struct {
    int previous, next;
    int* user_ranks;  // [ranks], from this one on
    int index;
  } ring;
  int tree[5], collnet_chain[5], collnet_direct[27], nvls[40];
  uint32_t* work_fifo_done;
  uint64_t work_counter;
};
static_assert(offsetof(Channel, ring) == 8 && sizeof(Channel) == 368);

struct ProfilerCounters {
  struct {
    uint64_t counter, timestamp;
  } data[64];
};

struct KernelComm {
  int rank, ranks, node, nodes;
  int buffer_sizes[kProtos];
  int p2p_chunk_size;
  int is_all_nvlink;
  int* collnet_dense_to_user_rank;
  volatile uint32_t* abort_flag;
  Channel* channels;
  int* rank_to_local_rank;
  ProfilerCounters *work_started, *work_completed;  // [channels]
};
static_assert(sizeof(KernelComm) == 88);

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

// A collective's share of channels channel_low to channel_high, elements split low, middle, high.
struct alignas(16) CollectiveWork {
  uint32_t channel_low : 8, channel_high : 8, warps : 8;
  uint32_t op_arg_is_pointer : 1, registered : 1, net_registered : 1, one_node : 1, direct : 2,
      one_rank_per_node : 1, profiled : 1;
  uint32_t root;
  char* recv_buffer;
  char* send_buffer;
  uintptr_t offsets[2];
  uintptr_t* remote_addresses[2];
  size_t count_low, count_middle, count_high;
  uint64_t grains_low : 21, grains_middle : 21, grains_high : 21;  // of a chunk
  uint64_t op_arg;
};
static_assert(sizeof(CollectiveWork) == 96);

enum class WorkType : uint8_t { kP2p, kCollective, kRegisteredCollective };

struct alignas(16) WorkBatch {
  uint32_t next_jump : 14, next_extends : 1, work_type : 2, function : 15;
  uint32_t offset_base;
  uint64_t offset_bits;  // bit i: a work at offset_base + i * sizeof(work)
};
static_assert(sizeof(WorkBatch) == 16);

// Followed by the batches; the channel of the n-th block is the n-th set bit of the mask.
struct alignas(16) KernelArgs {
  KernelComm* comm;
  uint64_t channel_mask;
  uint8_t storage;  // 0: works lie in these arguments, otherwise in work_buffer
  uint32_t work_mask;
  char* work_buffer;
};
static_assert(sizeof(KernelArgs) == 32);

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_NCCL_DEVICE_H_
