#include "net/verbs/striping.h"

#include <algorithm>
#include <limits>

#include "net/verbs/entry.h"

namespace weft::net {
namespace {

constexpr double kRateFloor = 1.0 / 64;  // of the fastest lane's: what is slow is still tried
constexpr double kLaterMost = 1.25;      // than the lane that would be first, which has no room
// What is slower than that is used as well, as long as it is through before the others are with
// half of all that waits: it holds up nobody then, and its path would be idle.
constexpr double kBacklogShare = 0.5;

// How long the other lanes will be at what they have on their way and all that waits, if `without`
// takes none of it.
double BacklogSeconds(absl::Span<const Lane> lanes, const SentEntries& sent, int without) {
  double rate = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i].Carries() || lanes[i].is_paused || static_cast<int>(i) == without) continue;
    rate += lanes[i].rate;
    bytes += lanes[i].outstanding;
  }
  bytes += sent.WaitingBytes();
  return rate > 0 ? static_cast<double>(bytes) / rate : 0;
}

}  // namespace

int ChooseLane(absl::Span<const Lane> lanes, Rails& rails, const SentEntries& sent,
               uint64_t bytes) {
  const auto is_up = [&](const Lane& lane) { return !rails[lane.pair->rail()].port_down; };
  double fastest = 0;
  bool any_up = false;
  for (const Lane& lane : lanes) {
    if (!lane.Carries() || lane.is_paused) continue;
    fastest = std::max(fastest, lane.rate);
    any_up = any_up || is_up(lane);
  }
  int best = -1;
  double best_time = 0, first_time = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < lanes.size(); ++i) {
    const Lane& lane = lanes[i];
    if (!lane.Carries() || lane.is_paused || (any_up && !is_up(lane))) continue;
    const double time = static_cast<double>(lane.outstanding + bytes + sizeof(EntryHeader)) /
                        std::max(lane.rate, fastest * kRateFloor);
    first_time = std::min(first_time, time);
    if (!lane.HasRoom(bytes)) continue;
    if (best < 0 || time < best_time) best = static_cast<int>(i), best_time = time;
  }
  if (best < 0 || best_time <= kLaterMost * first_time) return best;
  return best_time <= kBacklogShare * BacklogSeconds(lanes, sent, best) ? best : -1;
}

size_t LargestPiece(absl::Span<const Lane> lanes) {
  double slowest = std::numeric_limits<uint32_t>::max();
  for (const Lane& lane : lanes) {
    if (lane.Carries() && lane.rate_seen)
      slowest = std::min(slowest, lane.rate * absl::ToDoubleSeconds(Lane::kDelayTarget / 2));
  }
  return static_cast<size_t>(slowest) / 128 * 128;
}

}  // namespace weft::net
