#include "net/paths/reps.h"

#include <algorithm>

#include "net/paths/simple.h"

namespace weft::net {

void Reps::Thaw(absl::Time now) {
  if (!is_frozen_ || now < thaw_at_) return;
  is_frozen_ = false;
  explore_ = kExploreAfterFreeze;
  valid_ = filled_ = 0;
  for (Entry& entry : buffer_) entry.is_valid = false;
}

void Reps::OnAck(const PathAck& ack) {
  Thaw(ack.now);
  if (ack.marked) return;
  Entry& entry = buffer_[head_];
  if (!entry.is_valid) ++valid_;
  entry = {ack.path, true};
  head_ = (head_ + 1) % kBuffer;
  filled_ = std::min(filled_ + 1, kBuffer);
}

PathId Reps::Choose(const PathSet& paths, absl::Time now) {
  Thaw(now);
  if (explore_ > 0) {
    --explore_;
    return DrawUsable(paths, random_);
  }
  while (valid_ > 0) {
    // The oldest valid one: valid entries lie just before the head.
    Entry& entry = buffer_[(head_ + kBuffer - valid_) % kBuffer];
    --valid_;
    bool is_valid = entry.is_valid;
    entry.is_valid = false;
    if (is_valid && paths.IsUsable(entry.path)) return entry.path;
  }
  for (size_t i = 0; is_frozen_ && i < filled_; ++i) {
    const Entry& entry = buffer_[cycle_++ % filled_];
    if (paths.IsUsable(entry.path)) return entry.path;
  }
  return DrawUsable(paths, random_);
}

void Reps::OnLoss(PathId /*path*/, PathLoss loss, absl::Time now) {
  if (loss != PathLoss::kTimeout || explore_ > 0 || is_frozen_) return;
  is_frozen_ = true;
  thaw_at_ = now + freeze_;
}

}  // namespace weft::net
