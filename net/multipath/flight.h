// The packets of a sender that are in flight, and the verdict on each: arrived, or lost.
//
// Every transmission has a number of its own (as in QUIC), so that each acknowledgement gives a
// clean round trip and a lost retransmission shows as well. A packet counts as lost when
//
//   dropped   one sent kReordering packets later on the same path has arrived, or any later one on
//             it and 9/8 of a round trip have passed (RFC 9002, 6.1; RACK, RFC 8985). Packets of
//             different paths overtake each other, which says nothing.
//   timeout   one sent later on any path has arrived, srtt + max(4 rttvar, srtt / 4) have passed,
//             and nothing sent since on its own path was heard of: the path may be dead. With
//             weighs_paths, a path slower than the connection on the whole has so much longer, the
//             oldest of each path is judged by itself, and what else is on its way there is lost
//             with it.
//   told      its header came without its payload (trimming).
//
// A loss that proves wrong (the packet is acknowledged after all) doubles both reordering limits
// for the connection, up to a bound, as RACK does.
//
// When no packet at all arrives, Sender's probe timeout decides, and not this class.
// Bounded by `capacity` numbers. Not thread-safe; time is passed in.
#ifndef WEFT_NET_MULTIPATH_FLIGHT_H_
#define WEFT_NET_MULTIPATH_FLIGHT_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "net/paths/path_set.h"
#include "net/paths/policy.h"

namespace weft::net::multipath {

enum class SentState : uint8_t { kResolved, kInFlight, kLost };

struct Sent {
  uint64_t number = 0;
  absl::Time at;
  uint64_t message = 0;
  uint64_t next_on_path = 0;  // number of the next packet on its path; 0: none (0 is never next)
  uint32_t chunk = 0;         // index within the message
  uint32_t bytes = 0;         // on the wire; 0: a probe
  uint32_t order = 0;         // counts packets of its path, from 1
  PathId path = 0;
  SentState state = SentState::kResolved;
  bool is_probe = false;
  bool is_alone = false;  // nothing else was on its way when it left
};

// RFC 6298, with the peer's holding taken out of each sample.
class RttEstimator {
 public:
  explicit RttEstimator(absl::Duration first) : smoothed_(first), variation_(first / 2) {}
  void Add(absl::Duration sample);
  absl::Duration smoothed() const { return smoothed_; }
  absl::Duration variation() const { return variation_; }
  absl::Duration latest() const { return latest_; }

 private:
  absl::Duration smoothed_, variation_, latest_;
  bool has_sample_ = false;
};

class Flight {
 public:
  // `capacity`: a power of two. `held_max`: what the peer may hold an acknowledgement back.
  // `weighs_paths`: as SenderOptions.
  Flight(int paths, uint32_t capacity, absl::Duration first_rtt, absl::Duration held_max,
         bool weighs_paths);

  bool full() const { return next_ - floor_ > mask_; }
  bool empty() const { return in_flight_ == 0; }
  uint64_t next() const { return next_; }
  uint64_t floor() const { return floor_; }  // the oldest of which something is still expected
  int64_t bytes() const { return bytes_; }   // in flight
  const RttEstimator& rtt() const { return rtt_; }
  // When the oldest in flight was sent; InfiniteFuture: none is.
  absl::Time oldest_at() const {
    return empty() ? absl::InfiniteFuture() : ring_[floor_ & mask_].at;
  }

  // Takes number, order, state and is_alone from here. Returns the number.
  uint64_t Add(Sent sent);
  // In flight, or lost and not yet forgotten; null: of the past, or never sent.
  Sent* Find(uint64_t number);
  // It has arrived. `rtt` zero: not measured. `is_usual`: it counts for the connection on the
  // whole, and not only for its path.
  void Arrived(Sent& sent, absl::Duration rtt, bool is_usual = true);
  void Lose(Sent& sent);

  using OnLost = absl::FunctionRef<void(const Sent&, PathLoss)>;
  // Applies the rules above; calls `lost` for each, after it is marked so.
  void DetectLosses(absl::Time now, OnLost lost);
  // Loses everything in flight.
  void LoseAll(OnLost lost);
  // The newest packet in flight that carries a chunk; null: none.
  const Sent* Newest() const;
  // When DetectLosses() may find something though nothing arrives.
  absl::Time deadline() const;

 private:
  static constexpr uint32_t kReordering = 3;
  static constexpr uint32_t kReorderingMost = 1024;
  static constexpr int kPatienceMost = 16;
  struct PathQueue {
    uint64_t head = 0, tail = 0;  // numbers, as next_on_path
    uint32_t order = 0;           // the last given
    uint32_t order_heard = 0;     // the newest that has arrived
    absl::Duration rtt;           // smoothed, as PathSet's; zero: none was measured
    bool is_touched = false;
    absl::Time recheck = absl::InfiniteFuture();
  };
  void CheckPath(PathQueue& path, absl::Time now, OnLost lost);
  void CheckOldest(absl::Time now, OnLost lost);
  void CheckOldestOfPaths(absl::Time now, OnLost lost);
  void AdvanceFloor();
  absl::Duration PathPatience() const;                        // "dropped"
  absl::Duration CrossPatience(const PathQueue& path) const;  // "timeout"

  uint64_t mask_;
  absl::Duration held_max_;
  bool weighs_paths_;
  std::vector<Sent> ring_;
  std::vector<PathQueue> paths_;
  std::vector<PathId> touched_;  // paths of which something arrived since the last detection
  RttEstimator rtt_;
  uint64_t next_ = 1, floor_ = 1;  // 0 means none
  uint64_t newest_heard_ = 0;
  int64_t bytes_ = 0;
  uint32_t in_flight_ = 0;
  uint32_t reordering_ = kReordering;
  int patience_ = 1;  // times the usual
  absl::Time recheck_ = absl::InfiniteFuture();
  // With weighs_paths: when the oldest of paths are looked at again, and whether one of them is due
  // and only waits for anything that was sent later.
  absl::Time oldest_at_ = absl::InfinitePast();
  bool is_oldest_due_ = false;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_FLIGHT_H_
