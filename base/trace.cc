#include "base/trace.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"

namespace weft {

Trace::Trace(std::vector<std::string> track_names, size_t capacity)
    : track_names_(std::move(track_names)),
      mask_(std::bit_ceil(std::max<size_t>(capacity, 2)) - 1),
      slots_(std::make_unique<Slot[]>(mask_ + 1)) {}

// A sequence lock a slot. Two writers meet in a slot only where one was held up for a whole round
// of the ring; then one of the two spans is dropped.
void Trace::Record(const TraceSpan& span) {
  if (span.track == records_track()) {
    PhaseRecord phase;
    phase.name = NameOf(span.name);
    phase.start_ns = span.start_ns;
    phase.end_ns = span.end_ns;
    phase.step = span.step;
    records_->Write(phase);
  }
  uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[index & mask_];
  uint64_t seen = slot.sequence.load(std::memory_order_relaxed);
  bool is_free = seen % 2 == 0 && seen <= 2 * index;
  if (!is_free ||
      !slot.sequence.compare_exchange_strong(seen, 2 * index + 1, std::memory_order_acq_rel)) {
    return;
  }
  slot.name.store(span.name, std::memory_order_release);
  slot.start_ns.store(span.start_ns, std::memory_order_release);
  slot.end_ns.store(span.end_ns, std::memory_order_release);
  slot.step.store(span.step, std::memory_order_release);
  slot.bytes.store(span.bytes, std::memory_order_release);
  slot.track.store(span.track, std::memory_order_release);
  slot.sequence.store(2 * index + 2, std::memory_order_release);
}

std::vector<TraceSpan> Trace::Snapshot() const {
  uint64_t end = next_.load(std::memory_order_acquire);
  uint64_t begin = end > mask_ + 1 ? end - (mask_ + 1) : 0;
  std::vector<TraceSpan> spans;
  spans.reserve(end - begin);
  for (uint64_t index = begin; index < end; ++index) {
    const Slot& slot = slots_[index & mask_];
    uint64_t whole = 2 * index + 2;
    if (slot.sequence.load(std::memory_order_acquire) != whole) continue;
    TraceSpan span{
        slot.name.load(std::memory_order_acquire),     slot.track.load(std::memory_order_acquire),
        slot.start_ns.load(std::memory_order_acquire), slot.end_ns.load(std::memory_order_acquire),
        slot.step.load(std::memory_order_acquire),     slot.bytes.load(std::memory_order_acquire)};
    if (slot.sequence.load(std::memory_order_acquire) == whole) spans.push_back(span);
  }
  return spans;
}

void Trace::Reserve(size_t capacity) {
  const size_t mask = std::bit_ceil(std::max<size_t>(capacity, 2)) - 1;
  if (mask <= mask_) return;
  auto slots = std::make_unique<Slot[]>(mask + 1);
  const uint64_t end = recorded();
  for (uint64_t index = end > mask_ + 1 ? end - (mask_ + 1) : 0; index < end; ++index) {
    const Slot& from = slots_[index & mask_];
    if (from.sequence.load() != 2 * index + 2) continue;
    Slot& to = slots[index & mask];
    to.name.store(from.name.load());
    to.start_ns.store(from.start_ns.load());
    to.end_ns.store(from.end_ns.load());
    to.step.store(from.step.load());
    to.bytes.store(from.bytes.load());
    to.track.store(from.track.load());
    to.sequence.store(2 * index + 2);
  }
  slots_ = std::move(slots);
  mask_ = mask;
}

RecordName Trace::NameOf(const char* literal) {
  const auto known = [&]() -> Known* {
    size_t at = (reinterpret_cast<uintptr_t>(literal) >> 3) % std::size(known_);
    for (size_t tries = 0; tries < std::size(known_); ++tries) {
      const char* seen = known_[at].literal.load(std::memory_order_acquire);
      if (seen == literal || seen == nullptr) return &known_[at];
      at = (at + 1) % std::size(known_);
    }
    return nullptr;
  };
  if (Known* found = known(); found != nullptr && found->literal.load() == literal) {
    return found->name.load(std::memory_order_relaxed);
  }
  std::lock_guard<std::mutex> lock(names_mutex_);
  const RecordName name = records_->Name(literal);
  if (Known* free = known(); free != nullptr) {
    free->name.store(name, std::memory_order_relaxed);
    free->literal.store(literal, std::memory_order_release);
  }
  return name;
}

RecordName Trace::Enter(const char* name, int64_t now_ns) {
  return records_ == nullptr ? RecordName{0} : records_->SetPhase(NameOf(name), now_ns);
}

void Trace::Leave(RecordName before, int64_t now_ns) {
  if (records_ != nullptr) records_->SetPhase(before, now_ns);
}

TraceScope::TraceScope(Trace* trace, const char* name, int track, int64_t step, int64_t bytes)
    : trace_(trace) {
  if (trace_ == nullptr) return;
  span_ = {name, track, SystemClock::Nanoseconds(), 0, step, bytes};
  if (track == trace_->records_track()) before_ = trace_->Enter(name, span_.start_ns);
}

TraceScope::~TraceScope() {
  if (trace_ == nullptr) return;
  span_.end_ns = SystemClock::Nanoseconds();
  trace_->Record(span_);
  if (span_.track == trace_->records_track()) trace_->Leave(before_, span_.end_ns);
}

std::string ChromeEvents(const Trace& trace, int rank, int64_t first_step) {
  std::vector<std::string> events;
  auto metadata = [&](const char* kind, int track, const std::string& name) {
    nlohmann::json event = {{"ph", "M"}, {"pid", rank}, {"name", kind}, {"args", {{"name", name}}}};
    if (track >= 0) event["tid"] = track;
    events.push_back(event.dump());
  };
  metadata("process_name", -1, absl::StrCat("rank ", rank));
  for (size_t track = 0; track < trace.track_names().size(); ++track) {
    metadata("thread_name", static_cast<int>(track), trace.track_names()[track]);
  }
  for (const TraceSpan& span : trace.Snapshot()) {
    if (span.step >= 0 && span.step < first_step) continue;
    std::vector<std::string> args;
    if (span.step >= 0) args.push_back(absl::StrCat("\"step\":", span.step));
    if (span.bytes >= 0) args.push_back(absl::StrCat("\"bytes\":", span.bytes));
    events.push_back(absl::StrFormat(
        R"({"ph":"X","pid":%d,"tid":%d,"name":"%s","ts":%.3f,"dur":%.3f,"args":{%s}})", rank,
        span.track, span.name, static_cast<double>(span.start_ns) / 1e3,
        static_cast<double>(span.end_ns - span.start_ns) / 1e3, absl::StrJoin(args, ",")));
  }
  return absl::StrJoin(events, ",\n");
}

std::string MergeChromeJson(const std::vector<std::string>& parts, absl::string_view other) {
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",", other.empty() ? "" : "\"otherData\":", other,
                      other.empty() ? "" : ",", "\"traceEvents\":[\n", absl::StrJoin(parts, ",\n"),
                      "\n]}\n");
}

}  // namespace weft
