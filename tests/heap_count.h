// Bytes on the heap that operator new has given out and delete has not taken back, of the whole
// process. Replaces both: for one source file of a test program.
#ifndef WEFT_TESTS_HEAP_COUNT_H_
#define WEFT_TESTS_HEAP_COUNT_H_

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace weft {

inline std::atomic<int64_t> heap_bytes{0};

}  // namespace weft

void* operator new(size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  weft::heap_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
void* operator new[](size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept {
  if (memory != nullptr) weft::heap_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

#endif  // WEFT_TESTS_HEAP_COUNT_H_
