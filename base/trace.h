// A ring of spans in memory, always on, written out as Chrome/Perfetto JSON.
//
// Recording costs two clock readings and one slot of a fixed ring: no lock, no allocation. When the
// ring is full the oldest spans are overwritten. Names and categories must be string literals (they
// are kept as pointers). Record is thread-safe; Snapshot may run beside it and skips slots being
// written.
//
// In the JSON a process (pid) is a rank and a thread (tid) a track of it: "compute",
// "communication". Timestamps are CLOCK_MONOTONIC in microseconds, so that files of the ranks of
// one host merge as they are.
#ifndef WEFT_BASE_TRACE_H_
#define WEFT_BASE_TRACE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/records.h"

namespace weft {

struct TraceSpan {
  const char* name = "";  // literal: "forward", "all_reduce"
  int32_t track = 0;      // index into Trace's track names
  int64_t start_ns = 0;   // SystemClock::Nanoseconds()
  int64_t end_ns = 0;
  int64_t step = -1;   // training step, or sequence number of a collective; -1: none
  int64_t bytes = -1;  // -1: none
};

class Trace {
 public:
  // `capacity` spans (rounded up to a power of two), 64 B each.
  explicit Trace(std::vector<std::string> track_names, size_t capacity = 1 << 15);
  void Record(const TraceSpan& span);
  std::vector<TraceSpan> Snapshot() const;  // oldest first
  const std::vector<std::string>& track_names() const { return track_names_; }
  size_t capacity() const { return mask_ + 1; }
  // The number of spans that were recorded, those that are overwritten among them.
  uint64_t recorded() const { return next_.load(std::memory_order_acquire); }
  // Makes place for `capacity` spans (rounded up likewise) and keeps those that are there. Nobody
  // records or takes a snapshot meanwhile. A smaller capacity than the present one does nothing.
  void Reserve(size_t capacity);

  // From now on spans of `track` are phases in `records` as well, which outlives the trace. Before
  // any thread records.
  void SetRecords(Records* records, int track) { records_ = records, records_track_ = track; }
  // What the thread of that track does from now on, for readers of the records; Leave() takes what
  // Enter() returned. Nothing without records.
  RecordName Enter(const char* name, int64_t now_ns);
  void Leave(RecordName before, int64_t now_ns);
  int records_track() const { return records_ == nullptr ? -1 : records_track_; }

 private:
  // A literal that was used, and its name in the records. Lookups take no lock.
  struct Known {
    std::atomic<const char*> literal{nullptr};
    std::atomic<RecordName> name{0};
  };
  RecordName NameOf(const char* literal);

  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};  // 2k+1 while span k is written, 2k+2 once it is whole
    std::atomic<const char*> name{nullptr};
    std::atomic<int64_t> start_ns, end_ns, step, bytes;
    std::atomic<int32_t> track;
  };
  std::vector<std::string> track_names_;
  size_t mask_;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_{0};
  Records* records_ = nullptr;
  int records_track_ = 0;
  std::mutex names_mutex_;
  Known known_[64];
};

// Records from its construction to its end. `trace` may be null: then nothing happens.
class TraceScope {
 public:
  TraceScope(Trace* trace, const char* name, int track, int64_t step = -1, int64_t bytes = -1);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* trace_;
  TraceSpan span_;
  RecordName before_ = 0;
};

// The "traceEvents" entries of one rank, comma-separated, without the enclosing brackets, so that
// files of several ranks can be joined: see MergeChromeJson. Spans of steps before `first_step` are
// left out.
std::string ChromeEvents(const Trace& trace, int rank, int64_t first_step = 0);

// A whole JSON document of the parts that ChromeEvents made. `other`: a JSON object that readers
// show beside it ("otherData"), as "{\"lost_spans\":12}"; empty: none.
std::string MergeChromeJson(const std::vector<std::string>& parts, absl::string_view other = "");

}  // namespace weft

#endif  // WEFT_BASE_TRACE_H_
