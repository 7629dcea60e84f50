// Memory of tensors that a backend allocated, kept for the next ones when it comes back.
//
// Peers of the host map such memory (net/shm/shared_memory.h) at their first read, page by page.
// FSDP allocates its buffers anew for every layer of every step: with new memory each time, mapping
// takes several times as long as the copy. Kept memory is mapped everywhere already.
//
// Keeps at most twice the bytes that were in use at once so far. Thread-safe.
#ifndef WEFT_COLLECTIVES_C10D_MEMORY_POOL_H_
#define WEFT_COLLECTIVES_C10D_MEMORY_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "collectives/c10d/fork.h"

namespace weft::collectives {

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  using Memory = std::shared_ptr<std::byte>;
  // Memory of so many bytes; null: there is none.
  using Allocator = std::function<Memory(size_t bytes)>;

  // `bytes` of any contents, kept ones or from `allocate`; they come back with the last reference.
  // Null where `allocate` gives null.
  Memory Take(size_t bytes, const Allocator& allocate);
  // Lets go of what is kept, and from now on of what comes back.
  void Close();

 private:
  struct Piece {
    Memory memory;
    size_t bytes = 0;
  };
  Memory Lent(Piece piece);
  void GiveBack(Piece piece);

  // A child shares the memory with its parent: it must not use it again.
  const int forks_ = ForkCount();
  std::mutex mutex_;
  bool closed_ = false;
  size_t in_use_ = 0, in_use_max_ = 0, kept_bytes_ = 0;
  std::deque<Piece> kept_;  // the longest kept first
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_MEMORY_POOL_H_
