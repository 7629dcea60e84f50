#include "net/multipath/flight.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace weft::net::multipath {

void RttEstimator::Add(absl::Duration sample) {
  latest_ = sample;
  if (!has_sample_) {
    smoothed_ = sample;
    variation_ = sample / 2;
    has_sample_ = true;
    return;
  }
  variation_ += (absl::AbsDuration(smoothed_ - sample) - variation_) / 4;
  smoothed_ += (sample - smoothed_) / 8;
}

Flight::Flight(int paths, uint32_t capacity, absl::Duration first_rtt, absl::Duration held_max,
               bool weighs_paths)
    : mask_(capacity - 1),
      held_max_(held_max),
      weighs_paths_(weighs_paths),
      ring_(capacity),
      paths_(static_cast<size_t>(paths)),
      rtt_(first_rtt) {
  WEFT_CHECK(std::has_single_bit(capacity), "capacity=" << capacity);
}

uint64_t Flight::Add(Sent sent) {
  WEFT_CHECK(!full(), "next=" << next_ << " floor=" << floor_);
  Sent& slot = ring_[next_ & mask_];
  // The packet that gives up its place is the oldest of its path.
  if (slot.number != 0) {
    PathQueue& old = paths_[slot.path];
    if (old.head == slot.number) old.head = slot.next_on_path;
    if (old.head == 0) old.tail = 0;
  }
  PathQueue& path = paths_[sent.path];
  sent.number = next_;
  sent.order = ++path.order;
  sent.state = SentState::kInFlight;
  sent.next_on_path = 0;
  sent.is_alone = empty();
  slot = sent;
  if (path.tail != 0) ring_[path.tail & mask_].next_on_path = sent.number;
  path.tail = sent.number;
  if (path.head == 0) path.head = sent.number;
  bytes_ += sent.bytes;
  ++in_flight_;
  return next_++;
}

Sent* Flight::Find(uint64_t number) {
  Sent& slot = ring_[number & mask_];
  bool is_known = number != 0 && slot.number == number && slot.state != SentState::kResolved;
  return is_known ? &slot : nullptr;
}

void Flight::Arrived(Sent& sent, absl::Duration rtt, bool is_usual) {
  if (sent.state == SentState::kInFlight) {
    bytes_ -= sent.bytes;
    --in_flight_;
  } else {  // taken for lost: be slower to judge
    reordering_ = std::min(reordering_ * 2, kReorderingMost);
    patience_ = std::min(patience_ * 2, kPatienceMost);
  }
  sent.state = SentState::kResolved;
  if (rtt > absl::ZeroDuration() && is_usual) rtt_.Add(rtt);
  if (sent.number > newest_heard_) {
    newest_heard_ = sent.number;
    if (is_oldest_due_) oldest_at_ = absl::InfinitePast();
  }
  PathQueue& path = paths_[sent.path];
  path.order_heard = std::max(path.order_heard, sent.order);
  if (weighs_paths_ && rtt > absl::ZeroDuration()) {
    path.rtt = path.rtt == absl::ZeroDuration() ? rtt : path.rtt + (rtt - path.rtt) / 8;
  }
  if (!path.is_touched) {
    path.is_touched = true;
    touched_.push_back(sent.path);
  }
  AdvanceFloor();
}

void Flight::Lose(Sent& sent) {
  bytes_ -= sent.bytes;
  --in_flight_;
  sent.state = SentState::kLost;
  AdvanceFloor();
}

void Flight::AdvanceFloor() {
  while (floor_ < next_ && ring_[floor_ & mask_].state != SentState::kInFlight) ++floor_;
}

absl::Duration Flight::PathPatience() const {
  return std::max(rtt_.smoothed(), rtt_.latest()) * (8 + patience_) / 8;
}

absl::Duration Flight::CrossPatience(const PathQueue& path) const {
  absl::Duration spread = std::max(4 * rtt_.variation(), rtt_.smoothed() * patience_ / 4);
  if (path.rtt > rtt_.smoothed()) return path.rtt + std::max(spread, path.rtt / 2) + held_max_;
  return rtt_.smoothed() + spread + held_max_;
}

void Flight::CheckPath(PathQueue& path, absl::Time now, OnLost lost) {
  path.recheck = absl::InfiniteFuture();
  while (path.head != 0) {
    Sent& sent = ring_[path.head & mask_];
    if (sent.state == SentState::kInFlight) {
      if (sent.order >= path.order_heard) return;
      if (sent.order + reordering_ > path.order_heard) {
        absl::Time due = sent.at + PathPatience();
        if (due > now) {
          path.recheck = due;
          return;
        }
      }
      Lose(sent);
      lost(sent, PathLoss::kDropped);
    }
    path.head = sent.next_on_path;
    if (path.head == 0) path.tail = 0;
  }
}

void Flight::DetectLosses(absl::Time now, OnLost lost) {
  if (recheck_ <= now) {
    for (size_t i = 0; i < paths_.size(); ++i) {
      if (paths_[i].recheck > now || paths_[i].is_touched) continue;
      paths_[i].is_touched = true;
      touched_.push_back(static_cast<PathId>(i));
    }
    recheck_ = absl::InfiniteFuture();
    for (const PathQueue& path : paths_) {
      if (!path.is_touched) recheck_ = std::min(recheck_, path.recheck);
    }
  }
  for (PathId id : touched_) {
    PathQueue& path = paths_[id];
    path.is_touched = false;
    CheckPath(path, now, lost);
    recheck_ = std::min(recheck_, path.recheck);
  }
  touched_.clear();
  if (weighs_paths_) {
    CheckOldestOfPaths(now, lost);
  } else {
    CheckOldest(now, lost);
  }
}

void Flight::CheckOldest(absl::Time now, OnLost lost) {
  while (floor_ < newest_heard_) {
    Sent& oldest = ring_[floor_ & mask_];
    if (oldest.at + CrossPatience(paths_[oldest.path]) > now) break;
    bool is_path_alive = paths_[oldest.path].order_heard > oldest.order;
    Lose(oldest);
    lost(oldest, is_path_alive ? PathLoss::kDropped : PathLoss::kTimeout);
  }
}

void Flight::CheckOldestOfPaths(absl::Time now, OnLost lost) {
  if (now < oldest_at_ || empty()) return;
  oldest_at_ = now + rtt_.smoothed();  // patience may have become shorter by then
  is_oldest_due_ = false;
  for (PathQueue& path : paths_) {
    bool is_dead = false;
    while (path.head != 0) {
      Sent& sent = ring_[path.head & mask_];
      if (sent.state == SentState::kInFlight && !is_dead) {
        absl::Time due = sent.at + CrossPatience(path);
        if (due > now) {
          oldest_at_ = std::min(oldest_at_, due);
          break;
        }
        if (sent.number >= newest_heard_) {
          is_oldest_due_ = true;
          break;
        }
        is_dead = path.order_heard <= sent.order;
        Lose(sent);
        lost(sent, is_dead ? PathLoss::kTimeout : PathLoss::kDropped);
      } else if (sent.state == SentState::kInFlight) {
        Lose(sent);
        lost(sent, PathLoss::kTimeout);
      }
      path.head = sent.next_on_path;
      if (path.head == 0) path.tail = 0;
    }
  }
}

void Flight::LoseAll(OnLost lost) {
  for (uint64_t number = floor_; number < next_; ++number) {
    Sent& sent = ring_[number & mask_];
    if (sent.state != SentState::kInFlight) continue;
    Lose(sent);
    lost(sent, PathLoss::kTimeout);
  }
}

const Sent* Flight::Newest() const {
  for (uint64_t number = next_; number > floor_; --number) {
    const Sent& sent = ring_[(number - 1) & mask_];
    if (sent.state == SentState::kInFlight && !sent.is_probe) return &sent;
  }
  return nullptr;
}

absl::Time Flight::deadline() const {
  absl::Time due = recheck_;
  if (weighs_paths_) {
    if (!empty()) due = std::min(due, oldest_at_);
  } else if (floor_ < newest_heard_) {
    const Sent& oldest = ring_[floor_ & mask_];
    due = std::min(due, oldest.at + CrossPatience(paths_[oldest.path]));
  }
  return due;
}

}  // namespace weft::net::multipath
