#include "net/verbs/lane_selection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/log.h"

namespace weft::net {

void LaneSelection::Maintain() {
  const int count = static_cast<int>(lanes_.size());
  for (int i = 0; i < count; ++i) {
    const Lane& lane = lanes_[i];
    if (lane.draining && lane.pair != nullptr && lane.in_flight.empty()) lanes_.Retire(i);
  }
  int carrying = lanes_.Carrying();
  const LaneSetup& setup = lanes_.setup();
  if (carrying == 0 && trouble_.is_there()) {
    if (!setup.IsUp(setup.RailFor(lanes_.wanted(), 1, -1))) return;
    for (int i = 0; i < count; ++i) {
      if (lanes_[i].is_spare && lanes_[i].state == Lane::State::kNone) lanes_.Offer(i);
    }
    return;
  }
  if (carrying < lanes_.wanted()) return;
  const int most = lanes_.wanted() + (candidate_ >= 0 ? 1 : 0);
  for (int i = count - 1; i >= 0; --i) {
    const Lane& lane = lanes_[i];
    if (lane.is_spare || i == candidate_) continue;
    if (lane.Carries() && carrying <= most) continue;
    carrying -= lane.Carries() ? 1 : 0;
    MakeSpare(i);
  }
}

void LaneSelection::MakeSpare(int index) {
  Lane& lane = lanes_[index];
  lane.is_spare = true;
  if (lane.Carries()) {
    lane.draining = true;
  } else if (lane.pair != nullptr) {
    lanes_.Retire(index);
  } else if (lane.state == Lane::State::kNone) {
    LaneSet::StopRetrying(lane);
  }
  lanes_.WantTurn();
}

void LaneSelection::StopSearch() {
  if (candidate_ >= 0) lanes_[candidate_].is_paused = false;
  candidate_ = -1;
  search_.Stopped(shared_.now);
}

void LaneSelection::Search(bool waits) {
  if (lanes_.setup().has_ports() || !shared_.rails->options().path_search) return;
  // The one that is tried does not count: when another is lost, it is needed, and compares nothing.
  const bool tries = candidate_ >= 0 && lanes_[candidate_].Carries();
  if (lanes_.Carrying() - (tries ? 1 : 0) < lanes_.wanted()) return StopSearch();
  if (candidate_ >= 0) {
    const Lane& lane = lanes_[candidate_];
    if (lane.failures > 0) {
      MakeSpare(candidate_);
      return StopSearch();
    }
    if (lane.Carries() && !std::exchange(candidate_carries_, true)) {
      for (Lane& one : lanes_.lanes()) one.bytes_before = one.bytes;
      search_.Opened(shared_.now, lanes_.BytesAcross());
    }
  }
  const PathSearch::Step step = search_.Turn(shared_.now, lanes_.BytesAcross(), waits);
  switch (step) {
    case PathSearch::Step::kNone:
      return;
    case PathSearch::Step::kOpen:
      return OpenCandidate();
    case PathSearch::Step::kPause:
    case PathSearch::Step::kUse:
      lanes_[candidate_].is_paused = step == PathSearch::Step::kPause;
      return;
    case PathSearch::Step::kTrade:
      return Trade();
    case PathSearch::Step::kClose:
      return MakeSpare(std::exchange(candidate_, -1));
  }
}

void LaneSelection::OpenCandidate() {
  const absl::Span<const Lane> lanes = std::as_const(lanes_).lanes();
  const auto spare = std::find_if(lanes.begin(), lanes.end(), [](const Lane& one) {
    return one.is_spare && one.state == Lane::State::kNone;
  });
  if (spare == lanes.end()) return StopSearch();
  candidate_ = static_cast<int>(spare - lanes.begin());
  candidate_carries_ = false;
  lanes_.Offer(candidate_);
}

void LaneSelection::Trade() {
  const int slowest = SlowestBut(candidate_);
  WEFT_LOG_INFO("verbs: ", lanes_.Text(lanes_[slowest]),
                " is on a path with others; in its place: ", lanes_.Text(lanes_[candidate_]));
  TellOfPlans();
  candidate_ = -1;
  MakeSpare(slowest);
}

void LaneSelection::TellOfPlans() {
  if (lanes_.setup().is_planned() || search_.gain() <= 1 || shared_.has_told_of_plans) return;
  shared_.has_told_of_plans = true;
  WEFT_LOG_WARN(absl::StrFormat(
      "verbs: queue pairs shared paths by chance: %.0f %% of what the fabric gives was lost to "
      "collisions until another path was found by trying; a plan avoids them from the start: "
      "weft-topo discover, weft-topo learn-hash, weft-plan paths, then WEFT_PLAN "
      "(docs/path-planning.md)",
      (1 - 1 / search_.gain()) * 100));
}

int LaneSelection::SlowestBut(int index) const {
  int slowest = -1;
  uint64_t least = 0;
  for (int i = 0; i < static_cast<int>(lanes_.size()); ++i) {
    const Lane& lane = lanes_[i];
    if (!lane.Carries() || i == index) continue;
    const uint64_t bytes = lane.bytes - lane.bytes_before;
    if (slowest < 0 || bytes < least) slowest = i, least = bytes;
  }
  return slowest;
}

}  // namespace weft::net
