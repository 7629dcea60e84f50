// Rings of one link, over memory that two processes share: one writer, one reader.
//
// A cell carries a small message (a descriptor, a clear-to-send, a notice) and its own sequence
// number, so that a reader polls, and a small message costs, one cache line. The reader says how
// far it got in `ReaderLine`; the writer reads that only when it runs out of cells it knows to be
// free. Bulk bytes lie in an arena beside the forward ring; ArenaWriter gives out stretches of it
// that become free again with the cells that point to them, in order.
//
// The other side may write anything into shared memory at any time: what is read from it is copied
// once into locals, then checked. An index that cannot be is reported by corrupt().
//
// Classes here work on plain memory too; tests run them with two threads under ThreadSanitizer.
#ifndef WEFT_NET_SHM_RING_H_
#define WEFT_NET_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace weft::net::shm {

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

inline constexpr size_t kCellBytes = 128;  // two lines: what adjacent-line prefetch brings anyway
inline constexpr size_t kCellBodyBytes = kCellBytes - sizeof(uint64_t);

struct alignas(kCellBytes) Cell {
  std::atomic<uint64_t> sequence;  // n + 1 once message n (from 0) is whole
  std::byte body[kCellBodyBytes];
};
static_assert(sizeof(Cell) == kCellBytes);

inline constexpr uint32_t kClosed = 1;  // left in good order
inline constexpr uint32_t kGaveUp = 2;  // left because of an error

// What the reader of a ring says to its writer.
struct alignas(kCellBytes) ReaderLine {
  std::atomic<uint64_t> consumed;  // cells done with; they and their stretches may be overwritten
  std::atomic<uint32_t> quiet;     // 1: asleep readers need no ring for a clear-to-send
  std::atomic<uint32_t> closed;    // kClosed, kGaveUp, or still there
};

// What the writer of a ring says to its reader, besides the cells.
struct alignas(kCellBytes) WriterLine {
  std::atomic<uint64_t> wake_at;  // asleep until consumed >= this; 0: does not wait for space
};

// Between "I published" and "does the other side sleep?", and between "I sleep" and "is there
// something?": one of the two sides sees the other's store.
inline void FullFence() {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer knows no fences; only atomics are ordered by this one.
  static std::atomic<uint32_t> dummy{0};
  dummy.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Copies out of shared memory once: the compiler may not read the source a second time.
inline void CopyOnce(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  asm volatile("" ::: "memory");
}

class CellWriter {
 public:
  CellWriter() = default;
  // `count` is a power of two.
  CellWriter(Cell* cells, uint32_t count, const ReaderLine* reader)
      : cells_(cells), count_(count), reader_(reader) {}

  // Cells that may be written now; asks the reader's index when fewer than `wanted` are known.
  uint64_t Free(uint64_t wanted) {
    if (count_ - (produced_ - consumed_) < wanted) Refresh();
    return count_ - (produced_ - consumed_);
  }
  void Refresh() {
    uint64_t consumed = reader_->consumed.load(std::memory_order_acquire);
    if (consumed < consumed_ || consumed > produced_) {
      corrupt_ = true;
    } else {
      consumed_ = consumed;
    }
  }
  std::byte* body() { return cells_[produced_ & (count_ - 1)].body; }
  void Publish() {
    cells_[produced_ & (count_ - 1)].sequence.store(produced_ + 1, std::memory_order_release);
    ++produced_;
  }
  uint64_t produced() const { return produced_; }
  uint64_t consumed() const { return consumed_; }  // as last seen
  uint32_t count() const { return count_; }
  bool corrupt() const { return corrupt_; }

 private:
  Cell* cells_ = nullptr;
  uint32_t count_ = 0;
  const ReaderLine* reader_ = nullptr;
  uint64_t produced_ = 0;
  uint64_t consumed_ = 0;
  bool corrupt_ = false;
};

class CellReader {
 public:
  CellReader() = default;
  CellReader(const Cell* cells, uint32_t count, ReaderLine* reader)
      : cells_(cells), count_(count), reader_(reader) {}

  // The next cell's body, or null. It stays readable until Release().
  const std::byte* Peek() {
    const Cell& cell = cells_[next_ & (count_ - 1)];
    uint64_t sequence = cell.sequence.load(std::memory_order_acquire);
    if (sequence == next_ + 1) return cell.body;
    if (sequence > next_ + 1) corrupt_ = true;
    return nullptr;
  }
  void Advance() { ++next_; }
  // Gives every cell that was advanced over back to the writer; true if there was one.
  bool Release() {
    if (released_ == next_) return false;
    released_ = next_;
    reader_->consumed.store(next_, std::memory_order_release);
    return true;
  }
  uint64_t next() const { return next_; }
  uint64_t unreleased() const { return next_ - released_; }
  uint32_t count() const { return count_; }
  bool corrupt() const { return corrupt_; }

 private:
  const Cell* cells_ = nullptr;
  uint32_t count_ = 0;
  ReaderLine* reader_ = nullptr;
  uint64_t next_ = 0;
  uint64_t released_ = 0;
  bool corrupt_ = false;
};

// Stretches of an arena of `bytes`, contiguous and 64-byte aligned, in the order of the cells.
class ArenaWriter {
 public:
  ArenaWriter() = default;
  ArenaWriter(uint64_t bytes, uint32_t cells) : bytes_(bytes), end_of_cell_(cells) {}

  // A stretch of `length` <= bytes, as an offset, or kNone when that much is not free yet. Belongs
  // to the cell that is published next.
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t Allocate(uint64_t length) {
    if (!CanAllocate(length)) return kNone;
    uint64_t start = Start(length);
    end_ = start + Rounded(length);
    return start % bytes_;
  }
  bool CanAllocate(uint64_t length) const {
    return Start(length) + Rounded(length) - begin_ <= bytes_;
  }
  // Cell `n` (from 0) is published.
  void Publish(uint64_t n) { end_of_cell_[n % end_of_cell_.size()] = end_; }
  // The reader is done with cells up to `consumed`.
  void Release(uint64_t consumed) {
    if (consumed == consumed_) return;
    consumed_ = consumed;
    begin_ = end_of_cell_[(consumed - 1) % end_of_cell_.size()];
    // An empty arena starts over: a quiet link stays within a few cached lines.
    if (begin_ == end_) begin_ = end_ = (end_ + bytes_ - 1) / bytes_ * bytes_;
  }

 private:
  static uint64_t Rounded(uint64_t length) { return (length + 63) & ~uint64_t{63}; }
  // Where a stretch would begin: at the end of the last one, or at the arena's start.
  uint64_t Start(uint64_t length) const {
    uint64_t left = bytes_ - end_ % bytes_;
    return left < Rounded(length) ? end_ + left : end_;
  }

  uint64_t bytes_ = 0;
  uint64_t begin_ = 0;  // positions that only grow; modulo bytes_ they are offsets
  uint64_t end_ = 0;
  uint64_t consumed_ = 0;
  std::vector<uint64_t> end_of_cell_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_RING_H_
