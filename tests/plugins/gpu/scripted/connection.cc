#include "tests/plugins/gpu/scripted/connection.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace weft::scripted {
namespace {

// A line of the protocol LL: data counts once both flags are the slot's.
struct Line {
  uint32_t data_low, flag_low, data_high, flag_high;
};
constexpr size_t kLineData = 8;
constexpr uint64_t kLlCleanMask = 0x7ffffff8;  // NCCL_LL_CLEAN_MASK

uint64_t Load(uint64_t* counter) {
  return std::atomic_ref(*counter).load(std::memory_order_acquire);
}
void Store(uint64_t* counter, uint64_t value) {
  std::atomic_ref(*counter).store(value, std::memory_order_release);
}
size_t DivideUp(size_t a, size_t b) { return (a + b - 1) / b; }
uint64_t RoundUp(uint64_t a, uint64_t b) { return (a + b - 1) / b * b; }

}  // namespace

Connections::Connections(const Layout& layout, const Communicator& comm, const Protocol& protocol,
                         ConnInfo* recv, ConnInfo* send)
    : layout_(layout), comm_(comm), protocol_(protocol), recv_(recv), send_(send) {
  auto chunk = static_cast<uint64_t>(protocol.slices_per_chunk * protocol.steps_per_slice);
  if (recv_ != nullptr) {
    recv_step_ = protocol.ll ? recv_->step : RoundUp(recv_->step, chunk);
    if (!protocol.ll) Store(recv_->head, recv_step_);  // gives back what the rounding left out
  }
  if (send_ != nullptr) send_step_ = protocol.ll ? send_->step : RoundUp(send_->step, chunk);
}

Connections::~Connections() {
  if (recv_ != nullptr) recv_->step = recv_step_;
  if (send_ != nullptr) send_->step = send_step_;
}

template <typename Condition>
void Connections::Await(Condition&& condition) {
  for (int tries = 0; !condition(); ++tries) {
    if (*comm_.abort_flag != 0) throw Aborted();
    if (tries < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

void Connections::AwaitFilled(uint64_t step) {
  Await([&] { return Load(recv_->tail) >= step; });
}

void Connections::AwaitFree(uint64_t step) {
  Await([&] { return Load(send_->head) + kSteps >= step; });
}

char* Connections::SimpleSlot(const ConnInfo& conn, uint64_t step) const {
  uint64_t slot = step % kSteps;
  if (conn.fifo != nullptr) {
    const SlotWord word = layout_.ReadSlot(conn.fifo, slot);
    if (word.mode == kFifoOffset) return conn.buffs[kProtoSimple] + word.offset;
  }
  return conn.buffs[kProtoSimple] + slot * static_cast<size_t>(conn.step_size);
}

void Connections::Do(const Operation& operation, Reduction reduction) {
  auto bytes = static_cast<size_t>(std::max<int64_t>(operation.bytes, 0));
  if (protocol_.ll) return DoLl(operation, bytes, reduction);
  auto slices = static_cast<size_t>(protocol_.slices_per_chunk);
  size_t slice = protocol_.step_bytes * static_cast<size_t>(protocol_.steps_per_slice);
  slice = std::max(DivideUp(bytes, 16 * slices) * 16, slice / 32);
  for (size_t i = 0, offset = 0; i < slices; ++i) {
    size_t part = std::min(slice, bytes - offset);
    DoSlice(operation, offset, part, reduction);
    offset += part;
  }
}

void Connections::DoSlice(const Operation& operation, size_t offset, size_t bytes,
                          Reduction reduction) {
  auto steps = static_cast<uint64_t>(protocol_.steps_per_slice);
  const char* input = operation.input == nullptr ? nullptr : operation.input + offset;
  const char* received = nullptr;
  char* slot = nullptr;
  if (operation.receives) {
    AwaitFilled(recv_step_ + steps);
    received = SimpleSlot(*recv_, recv_step_);
  }
  if (operation.sends) {
    AwaitFree(send_step_ + steps);
    if (send_->fifo != nullptr) {
      *layout_.ReadSlot(send_->fifo, send_step_ % kSteps).size = static_cast<int64_t>(bytes);
    }
    slot = SimpleSlot(*send_, send_step_);
  }
  char* output = operation.output == nullptr ? slot : operation.output + offset;
  if (received != nullptr && input != nullptr) {
    reduction(output, received, input, bytes);
  } else {
    memmove(output, received != nullptr ? received : input, bytes);
  }
  if (slot != nullptr && slot != output) memcpy(slot, output, bytes);
  if (operation.receives) Store(recv_->head, recv_step_ += steps);
  if (operation.sends) Store(send_->tail, send_step_ += steps);
}

void Connections::DoLl(const Operation& operation, size_t bytes, Reduction reduction) {
  size_t lines = DivideUp(bytes, kLineData), slot_lines = protocol_.ll_slot_bytes / sizeof(Line);
  auto slot_of = [&](const ConnInfo& conn, uint64_t step) {
    return reinterpret_cast<volatile Line*>(conn.buffs[kProtoLl]) + step % kSteps * slot_lines;
  };
  volatile Line *from = nullptr, *to = nullptr;
  if (operation.receives) from = slot_of(*recv_, recv_step_);
  bool cleans = operation.sends && (send_step_ & kLlCleanMask) == kLlCleanMask;
  if (operation.sends) {
    AwaitFree(send_step_ + 1);
    to = slot_of(*send_, send_step_);
    if (send_->fifo != nullptr) {
      *layout_.ReadSlot(send_->fifo, send_step_ % kSteps).size =
          static_cast<int64_t>((cleans ? slot_lines : lines) * sizeof(Line));
    }
  }
  auto recv_flag = static_cast<uint32_t>(recv_step_ + 1);
  auto send_flag = static_cast<uint32_t>(send_step_ + 1);
  for (size_t i = 0; i < lines; ++i) {
    size_t part = std::min(kLineData, bytes - i * kLineData);
    char data[kLineData] = {};
    if (operation.input != nullptr) memcpy(data, operation.input + i * kLineData, part);
    if (from != nullptr) {
      Await([&] { return from[i].flag_low == recv_flag && from[i].flag_high == recv_flag; });
      uint32_t words[] = {from[i].data_low, from[i].data_high};
      char received[kLineData];
      memcpy(received, words, kLineData);
      if (operation.input != nullptr) {
        reduction(data, received, data, kLineData);
      } else {
        memcpy(data, received, kLineData);
      }
    }
    if (operation.output != nullptr) memcpy(operation.output + i * kLineData, data, part);
    if (to != nullptr) {
      uint32_t words[2];
      memcpy(words, data, kLineData);
      to[i].data_low = words[0];
      to[i].data_high = words[1];
      std::atomic_thread_fence(std::memory_order_release);
      to[i].flag_low = send_flag;
      to[i].flag_high = send_flag;
    }
  }
  for (size_t i = lines; cleans && i < slot_lines; ++i) {
    to[i].flag_low = send_flag;
    to[i].flag_high = send_flag;
  }
  if (operation.receives) Store(recv_->head, ++recv_step_);
  if (operation.sends) ++send_step_;
}

}  // namespace weft::scripted
