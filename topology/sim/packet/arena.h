// Memory of the packet level: large pages where the kernel gives them, since the frames and queues
// of a big fabric are touched in no order and would otherwise miss the TLB at every step.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_ARENA_H_
#define WEFT_TOPOLOGY_SIM_PACKET_ARENA_H_

#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/status.h"
#include "topology/sim/packet/frame.h"

namespace weft::topology::packet {

constexpr size_t kLargePage = size_t{2} << 20;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using LargeArray = std::unique_ptr<T[], FreeMemory>;

// `count` values of a trivially destructible T, not initialised; aborts when memory is out.
template <typename T>
LargeArray<T> AllocateLarge(size_t count) {
  size_t bytes = count * sizeof(T);
  size_t alignment = bytes >= kLargePage ? kLargePage : 64;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, bytes == 0 ? alignment : bytes);
  WEFT_CHECK(memory != nullptr, "out of memory: " << bytes << " bytes");
  if (bytes >= kLargePage) madvise(memory, bytes, MADV_HUGEPAGE);
  return LargeArray<T>(static_cast<T*>(memory));
}

// For vectors of what is touched in no order.
template <typename T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <typename U>
  explicit LargeAllocator(const LargeAllocator<U>& /*other*/) {}
  T* allocate(size_t count) { return AllocateLarge<T>(count).release(); }
  void deallocate(T* memory, size_t /*count*/) { std::free(memory); }
  bool operator==(const LargeAllocator& /*other*/) const { return true; }
};
template <typename T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

// Blocks whose sizes are powers of two, cut from large chunks; freed blocks are used again for the
// same size. Everything goes back when the arena dies.
class Arena {
 public:
  void* Allocate(size_t bytes) {
    int size_class = ClassOf(bytes);
    auto& list = free_[static_cast<size_t>(size_class)];
    if (!list.empty()) {
      void* block = list.back();
      list.pop_back();
      return block;
    }
    return Cut(size_t{1} << size_class);
  }
  void Free(void* block, size_t bytes) {
    free_[static_cast<size_t>(ClassOf(bytes))].push_back(block);
  }

 private:
  static int ClassOf(size_t bytes) { return std::bit_width((bytes < 64 ? 64 : bytes) - 1); }
  void* Cut(size_t bytes) {
    if (bytes > kLargePage) {
      chunks_.push_back(AllocateLarge<std::byte>(bytes));
      return chunks_.back().get();
    }
    if (used_ + bytes > kLargePage) {
      chunks_.push_back(AllocateLarge<std::byte>(kLargePage));
      open_ = chunks_.back().get();
      used_ = 0;
    }
    void* block = open_ + used_;
    used_ += bytes;
    return block;
  }

  std::array<std::vector<void*>, 48> free_;
  std::vector<LargeArray<std::byte>> chunks_;
  std::byte* open_ = nullptr;
  size_t used_ = kLargePage;
};

// A queue of trivial values, which grows by doubling and never shrinks; not a container with
// value semantics: it belongs to the arena that it is given. Sixteen bytes, as many of them lie in
// each link and transfer.
template <typename T>
class Ring {
 public:
  bool empty() const { return count_ == 0; }
  uint32_t size() const { return count_; }
  const T& front() const { return data_[head_ & mask()]; }
  T& operator[](uint32_t i) { return data_[(head_ + i) & mask()]; }
  const T& operator[](uint32_t i) const { return data_[(head_ + i) & mask()]; }
  T PopFront() {
    T value = front();
    DropFront();
    return value;
  }
  void DropFront() {
    ++head_;
    --count_;
  }
  void PushBack(const T& value, Arena& arena) {
    if (data_ == nullptr || count_ > mask()) [[unlikely]]
      Grow(arena);
    data_[(head_ + count_) & mask()] = value;
    ++count_;
  }
  // Empties it and gives its memory back.
  void Release(Arena& arena) {
    if (data_ != nullptr) arena.Free(data_, (mask() + size_t{1}) * sizeof(T));
    *this = Ring();
  }
  // Where the next PushBack() writes, unless it has to grow; null at first.
  const T* end() const { return data_ + ((head_ + count_) & mask()); }

 private:
  uint32_t mask() const { return (1u << shift_) - 1; }
  [[gnu::noinline]] void Grow(Arena& arena) {
    uint32_t old_capacity = data_ == nullptr ? 0 : mask() + 1;
    uint32_t shift = data_ == nullptr ? kFirstShift : shift_ + 1u;
    WEFT_CHECK(shift < kCountBits, "a simulated queue of " << old_capacity << " entries is full");
    T* data = static_cast<T*>(arena.Allocate((size_t{1} << shift) * sizeof(T)));
    for (uint32_t i = 0; i < count_; ++i) data[i] = data_[(head_ + i) & mask()];
    if (data_ != nullptr) arena.Free(data_, old_capacity * sizeof(T));
    data_ = data;
    shift_ = shift & 31u;
    head_ = 0;
  }
  static constexpr uint32_t kFirstShift = 3;
  static constexpr uint32_t kCountBits = 27;
  T* data_ = nullptr;
  uint32_t head_ = 0;
  uint32_t count_ : kCountBits = 0;
  uint32_t shift_ : 5 = 0;  // of the capacity
};

// All frames in flight or queued. Freed ones are used again last in, first out: they are in cache.
class FramePool {
 public:
  Frame& operator[](uint32_t id) { return chunks_[id >> kShift][id & kMask]; }
  const Frame& operator[](uint32_t id) const { return chunks_[id >> kShift][id & kMask]; }
  uint32_t Allocate() {
    if (free_.empty()) Grow();
    uint32_t id = free_.back();
    free_.pop_back();
    return id;
  }
  void Free(uint32_t id) { free_.push_back(id); }

 private:
  static constexpr int kShift = 15;  // 2 MiB
  static constexpr uint32_t kMask = (1u << kShift) - 1;
  void Grow() {
    auto first = static_cast<uint32_t>(chunks_.size() << kShift);
    chunks_.push_back(AllocateLarge<Frame>(size_t{1} << kShift));
    for (uint32_t i = 1u << kShift; i > 0; --i) free_.push_back(first + i - 1);
  }
  std::vector<LargeArray<Frame>> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_ARENA_H_
