// What NCCL lays out differently from version to version of what it gives its kernels, from 2.22
// on, whose kernels take their works as they do today (src/include/device.h of each version; for
// 2.32, whose sources are not public, what its host code hands to kernels). Offsets and
// sizes are in bytes.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_LAYOUT_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/plugins/gpu/scripted/nccl_device.h"

namespace weft::scripted {

// The structures, as far as the scripted GPU reads them: whole, wherever they came from.
struct Communicator {
  int rank, ranks;
  int buffer_sizes[kProtos];
  int p2p_chunk_size;
  volatile uint32_t* abort_flag;
  ProfilerCounters *work_started, *work_completed;  // [channels], null: this version has none
};

struct Channel {
  ChannelPeer** peers;     // [ranks]
  int previous, next;      // of the ring
  const int* user_ranks;   // [ranks], from this one on
  int index;               // in the ring
  uint64_t* work_counter;  // null where there are no profiler's counters
};

// A collective's share of channels channel_low to channel_high, elements split low, middle, high.
struct CollectiveWork {
  uint32_t channel_low, channel_high;
  bool profiled;
  uint32_t root;
  char *recv_buffer, *send_buffer;
  size_t count_low, count_middle, count_high;
  uint64_t grains_low, grains_middle, grains_high;  // of a chunk
};

// A slot's word between the kernel and the proxy thread that talks to the network plugin.
struct SlotWord {
  int mode;
  int64_t offset;  // bytes
  int64_t* size;   // bytes; the proxy waits for it to become 0 or more
};

class Layout {
 public:
  // The layout of a version (22809 for 2.28.9); without a value where its kernels are not emulated.
  static std::optional<Layout> Of(int version);

  Communicator ReadCommunicator(const char* communicator) const;
  Channel ReadChannel(const char* communicator, uint32_t channel) const;
  size_t collective_bytes() const { return collective_bytes_; }
  // The number of a batch's function, without the kind of call (ncclFunc_t) above it from 2.32 on.
  int FunctionOf(const WorkBatch& batch) const;
  CollectiveWork ReadCollective(const char* work) const;
  SlotWord ReadSlot(char* fifo, uint64_t slot) const;

  // The part of a send or receive that a channel has, of a power of two of channels.
  int PartOf(uint32_t channel, int base, int channels) const;
  // False: what does not fit the kernel's arguments would have to be acknowledged.
  bool reads_work_buffer() const { return version_ >= 22700; }

  // Rows of ncclDevFuncRowToId.
  int SendRecvRow() const { return 0; }
  int AllGatherRow(int protocol) const;
  int BroadcastRow(int protocol) const;
  int AllReduceRow(int reduction, int type, int algorithm, int protocol) const;
  int ReduceScatterRow(int reduction, int type, int protocol) const;

 private:
  explicit Layout(int version);

  int version_;
  bool has_profiler_counters_;
  size_t shift_;  // of what stands behind ncclKernelComm's workConsumed
  size_t channel_bytes_, ring_index_, work_counter_;
  // ncclDevWorkColl, recvbuff and countLo in it.
  size_t collective_bytes_, buffers_, counts_;
  int types_, gather_algorithms_;
};

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_LAYOUT_H_
