// What time tells: retries, stalls, and when to give up.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/verbs/explain.h"
#include "net/verbs/process_stall.h"
#include "net/verbs/wire.h"

namespace weft::net {
namespace {

constexpr absl::Duration kGiveUpLinger = absl::Milliseconds(200);  // so that the last words arrive

}  // namespace

void VerbsWire::WakeAt(absl::Time when) {
  if (when >= wake_at_) return;
  wake_at_ = when;
  SetDeadline(when);
}

void VerbsWire::Watch() {
  if (closed_ || !failure_.ok() || !ready_) return;
  absl::Time next = absl::InfiniteFuture();
  bool uneasy = Outstanding();
  for (const Lane& lane : lanes_) {
    if (lane.state == Lane::State::kNone && leads_) next = std::min(next, lane.retry_at);
    if (lane.state == Lane::State::kLive && !lane.proven) next = std::min(next, lane.trial_ends);
    uneasy = uneasy || (!lane.is_spare && lane.state != Lane::State::kLive &&
                        trouble_since_ < absl::InfiniteFuture());
  }
  if (MaySayWord()) next = std::min(next, word_due_);
  if (uneasy) next = std::min(next, shared_.now + look_every_);
  if (next < absl::InfiniteFuture()) WakeAt(next);
}

void VerbsWire::OnDeadline(absl::Time now) {
  trouble_since_ += StallTime(std::exchange(wake_at_, absl::InfiniteFuture()), now);
  if (closed_) return;
  if (!failure_.ok()) return owner_.OnWireBroken(failure_);
  shared_.now = std::max(shared_.now, now);
  for (size_t lane = 0; leads_ && lane < lanes_.size(); ++lane) {
    const Lane& one = lanes_[lane];
    if (one.state == Lane::State::kNone && one.retry_at <= now) OfferLane(static_cast<int>(lane));
  }
  EndTrials(now);
  LookForStalls(now);
  if (Hopeless(now)) return GiveUp();
  WantTurn();
}

void VerbsWire::LookForStalls(absl::Time now) {
  const VerbsOptions& options = rails().options();
  bool ask = false;
  for (uint64_t number = taken_; number < next_; ++number) {
    const Out& entry = out(number);
    if (entry.lane < 0 || entry.arrived) continue;
    const absl::Duration age = now - entry.since;
    const Lane& lane = lanes_[static_cast<size_t>(entry.lane)];
    if (!entry.delivered && lane.pair != nullptr &&
        now - std::max(entry.since, lane.alive_at) > options.DetectionBound()) {
      LaneFailed(entry.lane, absl::StrCat("a write has not completed within ",
                                          absl::FormatDuration(options.DetectionBound()),
                                          ", in which the device should have given up"));
    }
    ask = ask || age > options.stall_after;
  }
  if (!ask || ask_open_ || now - asked_at_ < options.stall_after) return;
  ask_open_ = true;
  asked_at_ = now;
  Control control;
  control.kind = ControlKind::kAsk;
  control.epoch = ++ask_;
  Say(control);
}

// Only with what had arrived when the question came: a process that was not running for a while has
// completions to take that are older than the question, and would deny them.
void VerbsWire::Tell() {
  if (!rails().HandedOut(asked_mark_)) return WantTurn();
  Control tell;
  tell.kind = ControlKind::kTell;
  tell.epoch = std::exchange(asked_, 0);
  tell.record = in_;
  Say(tell);
}

absl::Status VerbsWire::OnTell(const Control& control) {
  if (!ask_open_ || control.epoch != ask_) {
    return absl::InvalidArgumentError("an answer that nobody has asked for");
  }
  ask_open_ = false;
  WEFT_RETURN_IF_ERROR(NoteTaken(control.record.base));
  for (uint64_t number = taken_; number < next_; ++number) {
    Out& entry = out(number);
    if (control.record.Has(number)) entry.arrived = true, NoteDelivered(entry);
    // An acknowledgement may overtake the completion at the other side, but not for so long.
    const bool old = entry.since + rails().options().stall_after <= asked_at_;
    if (entry.lane < 0 || entry.arrived || !entry.delivered || !old) continue;
    LaneFailed(entry.lane, "a write was acknowledged, but the other side has not seen it complete");
  }
  return absl::OkStatus();
}

bool VerbsWire::Hopeless(absl::Time now) const {
  return !silent_ && now - trouble_since_ > rails().options().give_up_after &&
         (LiveLanes() == 0 || Outstanding());
}

void VerbsWire::GiveUp() {
  const VerbsOptions& options = rails().options();
  const std::string text = absl::StrCat(
      last_failure_.empty() ? "no queue pair works" : last_failure_, "; tried ", pairs_made_,
      " queue pairs in ", wanted_, wanted_ == 1 ? " lane" : " lanes", " over ", rails().size(),
      rails().size() == 1 ? " device" : " devices", " for ",
      absl::FormatDuration(options.give_up_after),
      " (verbs.give_up_after) without getting anything across; likely cause: ",
      LikelyCause(last_status_ != NicStatus::kOk ? last_status_ : NicStatus::kGeneral, options));
  Control control;
  control.kind = ControlKind::kGiveUp;
  Say(control, text);
  Fail(absl::UnavailableError(text));
  SetDeadline(shared_.now + kGiveUpLinger);
}

void VerbsWire::Fail(const absl::Status& why) {
  if (closed_ || !failure_.ok()) return;
  failure_ = why;
  for (Lane& lane : lanes_) {
    lane.Reset();
    lane.state = Lane::State::kNone;
  }
  wake_at_ = absl::InfinitePast();
  SetDeadline(absl::InfinitePast());
}

}  // namespace weft::net
