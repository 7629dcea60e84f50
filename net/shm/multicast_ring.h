// A ring that one process writes and all others of a group read: what it has for them in each of
// its calls is copied there once, however many they are, and they use it where it lies. Open MPI's
// coll/sm and MPICH's release-gather work alike (Graham, Shipman, "MPI support for multi-core
// architectures: optimized shared memory collectives", EuroPVM/MPI 2008).
//
// Memory of the writer, which readers map for reading alone:
//
//   0     MulticastHead
//   64    kEntries entries: MulticastEntry, then `bytes` of payload, rounded up to lines
//
// Call k, from 0, lies in entry k % kEntries. Each member of the group has a ring, and says in its
// head how many calls it has finished, in order, as a reader of all others: an entry may be written
// again when all have finished what was in it. The head also has the CPU on which the member waited
// last, a hint to others that wait on the same one (progress_driver.h).
//
// The writer may write anything at any time: indexes are checked, and payload is used as the
// numbers that it is. One writer; any number of readers, in other processes.
#ifndef WEFT_NET_SHM_MULTICAST_RING_H_
#define WEFT_NET_SHM_MULTICAST_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "net/shm/ring.h"
#include "net/shm/shared_memory.h"

namespace weft::net::shm {

struct alignas(64) MulticastHead {
  std::atomic<uint64_t> finished;  // calls, by the ring's owner
  // Where the owner waited last for longer than a moment: call + 1, in the upper 48 bits, and the
  // number of the CPU; 0: it never has.
  std::atomic<uint64_t> waited;
};
struct alignas(16) MulticastEntry {
  std::atomic<uint64_t> stamp;  // call + 1, once all of it is written
  uint64_t check;               // what the owner means by the call
};

class MulticastRing {
 public:
  static constexpr uint64_t kEntries = 16;
  static constexpr uint64_t kBytesMax = 64 << 10;  // of a payload
  // Where parts of a payload may begin: at multiples, as loops that reduce want it.
  static constexpr uint64_t kAlignment = sizeof(MulticastEntry);

  static constexpr uint64_t EntryBytes(uint64_t payload) {
    return (sizeof(MulticastEntry) + payload + 63) / 64 * 64;
  }
  static constexpr uint64_t MemoryBytes(uint64_t payload) {
    return sizeof(MulticastHead) + kEntries * EntryBytes(payload);
  }

 protected:
  MulticastRing() = default;
  MulticastRing(const std::byte* memory, uint64_t payload)
      : memory_(memory), entry_bytes_(EntryBytes(payload)) {}
  const MulticastHead& head() const { return *reinterpret_cast<const MulticastHead*>(memory_); }
  const std::byte* At(uint64_t call) const {
    return memory_ + sizeof(MulticastHead) + call % kEntries * entry_bytes_;
  }

 private:
  const std::byte* memory_ = nullptr;
  uint64_t entry_bytes_ = 0;
};

class MulticastWriter : private MulticastRing {
 public:
  MulticastWriter() = default;
  // `payload`: bytes that a call may have, 1 to kBytesMax.
  static absl::StatusOr<MulticastWriter> Create(uint64_t payload);
  // What readers have to map; null: there is no ring yet.
  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

  // The payload of `call`, to be filled and then published.
  std::byte* Payload(uint64_t call) {
    return const_cast<std::byte*>(At(call)) + sizeof(MulticastEntry);
  }
  void Publish(uint64_t call, uint64_t check) {
    auto& entry = *reinterpret_cast<MulticastEntry*>(const_cast<std::byte*>(At(call)));
    entry.check = check;
    entry.stamp.store(call + 1, std::memory_order_release);
  }
  // All calls below `calls`.
  void Finish(uint64_t calls) {
    const_cast<MulticastHead&>(head()).finished.store(calls, std::memory_order_release);
  }
  // The owner waits for others in `call`, on `cpu`, which is not negative.
  void TellWait(uint64_t call, int cpu) {
    const uint64_t waited = (call + 1) << 16 | static_cast<uint16_t>(cpu);
    const_cast<MulticastHead&>(head()).waited.store(waited, std::memory_order_relaxed);
  }

 private:
  MulticastWriter(std::shared_ptr<SharedMemory> memory, uint64_t payload)
      : MulticastRing(memory->data(), payload), memory_(std::move(memory)) {}
  std::shared_ptr<SharedMemory> memory_;
};

class MulticastReader : private MulticastRing {
 public:
  MulticastReader() = default;
  // Null where the memory is not that of a ring with this payload.
  static std::unique_ptr<MulticastReader> Open(std::shared_ptr<const std::byte> memory,
                                               uint64_t bytes, uint64_t payload);

  // The payload of `call` and its check; null: not written yet. It stays until Finish() of this
  // process's own ring says that the call is finished.
  const std::byte* Read(uint64_t call, uint64_t* check) const {
    const std::byte* at = At(call);
    const auto& entry = *reinterpret_cast<const MulticastEntry*>(at);
    if (entry.stamp.load(std::memory_order_acquire) != call + 1) return nullptr;
    *check = entry.check;
    return at + sizeof(MulticastEntry);
  }
  bool Has(uint64_t call) const {
    uint64_t check;
    return Read(call, &check) != nullptr;
  }
  uint64_t finished() const { return head().finished.load(std::memory_order_acquire); }
  // Whether the owner waited last on `cpu`, and in call `first` or a later one. A hint: the owner
  // may run elsewhere by now.
  bool HasWaitedOn(uint64_t first, int cpu) const {
    const uint64_t waited = head().waited.load(std::memory_order_relaxed);
    return waited >> 16 > first && static_cast<uint16_t>(waited) == static_cast<uint16_t>(cpu);
  }

 private:
  MulticastReader(std::shared_ptr<const std::byte> memory, uint64_t payload)
      : MulticastRing(memory.get(), payload), memory_(std::move(memory)) {}
  std::shared_ptr<const std::byte> memory_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_MULTICAST_RING_H_
