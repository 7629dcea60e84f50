// Which queue pairs a link has: trials of new ones, spares while none works, and others in place of
// those that share a bottleneck. And which of them an entry goes on.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "net/verbs/wire.h"

namespace weft::net {
namespace {

// A first write that is not acknowledged within so much, or two of the link's round trips, went
// where nothing comes back from: many times what a fabric takes, much less than what a device waits
// for one that worked. Each that fails gives the next one of its lane twice as long.
constexpr absl::Duration kTrialLeast = absl::Milliseconds(20);
constexpr absl::Duration kTrialMost = absl::Milliseconds(100);  // the first
// The side that leads decides first, lest both do.
constexpr int kFollowersPatience = 2;

constexpr double kRateFloor = 1.0 / 64;  // of the fastest lane's: what is slow is still tried
constexpr double kLaterMost = 1.25;      // than the lane that would be first, which has no room
// What is slower than that is used as well, as long as it is through before the others are with
// half of all that waits: it holds up nobody then, and its path would be idle.
constexpr double kBacklogShare = 0.5;

}  // namespace

// ---- Trials

void VerbsWire::BeginTrial(int index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  int64_t trip = 0;
  for (const Lane& one : lanes_) trip = std::max(trip, one.trip);
  const absl::Duration first = std::clamp(absl::Nanoseconds(2 * trip), kTrialLeast, kTrialMost);
  absl::Duration time = std::min(first * std::exp2(std::clamp(lane.failures - 1, 0, 20)),
                                 std::max(kTrialLeast, rails().options().DetectionBound()));
  if (!leads_) time *= kFollowersPatience;
  lane.proven = false;
  lane.trial_ends = shared_.now + time;
}

void VerbsWire::EndTrials(absl::Time now) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.state != Lane::State::kLive || lane.proven || lane.trial_ends > now) continue;
    LaneFailed(static_cast<int>(i), "its first write has not been acknowledged in time");
  }
}

// ---- How many

int VerbsWire::Carrying() const {
  return static_cast<int>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.Carries(); }));
}

bool VerbsWire::IsUp(int rail) const {
  const Rail& one = (*shared_.rails)[rail];
  return !one.lost && !one.port_down;
}

// Keeps `wanted_` queue pairs connected. While none works, spares are connected as well, except
// where no port is up: each spare has other source ports, and only some of a fabric's paths may be
// left, each way.
void VerbsWire::MaintainLanes() {
  if (!leads_ || !ready_) return;
  for (int i = 0; i < static_cast<int>(lanes_.size()); ++i) {
    const Lane& lane = lanes_[static_cast<size_t>(i)];
    if (lane.draining && lane.pair != nullptr && lane.in_flight.empty()) RetirePair(i);
  }
  int carrying = Carrying();
  if (carrying == 0 && trouble_since_ < absl::InfiniteFuture()) {
    if (!IsUp(RailFor(wanted_, 1, -1))) return;
    for (int i = 0; i < static_cast<int>(lanes_.size()); ++i) {
      const Lane& lane = lanes_[static_cast<size_t>(i)];
      if (lane.is_spare && lane.state == Lane::State::kNone) OfferLane(i);
    }
    return;
  }
  if (carrying < wanted_) return;
  const int most = wanted_ + (candidate_ >= 0 ? 1 : 0);
  for (int i = static_cast<int>(lanes_.size()) - 1; i >= 0; --i) {
    const Lane& lane = lanes_[static_cast<size_t>(i)];
    if (lane.is_spare || i == candidate_) continue;
    if (lane.Carries() && carrying <= most) continue;
    carrying -= lane.Carries() ? 1 : 0;
    MakeSpare(i);
  }
}

// The lane becomes a spare: its queue pair ends once all that it has in flight has arrived.
void VerbsWire::MakeSpare(int index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  lane.is_spare = true;
  if (lane.Carries()) {
    lane.draining = true;
  } else if (lane.pair != nullptr) {
    RetirePair(index);
  } else if (lane.state == Lane::State::kNone) {
    StopRetrying(lane);
  }
  WantTurn();
}

void VerbsWire::StopRetrying(Lane& lane) {
  lane.state = Lane::State::kNone;
  lane.retry_at = absl::InfiniteFuture();
  lane.failures = 0;
}

// ---- Which

uint64_t VerbsWire::BytesAcross() const {
  uint64_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.bytes;
  return bytes;
}

void VerbsWire::StopSearch() {
  if (candidate_ >= 0) lanes_[static_cast<size_t>(candidate_)].is_paused = false;
  candidate_ = -1;
  search_.Stopped(shared_.now);
}

// See path_search.h. Source ports of a file are not second-guessed; with a plan directory the one
// that is tried takes another way of the plan.
void VerbsWire::Search() {
  if (!leads_ || !ready_ || !ports_.empty() || !rails().options().path_search) return;
  // The one that is tried does not count: when another is lost, it is needed, and compares nothing.
  const bool tries = candidate_ >= 0 && lanes_[static_cast<size_t>(candidate_)].Carries();
  if (Carrying() - (tries ? 1 : 0) < wanted_) return StopSearch();
  if (candidate_ >= 0) {
    const Lane& lane = lanes_[static_cast<size_t>(candidate_)];
    if (lane.failures > 0) {
      MakeSpare(candidate_);
      return StopSearch();
    }
    if (lane.Carries() && !std::exchange(candidate_carries_, true)) {
      for (Lane& one : lanes_) one.bytes_before = one.bytes;
      search_.Opened(shared_.now, BytesAcross());
    }
  }
  const PathSearch::Step step = search_.Turn(shared_.now, BytesAcross(), !queue_.empty());
  switch (step) {
    case PathSearch::Step::kNone:
      return;
    case PathSearch::Step::kOpen: {
      const auto spare = std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& one) {
        return one.is_spare && one.state == Lane::State::kNone;
      });
      if (spare == lanes_.end()) return StopSearch();
      candidate_ = static_cast<int>(spare - lanes_.begin());
      candidate_carries_ = false;
      return OfferLane(candidate_);
    }
    case PathSearch::Step::kPause:
    case PathSearch::Step::kUse:
      lanes_[static_cast<size_t>(candidate_)].is_paused = step == PathSearch::Step::kPause;
      return;
    case PathSearch::Step::kTrade: {
      const int slowest = SlowestBut(candidate_);
      WEFT_LOG_INFO("verbs: ", LaneText(lanes_[static_cast<size_t>(slowest)]),
                    " is on a path with others; in its place: ",
                    LaneText(lanes_[static_cast<size_t>(candidate_)]),
                    ways_ || search_.gain() < 1
                        ? ""
                        : absl::StrFormat(
                              "; that is %.0f %% more, which a plan of paths would have given from "
                              "the start (weft-topo discover, weft-plan paths, WEFT_PLAN)",
                              (search_.gain() - 1) * 100));
      candidate_ = -1;
      return MakeSpare(slowest);
    }
    case PathSearch::Step::kClose:
      return MakeSpare(std::exchange(candidate_, -1));
  }
}

int VerbsWire::SlowestBut(int index) const {
  int slowest = -1;
  uint64_t least = 0;
  for (int i = 0; i < static_cast<int>(lanes_.size()); ++i) {
    const Lane& lane = lanes_[static_cast<size_t>(i)];
    if (!lane.Carries() || i == index) continue;
    const uint64_t bytes = lane.bytes - lane.bytes_before;
    if (slowest < 0 || bytes < least) slowest = i, least = bytes;
  }
  return slowest;
}

// ---- Striping

// The lane that would be done first with this as well, by what each has on its way and its speed,
// of those that have room and are not much later than the first of all; -1: wait for that one.
int VerbsWire::ChooseLane(uint64_t bytes) const {
  const auto is_up = [&](const Lane& lane) {
    return !(*shared_.rails)[lane.pair->rail()].port_down;
  };
  double fastest = 0;
  bool any_up = false;
  for (const Lane& lane : lanes_) {
    if (!lane.Carries() || lane.is_paused) continue;
    fastest = std::max(fastest, lane.rate);
    any_up = any_up || is_up(lane);
  }
  int best = -1;
  double best_time = 0, first_time = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (!lane.Carries() || lane.is_paused || (any_up && !is_up(lane))) continue;
    const double time = static_cast<double>(lane.outstanding + bytes + sizeof(EntryHeader)) /
                        std::max(lane.rate, fastest * kRateFloor);
    first_time = std::min(first_time, time);
    if (!lane.HasRoom(bytes)) continue;
    if (best < 0 || time < best_time) best = static_cast<int>(i), best_time = time;
  }
  if (best < 0 || best_time <= kLaterMost * first_time) return best;
  return best_time <= kBacklogShare * BacklogSeconds(best) ? best : -1;
}

// How long the other lanes will be at what they have on their way and all that waits, if `without`
// takes none of it.
double VerbsWire::BacklogSeconds(int without) const {
  double rate = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i].Carries() || lanes_[i].is_paused || static_cast<int>(i) == without) continue;
    rate += lanes_[i].rate;
    bytes += lanes_[i].outstanding;
  }
  for (uint64_t number : queue_) bytes += outs_[number % kRingSlots].length + sizeof(EntryHeader);
  return rate > 0 ? static_cast<double>(bytes) / rate : 0;
}

size_t VerbsWire::PieceMost() const {
  double slowest = std::numeric_limits<uint32_t>::max();
  for (const Lane& lane : lanes_) {
    if (lane.Carries() && lane.rate_seen)
      slowest = std::min(slowest, lane.rate * absl::ToDoubleSeconds(Lane::kDelayTarget / 2));
  }
  return static_cast<size_t>(slowest) / 128 * 128;
}

}  // namespace weft::net
