#include "tests/plugins/gpu/scripted/kernels.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/plugins/gpu/scripted/connection.h"

namespace weft::scripted {
namespace {

using Collective = KernelTable::Collective;

// NCCL's enumerations, as its table of functions counts them.
constexpr int kFloat32 = 7, kSum = 0;
constexpr int kAlgorithmRing = 1;
constexpr size_t kFloatBytes = 4;

void SumFloats(char* dst, const char* a, const char* b, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kFloatBytes) {
    float x, y;
    memcpy(&x, a + i, kFloatBytes);
    memcpy(&y, b + i, kFloatBytes);
    x += y;
    memcpy(dst + i, &x, std::min(kFloatBytes, bytes - i));
  }
}

// What of a collective's elements a channel has (ncclCollCbdPart), in bytes.
struct Part {
  int64_t total, offset, bytes, chunk;
};

Part PartOf(const CollectiveWork& work, uint32_t channel, bool ll, int64_t element) {
  int64_t grain = ll ? 16 : 512;
  int64_t middles = static_cast<int64_t>(work.channel_high) - work.channel_low - 1;
  auto low = static_cast<int64_t>(work.count_low), middle = static_cast<int64_t>(work.count_middle),
       high = static_cast<int64_t>(work.count_high);
  Part part{.total = (low + middle * middles + high) * element};
  if (channel == work.channel_low) {
    part = {part.total, 0, low * element, static_cast<int64_t>(work.grains_low) * grain};
  } else if (channel == work.channel_high) {
    part = {part.total, (low + middles * middle) * element, high * element,
            static_cast<int64_t>(work.grains_high) * grain};
  } else {
    int64_t before = static_cast<int64_t>(channel) - work.channel_low - 1;
    part = {part.total, (low + before * middle) * element, middle * element,
            static_cast<int64_t>(work.grains_middle) * grain};
  }
  return part;
}

class Block {
 public:
  Block(const KernelTable& table, std::vector<char>& arguments, int batch, uint32_t channel)
      : table_(table),
        arguments_(arguments),
        args_(*reinterpret_cast<KernelArgs*>(arguments.data())),
        comm_(layout().ReadCommunicator(args_.communicator)),
        channel_(channel),
        here_(layout().ReadChannel(args_.communicator, channel)),
        batch_(batch) {}

  void Run() {
    try {
      while (batch_ >= 0) RunBatch();
    } catch (const Aborted&) {
    }
  }

 private:
  const Layout& layout() const { return table_.layout(); }
  ConnInfo* Recv(int peer, int index) { return &here_.peers[peer]->recv[index]; }
  ConnInfo* Send(int peer, int index) { return &here_.peers[peer]->send[index]; }

  const WorkBatch& batch_at(int index) const {
    return reinterpret_cast<const WorkBatch*>(arguments_.data() + sizeof(KernelArgs))[index];
  }

  // The works of a batch and of those that extend it, copied: send and receive change theirs.
  template <typename Read>
  auto TakeWorks(size_t work_bytes, Read&& read) {
    std::vector<decltype(read(nullptr))> works;
    while (true) {
      const WorkBatch& batch = batch_at(batch_);
      for (uint64_t bits = batch.offset_bits; bits != 0; bits &= bits - 1) {
        size_t offset =
            batch.offset_base + static_cast<size_t>(std::countr_zero(bits)) * work_bytes;
        works.push_back(read(args_.storage == 0 ? arguments_.data() + offset
                                                : args_.work_buffer + (offset & args_.work_mask)));
      }
      bool extends = batch.next_extends != 0;
      batch_ = batch.next_jump == 0 ? -1 : batch_ + static_cast<int>(batch.next_jump);
      if (!extends) return works;
    }
  }

  // For NCCL's profiler: which of the channel's works have begun, or ended.
  template <typename Work>
  void Note(const std::vector<Work>& works, ProfilerCounters* counters) {
    auto now = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    uint64_t count = *here_.work_counter;
    for (const Work& work : works) {
      ++count;
      if (!work.profiled) continue;
      counters[channel_].data[count % 64].timestamp = now;
      std::atomic_ref(counters[channel_].data[count % 64].counter).store(count);
    }
  }

  void RunBatch() {
    const WorkBatch& batch = batch_at(batch_);
    const KernelTable::Function* function = table_.Find(layout().FunctionOf(batch));
    auto type = static_cast<WorkType>(batch.work_type);
    if (function == nullptr || (type != WorkType::kP2p && type != WorkType::kCollective) ||
        (args_.storage != 0 && !layout().reads_work_buffer())) {
      fprintf(stderr, "scripted GPU: function %u with works of type %u in %s is not emulated\n",
              static_cast<unsigned>(batch.function), static_cast<unsigned>(batch.work_type),
              args_.storage == 0 ? "the arguments" : "a buffer");
      abort();
    }
    if (type == WorkType::kP2p) {
      auto works = TakeWorks(sizeof(P2pWork), [](const char* from) {
        P2pWork work;
        memcpy(&work, from, sizeof work);
        return work;
      });
      RunNoted(works, [&] { SendAndReceive(works); });
    } else {
      auto works = TakeWorks(layout().collective_bytes(),
                             [&](const char* from) { return layout().ReadCollective(from); });
      RunNoted(works, [&] {
        for (const CollectiveWork& work : works) RunCollective(*function, work);
      });
    }
  }

  template <typename Work, typename Run>
  void RunNoted(const std::vector<Work>& works, Run&& run) {
    if (here_.work_counter == nullptr) return run();
    Note(works, comm_.work_started);
    run();
    Note(works, comm_.work_completed);
    *here_.work_counter += works.size();
  }

  Protocol CollectiveProtocol(bool ll, bool single_steps) const {
    return {.ll = ll,
            .slices_per_chunk = single_steps ? 1 : 2,
            .steps_per_slice = single_steps ? 1 : 2,
            .step_bytes = static_cast<size_t>(comm_.buffer_sizes[kProtoSimple] / kSteps),
            .ll_slot_bytes = static_cast<size_t>(comm_.buffer_sizes[kProtoLl] / kSteps)};
  }

  void RunCollective(const KernelTable::Function& function, const CollectiveWork& work) {
    bool reduces = function.collective == Collective::kAllReduce ||
                   function.collective == Collective::kReduceScatter;
    auto element = static_cast<int64_t>(reduces ? kFloatBytes : 1);  // others: bytes, says NCCL
    Part part = PartOf(work, channel_, function.ll, element);
    auto protocol = CollectiveProtocol(function.ll, function.collective == Collective::kBroadcast);
    Connections ring(layout(), comm_, protocol, Recv(here_.previous, 0), Send(here_.next, 0));
    switch (function.collective) {
      case Collective::kAllReduce:
        return AllReduce(work, part, ring);
      case Collective::kReduceScatter:
        return ReduceScatter(work, part, ring);
      case Collective::kAllGather:
        return AllGather(work, part, ring);
      case Collective::kBroadcast:
        return Broadcast(work, part, ring);
      case Collective::kSendRecv:
        break;
    }
  }

  void AllReduce(const CollectiveWork& work, const Part& part, Connections& ring) {
    int ranks = comm_.ranks, index = here_.index;
    int64_t chunk = part.chunk;
    for (int64_t done = 0; done < part.bytes; done += ranks * part.chunk) {
      int64_t left = part.bytes - done;
      if (left < ranks * chunk) {
        chunk = (left / static_cast<int64_t>(kFloatBytes) + ranks - 1) / ranks;
        chunk = (chunk + 3) / 4 * 4 * static_cast<int64_t>(kFloatBytes);
      }
      auto chunk_of = [&](int which, bool receives, bool sends, bool reads, bool writes) {
        int64_t offset = (which % ranks) * chunk;
        int64_t at = part.offset + done + offset;
        ring.Do({.receives = receives,
                 .sends = sends,
                 .input = reads ? work.send_buffer + at : nullptr,
                 .output = writes ? work.recv_buffer + at : nullptr,
                 .bytes = std::min(chunk, left - offset)},
                SumFloats);
      };
      chunk_of(index + ranks - 1, false, true, true, false);
      for (int j = 2; j < ranks; ++j) chunk_of(index + ranks - j, true, true, true, false);
      chunk_of(index, true, true, true, true);
      for (int j = 1; j < ranks - 1; ++j) chunk_of(index + ranks - j, true, true, false, true);
      chunk_of(index + 1, true, false, false, true);
    }
  }

  void ReduceScatter(const CollectiveWork& work, const Part& part, Connections& ring) {
    int ranks = comm_.ranks;
    const int* order = here_.user_ranks;
    for (int64_t done = 0; done < part.bytes; done += part.chunk) {
      int64_t at = part.offset + done, bytes = std::min(part.chunk, part.bytes - done);
      for (int j = 1; j <= ranks; ++j) {
        bool last = j == ranks;
        ring.Do({.receives = j > 1,
                 .sends = !last,
                 .input = work.send_buffer + at + order[ranks - j] * part.total,
                 .output = last ? work.recv_buffer + at : nullptr,
                 .bytes = bytes},
                SumFloats);
      }
    }
  }

  void AllGather(const CollectiveWork& work, const Part& part, Connections& ring) {
    int ranks = comm_.ranks;
    const int* order = here_.user_ranks;
    for (int64_t done = 0; done < part.bytes; done += part.chunk) {
      int64_t at = part.offset + done, bytes = std::min(part.chunk, part.bytes - done);
      for (int j = 0; j < ranks; ++j) {
        ring.Do({.receives = j > 0,
                 .sends = j < ranks - 1,
                 .input = j == 0 ? work.send_buffer + at : nullptr,
                 .output = work.recv_buffer + at + order[(ranks - j) % ranks] * part.total,
                 .bytes = bytes});
      }
    }
  }

  void Broadcast(const CollectiveWork& work, const Part& part, Connections& ring) {
    int root = static_cast<int>(work.root);
    bool first = here_.user_ranks[0] == root, last = here_.user_ranks[1] == root;
    for (int64_t done = 0; done < part.bytes; done += part.chunk) {
      int64_t at = part.offset + done;
      ring.Do({.receives = !first,
               .sends = !last,
               .input = first ? work.send_buffer + at : nullptr,
               .output = work.recv_buffer + at,
               .bytes = std::min(part.chunk, part.bytes - done)});
    }
  }

  // All at once, as the warps of a kernel: a send may wait for a receive of the same rank.
  void SendAndReceive(const std::vector<P2pWork>& works) {
    std::vector<std::thread> threads;
    for (const P2pWork& work : works) {
      if (work.send_rank == comm_.rank) {
        if (Takes(work, work.send_channels)) {
          auto [begin, end] = Bounds(work, work.send_channels, work.send_bytes);
          memmove(work.recv_address + begin, work.send_address + begin, end - begin);
        }
        continue;
      }
      for (bool sends : {false, true}) {
        if (Takes(work, sends ? work.send_channels : work.recv_channels)) {
          threads.emplace_back([this, &work, sends] { OneWay(work, sends); });
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

  int PartIndex(const P2pWork& work) const {
    return layout().PartOf(channel_, work.channel_base, work.channels);
  }
  bool Takes(const P2pWork& work, int parts) const { return PartIndex(work) < parts; }
  std::pair<size_t, size_t> Bounds(const P2pWork& work, size_t parts, size_t bytes) const {
    size_t part = ((bytes + parts - 1) / parts + 4095) / 4096 * 4096;
    auto index = static_cast<size_t>(PartIndex(work));
    return {std::min(index * part, bytes), std::min((index + 1) * part, bytes)};
  }

  // A floating point number of 5 bits of exponent and 3 of fraction.
  static int64_t ChunkBytes(uint8_t code) {
    int exponent = code >> 3, fraction = (code & 7) | (exponent == 0 ? 0 : 8);
    return static_cast<int64_t>(fraction) << std::max(exponent - 1, 0);
  }

  void OneWay(const P2pWork& work, bool sends) {
    auto [begin, end] = sends ? Bounds(work, work.send_channels, work.send_bytes)
                              : Bounds(work, work.recv_channels, work.recv_bytes);
    Protocol protocol = CollectiveProtocol(sends ? work.send_ll : work.recv_ll, true);
    protocol.step_bytes = static_cast<size_t>(comm_.p2p_chunk_size);
    int64_t chunk = ChunkBytes(sends ? work.send_chunk_size : work.recv_chunk_size);
    try {
      Connections connection(layout(), comm_, protocol, sends ? nullptr : Recv(work.recv_rank, 1),
                             sends ? Send(work.send_rank, 1) : nullptr);
      auto bytes = static_cast<int64_t>(end - begin);
      int64_t done = 0;
      do {  // nothing is a message too
        int64_t part = std::min(chunk, bytes - done);
        connection.Do({.receives = !sends,
                       .sends = sends,
                       .input = sends ? work.send_address + begin + done : nullptr,
                       .output = sends ? nullptr : work.recv_address + begin + done,
                       .bytes = part});
        done += part;
      } while (done < bytes);
    } catch (const Aborted&) {
    }
  }

  const KernelTable& table_;
  std::vector<char>& arguments_;
  KernelArgs& args_;
  const Communicator comm_;
  const uint32_t channel_;
  const Channel here_;
  int batch_;
};

}  // namespace

KernelTable::KernelTable(const Layout& layout, const int* row_to_id) : layout_(layout) {
  functions_.push_back({row_to_id[layout.SendRecvRow()], {Collective::kSendRecv, false}});
  for (int protocol : {kProtoLl, kProtoSimple}) {
    auto add = [&](int row, Collective collective) {
      functions_.push_back({row_to_id[row], {collective, protocol == kProtoLl}});
    };
    add(layout.AllGatherRow(protocol), Collective::kAllGather);
    add(layout.BroadcastRow(protocol), Collective::kBroadcast);
    add(layout.AllReduceRow(kSum, kFloat32, kAlgorithmRing, protocol), Collective::kAllReduce);
    add(layout.ReduceScatterRow(kSum, kFloat32, protocol), Collective::kReduceScatter);
  }
}

const KernelTable::Function* KernelTable::Find(int id) const {
  for (const auto& [known, function] : functions_) {
    if (known == id) return &function;
  }
  return nullptr;
}

void EmulateKernel(const KernelTable& table, std::vector<char>& arguments) {
  uint64_t mask = reinterpret_cast<KernelArgs*>(arguments.data())->channel_mask;
  std::vector<std::thread> blocks;
  for (int block = 0; mask != 0; ++block, mask &= mask - 1) {
    auto channel = static_cast<uint32_t>(std::countr_zero(mask));
    blocks.emplace_back(
        [&table, &arguments, block, channel] { Block(table, arguments, block, channel).Run(); });
  }
  for (std::thread& block : blocks) block.join();
}

}  // namespace weft::scripted
