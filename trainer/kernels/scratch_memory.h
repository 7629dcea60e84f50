// For the loops that are compiled once for each instruction set.
#ifndef WEFT_TRAINER_KERNELS_SCRATCH_MEMORY_H_
#define WEFT_TRAINER_KERNELS_SCRATCH_MEMORY_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "trainer/memory/huge_pages.h"

namespace weft::train::kernels {
namespace {  // a symbol of its own would be one for all instruction sets

// Memory of a thread that grows and is kept, on whole pages. What Take() gave before is gone.
class ScratchMemory {
 public:
  template <typename T>
  T* Take(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 4095) / 4096 * 4096;
    if (bytes > bytes_) {
      memory_.reset(std::aligned_alloc(4096, bytes));
      bytes_ = bytes;
      AdviseHugePages(memory_.get(), bytes);
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace
}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_SCRATCH_MEMORY_H_
