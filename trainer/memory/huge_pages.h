// Huge pages for large pieces of memory: fewer faults, and fewer misses of the TLB.
#ifndef WEFT_TRAINER_MEMORY_HUGE_PAGES_H_
#define WEFT_TRAINER_MEMORY_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace weft::train {
namespace {  // a symbol of its own would be one for all instruction sets of the kernels

// Asks the kernel for huge pages where they fit into [begin, begin + bytes). It is advice: where
// the kernel has none, all stays as it is. Thread-safe.
[[maybe_unused]] inline void AdviseHugePages(void* begin, size_t bytes) {
  constexpr uintptr_t kHugePage = 2 << 20;  // bytes: x86-64, and 64-bit ARM with pages of 4 KiB
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (address + bytes) / kHugePage * kHugePage;
  if (last > first) {
    (void)madvise(static_cast<char*>(begin) + (first - address), last - first, MADV_HUGEPAGE);
  }
}

}  // namespace
}  // namespace weft::train

#endif  // WEFT_TRAINER_MEMORY_HUGE_PAGES_H_
