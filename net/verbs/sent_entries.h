// The entries that a link has sent and the other side has not taken yet: their numbers, which of
// them wait for a queue pair, on which lane the others were posted, and what is known of their
// arrival. Rules only: no queue pairs, no memory, no clock. Not thread-safe.
#ifndef WEFT_NET_VERBS_SENT_ENTRIES_H_
#define WEFT_NET_VERBS_SENT_ENTRIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "net/verbs/record.h"

namespace weft::net {

struct SentEntry {
  static constexpr uint32_t kNoToken = ~0u;

  const std::byte* payload = nullptr;
  uint64_t length = 0;        // of the payload that is written beside the entry
  uint32_t token = kNoToken;  // until it is delivered
  int lane = -1;              // that it was posted on; -1: it waits for one
  bool delivered = false;     // the device says so
  bool arrived = false;       // the other side says so
  absl::Time since;           // when posted; once delivered, when that was

  // The token, the first time.
  uint32_t TakeToken() { return std::exchange(token, kNoToken); }
};

class SentEntries {
 public:
  // Entries [taken(), next()) are outstanding.
  uint64_t taken() const { return taken_; }
  uint64_t next() const { return next_; }
  uint64_t outstanding() const { return next_ - taken_; }
  SentEntry& operator[](uint64_t number) { return entries_[number % kRingSlots]; }
  const SentEntry& operator[](uint64_t number) const { return entries_[number % kRingSlots]; }

  // The next number, which waits for a lane. Needs outstanding() < kRingSlots.
  uint64_t Add(const SentEntry& entry) {
    entries_[next_ % kRingSlots] = entry;
    waiting_.push_back(next_);
    return next_++;
  }
  // The other side has taken the first outstanding entry.
  SentEntry& TakeFirst() { return (*this)[taken_++]; }

  // How many wait for a lane.
  size_t waiting() const { return waiting_.size(); }
  // The first of them, without those that came after all before they were sent again.
  std::optional<uint64_t> FirstWaiting();
  void DropFirstWaiting() { waiting_.pop_front(); }
  // Bytes of what waits, with headers.
  uint64_t WaitingBytes() const;
  void DropWaiting() { waiting_.clear(); }

  // What became of the entries of a lane whose queue pair has ended, when `record` has arrived at
  // the other side.
  struct Requeued {
    uint64_t repeats = 0;  // entries that wait again, before all that are younger
    // An entry with a payload of its own that the device reported as delivered, and that did not
    // arrive: its payload may be another by now. Nothing waits again then.
    std::optional<uint64_t> lost;
  };
  // Calls arrived(entry) for each that has arrived.
  template <typename Arrived>
  Requeued Requeue(int lane, const ArrivalRecord& record, Arrived arrived);

 private:
  void WaitAgain(const std::deque<uint64_t>& numbers);

  std::array<SentEntry, kRingSlots> entries_;
  std::deque<uint64_t> waiting_;
  uint64_t next_ = 0, taken_ = 0;
};

template <typename Arrived>
SentEntries::Requeued SentEntries::Requeue(int lane, const ArrivalRecord& record, Arrived arrived) {
  Requeued out;
  std::deque<uint64_t> again;
  for (uint64_t number = taken_; number < next_; ++number) {
    SentEntry& entry = (*this)[number];
    if (entry.lane != lane) continue;
    if (record.Has(number)) {
      entry.arrived = true;
      arrived(entry);
      continue;
    }
    if (entry.delivered && entry.length > 0) {
      out.lost = number;
      return out;
    }
    entry.lane = -1;
    entry.delivered = false;
    again.push_back(number);
  }
  out.repeats = again.size();
  WaitAgain(again);
  return out;
}

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_SENT_ENTRIES_H_
