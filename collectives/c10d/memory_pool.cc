#include "collectives/c10d/memory_pool.h"

#include <algorithm>
#include <utility>

namespace weft::collectives {
namespace {

// Kept bytes over the most that were in use at once. FSDP has a layer's gathered parameters and its
// gradients in turn: one time that much would let go of the first for the second, and back.
constexpr size_t kKeptShare = 2;

}  // namespace

MemoryPool::Memory MemoryPool::Take(size_t bytes, const Allocator& allocate) {
  if (forks_ != ForkCount()) return allocate(bytes);
  Piece piece;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The last that came back is the warmest in the caches.
    auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                              [bytes](const Piece& kept) { return kept.bytes == bytes; });
    if (found != kept_.rend()) {
      piece = std::move(*found);
      kept_.erase(std::next(found).base());
      kept_bytes_ -= bytes;
    }
  }
  if (piece.memory == nullptr) piece = {allocate(bytes), bytes};
  if (piece.memory == nullptr) return nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_ += bytes;
    in_use_max_ = std::max(in_use_max_, in_use_);
  }
  return Lent(std::move(piece));
}

MemoryPool::Memory MemoryPool::Lent(Piece piece) {
  std::byte* data = piece.memory.get();
  return {data, [piece = std::move(piece), pool = weak_from_this()](std::byte*) mutable {
            if (const auto home = pool.lock()) home->GiveBack(std::move(piece));
            piece.memory.reset();
          }};
}

void MemoryPool::GiveBack(Piece piece) {
  if (forks_ != ForkCount()) return;
  std::deque<Piece> dropped;  // unmapped without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  in_use_ -= piece.bytes;
  if (closed_) return;
  kept_bytes_ += piece.bytes;
  kept_.push_back(std::move(piece));
  while (kept_bytes_ > kKeptShare * in_use_max_) {
    kept_bytes_ -= kept_.front().bytes;
    dropped.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

void MemoryPool::Close() {
  std::deque<Piece> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  kept_bytes_ = 0;
  dropped.swap(kept_);
}

}  // namespace weft::collectives
