#include "net/paths/plb.h"

#include <algorithm>

#include "net/paths/simple.h"

namespace weft::net {

Plb::Plb(uint64_t seed, int paths, absl::Duration base_rtt)
    : base_rtt_(base_rtt),
      random_(seed),
      path_(static_cast<PathId>(random_.Below(static_cast<uint64_t>(paths)))),
      rtt_(base_rtt) {}

PathId Plb::Choose(const PathSet& paths, absl::Time /*now*/) {
  if (moves_ || !paths.IsUsable(path_)) {
    PathId before = path_;
    for (int tries = 0; tries < 4 && path_ == before; ++tries) path_ = DrawUsable(paths, random_);
    moves_ = false;
  }
  return path_;
}

void Plb::OnAck(const PathAck& ack) {
  if (ack.path != path_) return;  // late news of one that was left
  if (ack.rtt > absl::ZeroDuration()) rtt_ = ack.rtt;
  acked_ += ack.bytes;
  if (ack.marked || ack.rtt > 2 * base_rtt_) marked_ += ack.bytes;
  if (ack.now >= round_end_) EndRound(ack.now);
}

void Plb::EndRound(absl::Time now) {
  bool is_congested = acked_ > Bytes(0) && marked_ / acked_ >= kCongested;
  congested_rounds_ = is_congested ? congested_rounds_ + 1 : 0;
  acked_ = marked_ = Bytes(0);
  round_end_ = now + rtt_;
  if (congested_rounds_ < kRounds || now < paused_until_) return;
  congested_rounds_ = 0;
  moves_ = true;
}

void Plb::OnLoss(PathId path, PathLoss loss, absl::Time now) {
  if (path != path_ || loss != PathLoss::kTimeout) return;
  moves_ = true;
  congested_rounds_ = 0;
  paused_until_ = now + kPause * (1 + random_.Uniform());
}

}  // namespace weft::net
