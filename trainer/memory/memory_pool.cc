#include "trainer/memory/memory_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "trainer/memory/huge_pages.h"
#include "trainer/memory/memory.h"

namespace weft::train {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// A rest that is smaller stays with the piece: such rests would only cut memory to pieces.
constexpr size_t kSmallestRest = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Near `wanted`, which may be null. Null where the kernel has none.
void* MapPages(void* wanted, size_t bytes) {
  void* const mapped = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

}  // namespace

void* MemoryPool::Allocate(size_t& bytes) {
  const size_t wanted = RoundUp(bytes, kUnit);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = free_by_size_.lower_bound({wanted, nullptr});
  if (found == free_by_size_.end()) {
    if (!Map(wanted)) return nullptr;
    found = free_by_size_.lower_bound({wanted, nullptr});
  }
  const auto [size, begin] = *found;
  Erase(found);
  bytes = size - wanted < kSmallestRest ? size : wanted;
  // From the end: new mappings grow downwards, so that pages which are there come first.
  if (bytes < size) Insert(begin, size - bytes);
  return begin + (size - bytes);
}

void MemoryPool::Free(void* piece, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Insert(static_cast<char*>(piece), bytes);
}

void MemoryPool::GiveBack() {
  const std::lock_guard<std::mutex> lock(mutex_);
  GiveBackLocked();
}

void MemoryPool::GiveBackLocked() {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [piece, bytes] : free_by_address_) {
    const auto address = reinterpret_cast<uintptr_t>(piece);
    const uintptr_t first = RoundUp(address, page), last = (address + bytes) / page * page;
    if (last > first) (void)madvise(piece + (first - address), last - first, MADV_DONTNEED);
  }
}

int64_t MemoryPool::mappings() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mappings_;
}

size_t MemoryPool::mapped_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mapped_bytes_;
}

size_t MemoryPool::free_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return free_bytes_;
}

bool MemoryPool::Map(size_t bytes) {
  // Pages of pieces that no request fits into are better off with the kernel where it has few.
  if (free_bytes_ > 0 && AvailableMemory().count() < static_cast<int64_t>(bytes)) GiveBackLocked();
  // Below the lowest mapping, which the kernel does where that place is free: with the free piece
  // there, if there is one, it is one piece.
  const auto lowest = free_by_address_.find(lowest_);
  const size_t there = lowest == free_by_address_.end() ? 0 : std::min(lowest->second, bytes);
  const size_t more = RoundUp(std::max(bytes - there, kMapping), kHugePage);
  if (lowest_ != nullptr) {
    void* const mapped = MapPages(lowest_ - more, more);
    if (mapped == lowest_ - more) {
      Add(static_cast<char*>(mapped), more);
      return true;
    }
    if (mapped != nullptr) munmap(mapped, more);
  }
  // Elsewhere, with room to begin at a huge page.
  const size_t size = RoundUp(std::max(bytes, kMapping), kHugePage);
  char* const begin = static_cast<char*>(MapPages(nullptr, size + kHugePage));
  if (begin == nullptr) return false;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = RoundUp(address, kHugePage) - address;
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + size, kHugePage - before);
  Add(begin + before, size);
  return true;
}

void MemoryPool::Add(char* mapping, size_t bytes) {
  AdviseHugePages(mapping, bytes);
  ++mappings_;
  mapped_bytes_ += bytes;
  lowest_ = mapping;
  Insert(mapping, bytes);
}

void MemoryPool::Insert(char* piece, size_t bytes) {
  free_bytes_ += bytes;
  auto next = free_by_address_.lower_bound(piece);
  if (next != free_by_address_.end() && piece + bytes == next->first) {
    bytes += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_by_address_.erase(next);
  }
  if (next != free_by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == piece) {
      piece = before->first;
      bytes += before->second;
      free_by_size_.erase({before->second, before->first});
      free_by_address_.erase(before);
    }
  }
  free_by_address_.emplace(piece, bytes);
  free_by_size_.emplace(bytes, piece);
}

void MemoryPool::Erase(BySize::iterator piece) {
  free_bytes_ -= piece->first;
  free_by_address_.erase(piece->second);
  free_by_size_.erase(piece);
}

}  // namespace weft::train
