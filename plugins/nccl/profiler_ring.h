// The profiler's ring of records (base/records.h), which is there while a communicator is open.
//
// Any thread may write, without a lock; Close() waits until no writer is left. Open(), Close() and
// Forget() are called by one thread at a time.
#ifndef WEFT_PLUGINS_NCCL_PROFILER_RING_H_
#define WEFT_PLUGINS_NCCL_PROFILER_RING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/strings/string_view.h"
#include "base/records.h"

namespace weft::nccl {

class ProfilerRing {
 public:
  ProfilerRing() = default;
  ProfilerRing(const ProfilerRing&) = delete;
  ProfilerRing& operator=(const ProfilerRing&) = delete;

  void Open(std::unique_ptr<Records> records);
  void Close();
  // In a child of fork(): the ring is its parent's.
  void Forget() { records_ = nullptr; }

  bool is_open() const { return records_.load(std::memory_order_relaxed) != nullptr; }
  // Null: closed. For the thread that opens and closes the ring.
  Records* records() const { return records_.load(); }

  // These do nothing while the ring is closed.
  template <typename T>
  void Write(const T& record) {
    Use([&record](Records& records) { records.Write(record); });
  }
  void MarkFailed() {
    Use([](Records& records) { records.MarkFailed(); });
  }
  // This process is alive at `now_ns`; a line for each doubling of the events that were dropped.
  void Pulse(int64_t now_ns);

  // Counts an event that found no slot.
  void Drop();
  // Events that found no slot, since the process began.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  template <typename Function>
  void Use(Function function) {
    writers_.fetch_add(1);
    if (Records* records = records_.load(); records != nullptr) function(*records);
    writers_.fetch_sub(1);
  }

  std::atomic<Records*> records_{nullptr};  // owned
  std::atomic<int> writers_{0};             // threads that use *records_ now
  std::atomic<uint64_t> dropped_{0};

  std::mutex mutex_;              // guards what follows
  uint64_t dropped_before_ = 0;   // when this ring was opened
  uint64_t dropped_written_ = 0;  // of this ring, the last number that a line has
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILER_RING_H_
