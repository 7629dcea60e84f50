// Memory for tensors that is kept: what one step frees the next one takes again, without a system
// call and without a page fault.
//
// Pieces come from mappings of tens of MiB with huge pages. A request takes the smallest free piece
// that has place, at the lowest address of these; what is left of it stays free, and neighbours
// that are free become one again, across mappings as well where the kernel puts these side by side.
// A program that asks for the same sizes in the same order, as training steps do, is soon served
// from what it has. Pages are touched first, and so placed on a NUMA node, by whoever writes to a
// new piece.
//
// Thread-safe.
#ifndef WEFT_TRAINER_MEMORY_MEMORY_POOL_H_
#define WEFT_TRAINER_MEMORY_MEMORY_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace weft::train {

class MemoryPool {
 public:
  static constexpr size_t kUnit = 64;  // bytes that sizes and addresses are multiples of
  static constexpr size_t kMapping = size_t{32} << 20;  // the least that is mapped at a time

  MemoryPool() = default;
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  // Everything that it ever mapped stays: pieces may outlive all else.
  ~MemoryPool() = default;

  // At least `bytes`, above 0; null where the kernel has none. `bytes` becomes the piece's size,
  // which Free wants back.
  void* Allocate(size_t& bytes);
  void Free(void* piece, size_t bytes);
  // Gives the pages of free pieces back to the kernel. Their addresses stay, and have new pages
  // when they are touched again.
  void GiveBack();
  // Mappings so far, and what they have together.
  int64_t mappings() const;
  size_t mapped_bytes() const;
  // Bytes of all free pieces, whether pages are behind them or not.
  size_t free_bytes() const;

 private:
  using BySize = std::set<std::pair<size_t, char*>>;

  bool Map(size_t bytes);  // another mapping, all free
  void Add(char* mapping, size_t bytes);
  void GiveBackLocked();
  void Insert(char* piece, size_t bytes);  // as free, one with its neighbours
  void Erase(BySize::iterator piece);

  mutable std::mutex mutex_;
  std::map<char*, size_t> free_by_address_;
  BySize free_by_size_;
  char* lowest_ = nullptr;  // where the last mapping begins
  size_t free_bytes_ = 0, mapped_bytes_ = 0;
  int64_t mappings_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MEMORY_MEMORY_POOL_H_
