#include "tests/plugins/gpu/scripted/layout.h"

#include <cstring>

namespace weft::scripted {
namespace {

constexpr int kReduceAlgorithms = 6, kReductions = 5;

// ncclKernelComm, from its first byte on. Version 2.30 has another flag beside isAllNvlink.
constexpr size_t kRank = 0, kRanks = 4, kBufferSizes = 16, kP2pChunkSize = 28;
constexpr size_t kAbortFlag = 48, kChannels = 56, kWorkStarted = 72, kWorkCompleted = 80;

// ncclDevChannel.
constexpr size_t kPeers = 0, kPrevious = 8, kNext = 12, kUserRanks = 16;

template <typename T>
T Read(const char* from, size_t offset) {
  T value;
  memcpy(&value, from + offset, sizeof value);
  return value;
}

// Its works hold two more pointers and a rank, which 2.32 has taken out again.
bool IsVersion30(int version) { return version >= 23000 && version < 23100; }

}  // namespace

std::optional<Layout> Layout::Of(int version) {
  if (version < kNcclVersionFirst || version > kNcclVersionLast) return std::nullopt;
  return Layout(version);
}

Layout::Layout(int version)
    : version_(version),
      has_profiler_counters_(version >= 22700),
      shift_(version >= 22300 && version < 22700 ? 8 : 0),
      channel_bytes_(version >= 22500 && version < 22600 ? 352 : 368),
      ring_index_(version >= 22900 ? 32 : 24),
      work_counter_(version >= 22900 ? 360 : 352),
      collective_bytes_(IsVersion30(version) ? 128
                        : version >= 22300   ? 96
                                             : 64),
      buffers_(IsVersion30(version) ? 24 : 8),
      counts_(IsVersion30(version) ? 80
              : version >= 22300   ? 56
                                   : 24),
      types_(version >= 22400 ? 12 : 10),
      gather_algorithms_(version >= 22300 ? 4 : 3) {}

Communicator Layout::ReadCommunicator(const char* from) const {
  Communicator out{.rank = Read<int>(from, kRank),
                   .ranks = Read<int>(from, kRanks),
                   .p2p_chunk_size = Read<int>(from, kP2pChunkSize),
                   .abort_flag = Read<volatile uint32_t*>(from, kAbortFlag + shift_)};
  memcpy(out.buffer_sizes, from + kBufferSizes, sizeof out.buffer_sizes);
  if (has_profiler_counters_) {
    out.work_started = Read<ProfilerCounters*>(from, kWorkStarted);
    out.work_completed = Read<ProfilerCounters*>(from, kWorkCompleted);
  }
  return out;
}

Channel Layout::ReadChannel(const char* communicator, uint32_t channel) const {
  char* from = Read<char*>(communicator, kChannels + shift_) + channel * channel_bytes_;
  return {.peers = Read<ChannelPeer**>(from, kPeers),
          .previous = Read<int>(from, kPrevious),
          .next = Read<int>(from, kNext),
          .user_ranks = Read<const int*>(from, kUserRanks),
          .index = Read<int>(from, ring_index_),
          .work_counter =
              has_profiler_counters_ ? reinterpret_cast<uint64_t*>(from + work_counter_) : nullptr};
}

CollectiveWork Layout::ReadCollective(const char* work) const {
  constexpr uint64_t kGrains = (1 << 21) - 1;  // of each third of the word
  constexpr uint32_t kProfiled = 1u << 31;
  auto first = Read<uint32_t>(work, 0);
  auto grains = Read<uint64_t>(work, counts_ + 24);
  return {.channel_low = first & 0xff,
          .channel_high = first >> 8 & 0xff,
          .profiled = has_profiler_counters_ && (first & kProfiled) != 0,
          .root = Read<uint32_t>(work, 4),
          .recv_buffer = Read<char*>(work, buffers_),
          .send_buffer = Read<char*>(work, buffers_ + 8),
          .count_low = Read<size_t>(work, counts_),
          .count_middle = Read<size_t>(work, counts_ + 8),
          .count_high = Read<size_t>(work, counts_ + 16),
          .grains_low = grains & kGrains,
          .grains_middle = grains >> 21 & kGrains,
          .grains_high = grains >> 42 & kGrains};
}

SlotWord Layout::ReadSlot(char* fifo, uint64_t slot) const {
  const bool is_wide = version_ >= 23200;  // the offset has 64 bits
  char* from = fifo + slot * (is_wide ? 32 : 24);
  return {.mode = Read<int>(from, 0),
          .offset = is_wide ? Read<int64_t>(from, 8) : Read<int>(from, 4),
          .size = reinterpret_cast<int64_t*>(from + (is_wide ? 16 : 8))};
}

int Layout::FunctionOf(const WorkBatch& batch) const {
  constexpr int kFunctions = 1 << 11;
  const int number = static_cast<int>(batch.function);
  return version_ >= 23200 ? number % kFunctions : number;
}

int Layout::PartOf(uint32_t channel, int base, int channels) const {
  int part = (static_cast<int>(channel) - base) & (channels - 1);
  if (version_ >= 22800) return part;
  int reversed = 0;  // its bits, of as many as the number of channels has
  for (int bit = channels >> 1; bit != 0; bit >>= 1, part >>= 1) {
    if ((part & 1) != 0) reversed |= bit;
  }
  return reversed;
}

int Layout::AllGatherRow(int protocol) const { return 1 + protocol; }

int Layout::BroadcastRow(int protocol) const { return 1 + gather_algorithms_ * kProtos + protocol; }

int Layout::AllReduceRow(int reduction, int type, int algorithm, int protocol) const {
  int gather_v = version_ >= 22900 ? kProtos : 0;
  int first = BroadcastRow(0) + kProtos + gather_v;
  return first + ((reduction * types_ + type) * kReduceAlgorithms + algorithm) * kProtos + protocol;
}

int Layout::ReduceScatterRow(int reduction, int type, int protocol) const {
  int reduce = AllReduceRow(kReductions, 0, 0, 0);
  int first = reduce + kReductions * types_ * kProtos;
  return first + (reduction * types_ + type) * gather_algorithms_ * kProtos + protocol;
}

}  // namespace weft::scripted
