// What the profiler keeps of events under way: slots of fixed number, taken and given back without
// a lock, and the handles that NCCL holds of them. A handle is a number, never an address: one that
// is stale, or of another process, finds nothing.
#ifndef WEFT_PLUGINS_NCCL_PROFILER_SLOTS_H_
#define WEFT_PLUGINS_NCCL_PROFILER_SLOTS_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace weft::nccl {

inline constexpr size_t kCommunicatorsMax = 1024;  // open in one process

enum class EventKind : uint8_t {
  kNone,
  kGroup,         // needed by NCCL up to 2.27, else it shows nothing of what is in the group
  kCommunicator,  // a context
  kCall,
  kKernel,     // of a call
  kOperation,  // of the proxy
  kStep,       // of an operation
  kNet,        // of an operation
};

struct EventHandle {
  EventKind kind = EventKind::kNone;
  uint8_t step = 0;
  uint16_t index = 0;
  uint32_t generation = 0;

  void* ToPointer() const { return std::bit_cast<void*>(*this); }
  static EventHandle Of(const void* pointer) { return std::bit_cast<EventHandle>(pointer); }
};
static_assert(sizeof(EventHandle) == sizeof(void*));

// A slot's state: its generation (upper half), and of an event under way these bits, and the number
// of its parts that are under way.
struct SlotState {
  static constexpr uint64_t kBusy = 1u << 31, kStopped = 1u << 30, kSeen = 1u << 29;
  static constexpr uint64_t kPartsMask = 0xffff;

  uint64_t bits = 0;
  uint32_t generation() const { return static_cast<uint32_t>(bits >> 32); }
  bool busy() const { return (bits & kBusy) != 0; }
  bool stopped() const { return (bits & kStopped) != 0; }  // NCCL has stopped it: it is enqueued
  bool seen() const { return (bits & kSeen) != 0; }        // it has had parts
  uint64_t parts() const { return bits & kPartsMask; }
  static SlotState Fresh(uint32_t generation) { return {uint64_t{generation} << 32 | kBusy}; }
};

// Takes the slot that was taken longest ago, so that those which have ended are known for a while.
// All fields of a slot but its state are written by the thread that has taken the slot, or that
// ends it; a reader that loses a race for the slot drops what it read.
template <typename Slot, size_t kSlots>
class SlotRing {
 public:
  static_assert(std::has_single_bit(kSlots) && kSlots <= 65536);
  static constexpr size_t kCount = kSlots;

  // The slot's index and generation; nothing: all that were looked at are under way.
  std::optional<std::pair<uint16_t, uint32_t>> Take() {
    for (int tries = 0; tries < 64; ++tries) {
      const size_t i = next_.fetch_add(1, std::memory_order_relaxed) & (kSlots - 1);
      uint64_t bits = slots_[i].state.load(std::memory_order_acquire);
      if (SlotState{bits}.busy()) continue;
      const uint32_t generation = SlotState{bits}.generation() + 1;
      if (slots_[i].state.compare_exchange_strong(bits, SlotState::Fresh(generation).bits,
                                                  std::memory_order_acq_rel)) {
        return std::pair(static_cast<uint16_t>(i), generation);
      }
    }
    return std::nullopt;
  }
  // Null: not of this generation, or not under way.
  Slot* Find(const EventHandle& handle) {
    if (handle.index >= kSlots) return nullptr;
    const SlotState state{slots_[handle.index].state.load(std::memory_order_acquire)};
    const bool is_it = state.busy() && state.generation() == handle.generation;
    return is_it ? &slots_[handle.index] : nullptr;
  }
  Slot& operator[](size_t i) { return slots_[i]; }

 private:
  std::array<Slot, kSlots> slots_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILER_SLOTS_H_
