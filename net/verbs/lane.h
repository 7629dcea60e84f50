// One lane of a link: its queue pair, from creation to loss, and the one that replaces it; the
// entries in flight on it, and its speed. No decisions: those are the wire's.
#ifndef WEFT_NET_VERBS_LANE_H_
#define WEFT_NET_VERBS_LANE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/verbs/entry.h"
#include "net/verbs/rails.h"

namespace weft::net {

struct Lane {
  enum class State : uint8_t {
    kNone,     // nothing; the leader tries again at retry_at
    kOffered,  // leader: INIT, waits for the answer
    kConnecting,
    kAnswered,  // follower: RTS, takes entries, sends none yet
    kLive,
    kDown,  // gone here; the leader waits for kDowned, the follower for kDown
  };
  State state = State::kNone;
  uint32_t epoch = 0;
  std::unique_ptr<RailQueuePair> pair;
  uint32_t local_psn = 0;
  uint16_t local_port = 0;  // UDP source ports
  Control remote;           // what the other side said of its queue pair
  bool has_remote = false;
  uint32_t mtu = 0;  // of its path, bytes

  // Trying again.
  int failures = 0;  // since it last delivered something
  int refused = 0;   // of the leader's offers, by the follower, since it was last made
  absl::Time retry_at = absl::InfiniteFuture();
  absl::Time offered_at = absl::InfinitePast();
  int next_rail = -1;  // that the next queue pair should use; -1: as its number says
  // At the leader. Spare: its queue pair is not made, or not again. Draining: its queue pair is
  // given nothing more, and ends when all that is in flight on it has arrived.
  bool is_spare = false, draining = false;
  bool is_paused = false;  // its queue pair works, and is given nothing for now

  // What was posted and has not completed, in order. kProbe: no entry, but a write of no bytes.
  static constexpr uint64_t kProbe = ~uint64_t{0};
  struct InFlight {
    uint32_t id = 0;  // 31 bits
    uint64_t number = 0;
    uint32_t requests = 0;
    uint64_t bytes = 0;
    absl::Time posted;
  };
  std::deque<InFlight> in_flight;
  uint32_t next_send = 0;      // ids
  uint32_t requests_used = 0;  // of kSendDepth
  uint64_t outstanding = 0;    // bytes
  bool proven = true;          // false: it is tried, and has completed nothing yet
  absl::Time trial_ends = absl::InfiniteFuture();
  absl::Time alive_at;  // when it last completed something, or had nothing to complete
  uint32_t receives_posted = 0, receives_used = 0;

  // Sums over all its queue pairs.
  uint64_t bytes = 0;         // that got across
  uint64_t bytes_before = 0;  // when what it carries was last compared
  uint64_t repeats = 0;       // writes that did not, and went again
  int64_t trip = 0;           // ns from posting to acknowledgement, smoothed; 0: there was none

  // As many bytes may be on their way as are acknowledged within kDelayTarget of their posting:
  // more would only stand in queues, here or in a switch, and overflow those that are short.
  uint64_t window = kWindowFirst;
  static constexpr uint64_t kWindowFirst = (256 << 10) + 2 * kEntryBytes;
  // Two of the smallest pieces, as they are set, with their entries: with one, the path stands idle
  // from its end until its acknowledgement is here and the next is posted.
  static constexpr uint64_t kWindowLeast = (128 << 10) + 2 * kEntryBytes;
  static constexpr uint64_t kWindowMost = 4 << 20;  // 80 us of 400 Gbit/s
  static constexpr int64_t kDelayNanoseconds = 10'000'000;
  static constexpr absl::Duration kDelayTarget = absl::Nanoseconds(kDelayNanoseconds);

  // Bytes per second, as seen from posting to acknowledgement while something was outstanding; a
  // guess until it has been seen.
  double rate = 0;
  bool rate_seen = false;
  absl::Time measured_since;
  absl::Duration measured_busy;
  uint64_t measured_bytes = 0;

  bool HasRoom(uint64_t more) const {
    return requests_used + 2 <= kSendDepth && (outstanding == 0 || outstanding + more <= window);
  }
  bool Carries() const { return state == State::kLive && proven && !draining; }
  void NotePosted(uint32_t requests, uint64_t number, uint64_t bytes, absl::Time now);
  // Marks entries up to `id`; what completes at the device completes in order, so one completion
  // stands for all before it. Calls done(number) for each.
  template <typename Done>
  void NoteCompleted(uint32_t id, absl::Time now, const Done& done);
  // One receive has been used up, and all posted before it; true: for the first time.
  void NoteReceived(uint32_t id);
  // Drops the queue pair and all that was counted of it.
  void Reset();

 private:
  void Measure(uint64_t bytes, absl::Time now);
  void Adapt(const InFlight& done, absl::Time now);
  absl::Time narrowed_at_ = absl::InfinitePast();
};

// a - b of 31-bit numbers that are less than 2^30 apart.
inline int32_t Distance31(uint32_t a, uint32_t b) {
  const uint32_t difference = (a - b) & RailQueuePair::kNumberMask;
  return difference < 1u << 30 ? static_cast<int32_t>(difference)
                               : static_cast<int32_t>(difference | 1u << 31);
}

template <typename Done>
void Lane::NoteCompleted(uint32_t id, absl::Time now, const Done& done) {
  while (!in_flight.empty() && Distance31(in_flight.front().id, id) <= 0) {
    const InFlight one = in_flight.front();
    in_flight.pop_front();
    requests_used -= one.requests;
    outstanding -= one.bytes;
    alive_at = now;
    Adapt(one, now);
    proven = true;
    Measure(one.bytes, now);
    if (one.number != kProbe) done(one.number);
  }
}

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_LANE_H_
