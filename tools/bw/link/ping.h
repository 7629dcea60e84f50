// Half of a round trip: one end sends and waits for the answer of the other. Each has its next
// receive posted before it needs it, as NCCL's proxy has.
#ifndef WEFT_TOOLS_BW_LINK_PING_H_
#define WEFT_TOOLS_BW_LINK_PING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bw/link/measured_links.h"
#include "tools/bw/link/stream.h"

namespace weft::link_bw {

// Both ends; `leads` says which. Ends as streams do, with markers.
class Ping {
 public:
  static absl::StatusOr<std::unique_ptr<Ping>> Create(MeasuredLinks& links, int peer, Bytes size,
                                                      const Load& load, bool leads);
  absl::Status Pump();
  bool done() const;
  Phase phase() const { return phase_; }
  int peer() const { return peer_; }
  bool leads() const { return leads_; }
  // Nanoseconds of round trips within the window; at the leader.
  const std::vector<int64_t>& trips() const { return trips_; }

 private:
  static constexpr int kAhead = 2;
  Ping(MeasuredLinks& links, int peer, size_t size, const Load& load, bool leads);
  absl::Status Send(size_t bytes);
  absl::Status PostReceives();
  void Count();
  bool Enough() const;

  MeasuredLinks& links_;
  const int peer_;
  const size_t size_;
  const bool leads_;
  const Lengths lengths_;
  Requests sends_{2 * kAhead}, receives_{kAhead};
  Slots slots_;
  int64_t started_ = 0, sent_at_ = 0;
  int64_t sent_ = 0, posted_ = 0, taken_ = 0;
  bool ending_ = false;
  Phase phase_ = Phase::kBefore;
  std::vector<int64_t> trips_;
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_PING_H_
