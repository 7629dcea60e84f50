#include "net/verbs/lane.h"

#include <algorithm>
#include <utility>

namespace weft::net {
namespace {

// A sample is of at least so much, lest it measure the latency of small messages.
constexpr uint64_t kSampleBytes = 256 << 10;
constexpr uint64_t kLargeBytes = 64 << 10;
constexpr absl::Duration kSampleTime = absl::Microseconds(20);
constexpr double kSampleWeight = 0.25;
constexpr int64_t kTripWeight = 8;

}  // namespace

void Lane::NotePosted(uint32_t requests, uint64_t number, uint64_t bytes, absl::Time now) {
  if (outstanding == 0) {
    alive_at = now;
    // One large write after the other is measured as well, without the time between them.
    if (bytes < kLargeBytes) measured_bytes = 0, measured_busy = absl::ZeroDuration();
    measured_since = now - measured_busy;
  }
  in_flight.push_back({next_send, number, requests, bytes, now});
  next_send = (next_send + 1) & RailQueuePair::kNumberMask;
  requests_used += requests;
  outstanding += bytes;
}

void Lane::Measure(uint64_t bytes, absl::Time now) {
  measured_bytes += bytes;
  const absl::Duration busy = now - measured_since;
  measured_busy = busy;
  if (measured_bytes < kSampleBytes || busy < kSampleTime) return;
  const double sample = static_cast<double>(measured_bytes) / absl::ToDoubleSeconds(busy);
  rate = std::exchange(rate_seen, true) ? rate + (sample - rate) * kSampleWeight : sample;
  measured_since = now;
  measured_bytes = 0;
  measured_busy = absl::ZeroDuration();
}

// Narrowed once for what was posted before the last time; widened by what is acknowledged in time,
// so that it doubles within a round trip.
void Lane::Adapt(const InFlight& done, absl::Time now) {
  // In whole nanoseconds: each message passes here.
  const int64_t delay = absl::ToInt64Nanoseconds(now - done.posted);
  bytes += done.bytes;
  trip = trip == 0 ? delay : trip + (delay - trip) / kTripWeight;
  if (delay <= kDelayNanoseconds / 2) {
    window = std::min(kWindowMost, window + done.bytes);
  } else if (delay > kDelayNanoseconds && done.posted >= narrowed_at_) {
    const double by =
        std::max(0.5, static_cast<double>(kDelayNanoseconds) / static_cast<double>(delay));
    window = std::max(kWindowLeast, static_cast<uint64_t>(static_cast<double>(window) * by));
    narrowed_at_ = now;
  }
}

void Lane::NoteReceived(uint32_t id) {
  const int32_t further =
      Distance31((id + 1) & RailQueuePair::kNumberMask, receives_used & RailQueuePair::kNumberMask);
  if (further > 0) receives_used += static_cast<uint32_t>(further);
}

void Lane::Reset() {
  pair.reset();
  in_flight.clear();
  next_send = requests_used = 0;
  outstanding = 0;
  proven = true;
  draining = is_paused = false;
  trial_ends = absl::InfiniteFuture();
  rate_seen = false;
  window = kWindowFirst;
  narrowed_at_ = absl::InfinitePast();
  receives_posted = receives_used = 0;
  has_remote = false;
  mtu = 0;
}

}  // namespace weft::net
