// Making, losing and replacing queue pairs. What the two sides say of them is in lane_controls.cc.
#include "net/verbs/lane_set.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "net/verbs/explain.h"

namespace weft::net {
namespace {

constexpr int kReplenishAt = 16;  // receives are posted so many at once
constexpr absl::Duration kRetryFirst = absl::Milliseconds(10);
constexpr absl::Duration kRetryLongest = absl::Seconds(2);
constexpr int kRetriesAtLeast = 20;
// A first write that is not acknowledged within so much, or two of the link's round trips, went
// where nothing comes back from: many times what a fabric takes, much less than what a device waits
// for one that worked. Each that fails gives the next one of its lane twice as long.
constexpr absl::Duration kTrialLeast = absl::Milliseconds(20);
constexpr absl::Duration kTrialMost = absl::Milliseconds(100);  // the first
// The side that leads decides first, lest both do.
constexpr int kFollowersPatience = 2;

}  // namespace

void LaneSet::Start(const Control& hello, const std::string& peer_text) {
  hello_ = hello;
  peer_text_ = peer_text;
  wanted_ = std::max<int>(hello.lanes, shared_.rails->options().queue_pairs);
  lanes_ = std::vector<Lane>(static_cast<size_t>(std::min(kVerbsLanesMax, wanted_ + kSpareLanes)));
  for (size_t lane = static_cast<size_t>(wanted_); lane < lanes_.size(); ++lane) {
    lanes_[lane].is_spare = true;
  }
  for (int lane = 0; leads_ && lane < wanted_; ++lane) Offer(lane);
}

void LaneSet::End() {
  ended_ = true;
  for (Lane& lane : lanes_) {
    lane.Reset();
    lane.state = Lane::State::kNone;
  }
}

// ---- What there is

int LaneSet::Live() const {
  return static_cast<int>(std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.state == Lane::State::kLive;
  }));
}

int LaneSet::Carrying() const {
  return static_cast<int>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.Carries(); }));
}

uint64_t LaneSet::BytesAcross() const {
  uint64_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.bytes;
  return bytes;
}

bool LaneSet::AnyDown() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return !lane.is_spare && lane.state != Lane::State::kLive;
  });
}

// ---- Making

absl::Status LaneSet::Make(int index, uint32_t epoch, int rail) {
  ++trouble_.pairs_made;
  return setup_.Make((*this)[index], index, epoch, rail, lanes_, this);
}

absl::Status LaneSet::Connect(int index, const Control& remote) {
  return setup_.Connect((*this)[index], index, wanted_, remote, hello_.rails);
}

void LaneSet::Offer(int index) {
  Lane& lane = (*this)[index];
  const uint32_t epoch = lane.epoch + 1;
  lane.retry_at = absl::InfiniteFuture();
  lane.offered_at = shared_.now;
  lane.is_spare = false;
  absl::Status made =
      Make(index, epoch, setup_.RailFor(index, epoch, std::exchange(lane.next_rail, -1)));
  if (made.ok()) {
    lane.state = Lane::State::kOffered;
    return owner_.Say(ControlOf(ControlKind::kOffer, index), "");
  }
  trouble_.Begin(shared_.now, std::string(made.message()));
  lane.Reset();
  Retry(lane);
}

void LaneSet::GoLive(int index) {
  Lane& lane = (*this)[index];
  lane.state = Lane::State::kLive;
  if (lane.epoch == 1 && index < wanted_) {
    any_new_ = true;
    return;
  }
  NicWrite probe;
  probe.id = lane.pair->SendId(lane.next_send);
  probe.remote = hello_.ring;
  probe.remote_key = hello_.ring_keys[lane.remote.rail];
  probe.signaled = true;
  BeginTrial(index);
  absl::Status posted = Post(index, {&probe, 1}, Lane::kProbe);
  if (!posted.ok()) Fail(index, std::string(posted.message()));
}

void LaneSet::BeginTrial(int index) {
  Lane& lane = (*this)[index];
  int64_t trip = 0;
  for (const Lane& one : lanes_) trip = std::max(trip, one.trip);
  const absl::Duration first = std::clamp(absl::Nanoseconds(2 * trip), kTrialLeast, kTrialMost);
  absl::Duration time = std::min(first * std::exp2(std::clamp(lane.failures - 1, 0, 20)),
                                 std::max(kTrialLeast, shared_.rails->options().DetectionBound()));
  if (!leads_) time *= kFollowersPatience;
  lane.proven = false;
  lane.trial_ends = shared_.now + time;
}

absl::Status LaneSet::Post(int index, absl::Span<const NicWrite> writes, uint64_t entry) {
  Lane& lane = (*this)[index];
  uint64_t bytes = 0;
  for (const NicWrite& write : writes) bytes += write.length;
  // Counted first: a device may complete it while it is posted.
  lane.NotePosted(static_cast<uint32_t>(writes.size()), entry, bytes, shared_.now);
  return lane.pair->pair().PostWrites(writes);
}

// ---- Completions

void LaneSet::OnCompletion(int index, bool receive, uint32_t number, const NicCompletion& what) {
  if (ended_) return;
  Lane& lane = (*this)[index];
  if (what.status != NicStatus::kOk) {
    if (what.status != NicStatus::kFlushed) trouble_.last_status = what.status;
    return Fail(index, absl::StrCat(StatusText(what.status),
                                    what.vendor_error != 0 ? ", vendor's number " : "",
                                    what.vendor_error != 0 ? absl::StrCat(what.vendor_error) : ""));
  }
  if (receive) {
    lane.NoteReceived(number);
    if (!Replenish(lane)) return Fail(index, "receives could not be posted");
    owner_.OnWritten(what.immediate);
  } else {
    bool any = false;
    any_new_ = any_new_ || !lane.proven;
    lane.NoteCompleted(number, shared_.now, [&](uint64_t entry) {
      any = true;
      owner_.OnDeviceDelivered(index, entry);
    });
    if (any) lane.failures = 0, trouble_.End();
  }
  owner_.WantLaneTurn();
}

bool LaneSet::Replenish(Lane& lane) {
  const uint32_t there = lane.receives_posted - lane.receives_used;
  const int missing = static_cast<int>(kReceiveDepth) - static_cast<int>(there);
  if (missing < kReplenishAt) return true;
  absl::Status posted = lane.pair->PostReceives(lane.receives_posted, missing);
  lane.receives_posted += static_cast<uint32_t>(missing);
  if (!posted.ok()) WEFT_LOG_DEBUG("verbs: ", posted.message());
  return posted.ok();
}

// ---- Losing

void LaneSet::Fail(int index, const std::string& why) {
  Lane& lane = (*this)[index];
  if (ended_ || lane.pair == nullptr) return;
  std::string failure = absl::StrCat(Text(lane), ": ", why);
  const bool has_worked = lane.proven && lane.state != Lane::State::kConnecting;
  if (has_worked) {
    WEFT_LOG_WARN("verbs: queue pair lost, ", failure);
  } else {
    WEFT_LOG_INFO("verbs: tried in vain, ", failure);
  }
  // What was lost says more than what was tried instead.
  if (has_worked || trouble_.last_failure.empty()) trouble_.last_failure = std::move(failure);
  trouble_.Begin(shared_.now);
  SayDown(index, leads_ ? ControlKind::kDown : ControlKind::kBroken, leads_ ? "" : why);
}

void LaneSet::FollowPaths(bool changed) {
  if (!std::exchange(any_new_, false) && !changed) return;
  for (int i = 0; i < static_cast<int>(lanes_.size()); ++i) {
    Lane& lane = (*this)[i];
    if (lane.is_spare || !lane.Carries() || !setup_.FollowsPaths(lane, i)) continue;
    WEFT_LOG_INFO("verbs: ", Text(lane), ": its successor follows the plan to another way; ",
                  shared_.ways->WhyNow());
    lane.next_rail = lane.pair->rail();
    lane.draining = true;
  }
  owner_.WantLaneTurn();
}

void LaneSet::Retire(int index) { SayDown(index, ControlKind::kDown, ""); }

void LaneSet::SayDown(int index, ControlKind kind, absl::string_view why) {
  EndPair(index);
  (*this)[index].state = Lane::State::kDown;
  Control control = ControlOf(kind, index);
  control.record = owner_.arrivals();
  owner_.Say(control, why);
  owner_.WantLaneTurn();
}

void LaneSet::EndPair(int index) {
  Lane& lane = (*this)[index];
  if (lane.pair == nullptr) return;
  const int rail = lane.pair->rail();
  lane.Reset();
  owner_.OnPairEnded(index, lane.epoch, rail);
}

// At once the first time, then with a growing pause since the last time, of which many fit into
// verbs.give_up_after.
void LaneSet::Retry(Lane& lane) {
  lane.state = Lane::State::kNone;
  const absl::Duration longest =
      std::min(kRetryLongest, shared_.rails->options().give_up_after / kRetriesAtLeast);
  const absl::Duration pause =
      lane.failures == 0 ? absl::ZeroDuration()
                         : std::min(longest, kRetryFirst * std::exp2(std::min(lane.failures, 20)));
  ++lane.failures;
  lane.retry_at = std::max(shared_.now, lane.offered_at + pause);
  owner_.WantLaneTurn();
}

void LaneSet::StopRetrying(Lane& lane) {
  lane.state = Lane::State::kNone;
  lane.retry_at = absl::InfiniteFuture();
  lane.failures = 0;
}

absl::Time LaneSet::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Lane& lane : lanes_) {
    if (lane.state == Lane::State::kNone && leads_) next = std::min(next, lane.retry_at);
    if (lane.state == Lane::State::kLive && !lane.proven) next = std::min(next, lane.trial_ends);
  }
  return next;
}

void LaneSet::Tick(absl::Time now) {
  const int count = static_cast<int>(lanes_.size());
  for (int i = 0; leads_ && i < count; ++i) {
    const Lane& lane = (*this)[i];
    if (lane.state == Lane::State::kNone && lane.retry_at <= now) Offer(i);
  }
  for (int i = 0; i < count; ++i) {
    const Lane& lane = (*this)[i];
    if (lane.state != Lane::State::kLive || lane.proven || lane.trial_ends > now) continue;
    Fail(i, "its first write has not been acknowledged in time");
  }
}

// ---- In words and numbers

std::string LaneSet::Text(const Lane& lane) const {
  std::string out = absl::StrCat("host ", shared_.host, ", ");
  if (lane.pair != nullptr) {
    const Rail& rail = (*shared_.rails)[lane.pair->rail()];
    absl::StrAppend(&out, rail.device->name(), " port ", rail.port.number, ", GID ",
                    GidText(rail.gid.gid.gid), ", queue pair ", lane.pair->pair().number(),
                    ", source port ", lane.local_port);
  }
  absl::StrAppend(&out, " -> ", peer_text_);
  if (lane.has_remote) {
    absl::StrAppend(&out, ", GID ", GidText(lane.remote.gid), ", queue pair ",
                    lane.remote.queue_pair, ", source port ", lane.remote.source_port);
  }
  return out;
}

std::string LaneSet::Describe() const {
  std::string out = absl::StrCat(wanted_, wanted_ == 1 ? " queue pair" : " queue pairs");
  for (const Lane& lane : lanes_) {
    if (lane.pair != nullptr || !lane.is_spare) absl::StrAppend(&out, "; ", Text(lane));
  }
  return out;
}

void LaneSet::AddTo(FlowCounters* counters) const {
  for (const Lane& lane : lanes_) {
    counters->repeats += lane.repeats;
    counters->rtt_ns = std::max(counters->rtt_ns, static_cast<int64_t>(lane.trip));
  }
}

std::vector<LaneReport> LaneSet::Reports() const {
  std::vector<LaneReport> out;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.is_spare && lane.bytes == 0) continue;
    LaneReport report;
    report.name = absl::StrCat("lane ", i);
    if (lane.pair != nullptr && lane.has_remote) {
      const Rail& rail = (*shared_.rails)[lane.pair->rail()];
      absl::StrAppend(&report.name, ": ", rail.device->name(), " ", GidText(rail.gid.gid.gid),
                      " -> ", GidText(lane.remote.gid));
      if (rail.port.ethernet) report.source_port = lane.local_port;
    }
    report.bytes = lane.bytes;
    report.retransmissions = lane.repeats;
    if (lane.trip > 0) report.rtt = absl::Nanoseconds(lane.trip);
    out.push_back(std::move(report));
  }
  return out;
}

}  // namespace weft::net
