// What a lost queue pair leaves behind, entries whose arrival is doubted, and when to give up.
#include <algorithm>
#include <cstring>
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

// ---- What a lost queue pair leaves behind

// Takes the entries that a queue pair which has ended has written without a completion, as
// completions are lost with it. The device may have acknowledged them. An entry is written after
// its payload, and the queue pair writes no more, so every entry found is complete.
void VerbsWire::OnPairEnded(int lane, uint32_t epoch, int rail) {
  if (!ring_.is_open()) return;
  const uint64_t end = in_.base + kRingSlots;
  for (uint64_t number = in_.base; number < end && !ended(); ++number) {
    if (in_.Has(number)) continue;
    EntryHeader header;
    std::memcpy(static_cast<void*>(&header), ring_.Arrived(number), kEagerHeaderBytes);
    if (header.magic == kEntryMagic && header.number == number && header.link == token_ &&
        header.epoch == epoch && header.lane == lane) {
      ++rails()[rail].arrivals;
      Arrived(number);
    }
  }
}

// What was posted on the lane and has not arrived waits again, before all that is younger.
void VerbsWire::OnLaneEnded(int lane, const ArrivalRecord& record) {
  const SentEntries::Requeued requeued =
      sent_.Requeue(lane, record, [this](SentEntry& entry) { NoteDelivered(entry); });
  if (requeued.lost.has_value()) {
    return Fail(absl::DataLossError(
        absl::StrCat("entry ", *requeued.lost, " was acknowledged on ", lanes_.Text(lanes_[lane]),
                     ", but the other side has no trace of it: its device or its memory is "
                     "faulty")));
  }
  lanes_[lane].repeats += requeued.repeats;
  WantTurn();
}

// ---- Time

void VerbsWire::WakeAt(absl::Time when) {
  if (when >= wake_at_) return;
  wake_at_ = when;
  SetDeadline(when);
}

void VerbsWire::Watch() {
  if (ended() || !ready_) return;
  absl::Time next = lanes_.NextDeadline();
  if (MaySendTaken()) next = std::min(next, taken_due_);
  if (sent_.outstanding() > 0 || (trouble_.is_there() && lanes_.AnyDown())) {
    next = std::min(next, shared_.now + look_every_);
  }
  if (next < absl::InfiniteFuture()) WakeAt(next);
}

void VerbsWire::OnDeadline(absl::Time now) {
  trouble_.since += StallTime(std::exchange(wake_at_, absl::InfiniteFuture()), now);
  if (closed_) return;
  if (!failure_.ok()) return owner_.OnWireBroken(failure_);
  shared_.now = std::max(shared_.now, now);
  lanes_.Tick(now);
  LookForStalls(now);
  if (Hopeless(now)) return GiveUp();
  WantTurn();
}

void VerbsWire::LookForStalls(absl::Time now) {
  const VerbsOptions& options = rails().options();
  bool ask = false;
  for (uint64_t number = sent_.taken(); number < sent_.next(); ++number) {
    const SentEntry& entry = sent_[number];
    if (entry.lane < 0 || entry.arrived) continue;
    const absl::Duration age = now - entry.since;
    const Lane& lane = lanes_[entry.lane];
    if (!entry.delivered && lane.pair != nullptr &&
        now - std::max(entry.since, lane.alive_at) > options.DetectionBound()) {
      lanes_.Fail(entry.lane, absl::StrCat("a write has not completed within ",
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
  Say(control, "");
}

// Only with what had arrived when the question came: a process that was not running for a while has
// completions to take that are older than the question, and would deny them.
void VerbsWire::Tell() {
  if (!rails().HandedOut(asked_mark_)) return WantTurn();
  Control tell;
  tell.kind = ControlKind::kTell;
  tell.epoch = std::exchange(asked_, 0);
  tell.record = in_;
  Say(tell, "");
}

absl::Status VerbsWire::OnTell(const Control& control) {
  if (!ask_open_ || control.epoch != ask_) {
    return absl::InvalidArgumentError("an answer that nobody has asked for");
  }
  ask_open_ = false;
  WEFT_RETURN_IF_ERROR(OnTaken(control.record.base));
  for (uint64_t number = sent_.taken(); number < sent_.next(); ++number) {
    SentEntry& entry = sent_[number];
    if (control.record.Has(number)) entry.arrived = true, NoteDelivered(entry);
    // An acknowledgement may overtake the completion at the other side, but not for so long.
    const bool old = entry.since + rails().options().stall_after <= asked_at_;
    if (entry.lane < 0 || entry.arrived || !entry.delivered || !old) continue;
    lanes_.Fail(entry.lane,
                "a write was acknowledged, but the other side has not seen it complete");
  }
  return absl::OkStatus();
}

bool VerbsWire::Hopeless(absl::Time now) const {
  return !silent_ && now - trouble_.since > rails().options().give_up_after &&
         (lanes_.Live() == 0 || sent_.outstanding() > 0);
}

void VerbsWire::GiveUp() {
  const VerbsOptions& options = rails().options();
  const std::string text =
      absl::StrCat(trouble_.last_failure.empty() ? "no queue pair works" : trouble_.last_failure,
                   "; tried ", trouble_.pairs_made, " queue pairs in ", lanes_.wanted(),
                   lanes_.wanted() == 1 ? " lane" : " lanes", " over ", rails().size(),
                   rails().size() == 1 ? " device" : " devices", " for ",
                   absl::FormatDuration(options.give_up_after),
                   " (verbs.give_up_after) without getting anything across; likely cause: ",
                   LikelyCause(trouble_.last_status != NicStatus::kOk ? trouble_.last_status
                                                                      : NicStatus::kGeneral,
                               options));
  Control control;
  control.kind = ControlKind::kGiveUp;
  Say(control, text);
  Fail(absl::UnavailableError(text));
  SetDeadline(shared_.now + kGiveUpLinger);
}

void VerbsWire::Fail(const absl::Status& why) {
  if (ended()) return;
  failure_ = why;
  lanes_.End();
  wake_at_ = absl::InfinitePast();
  SetDeadline(absl::InfinitePast());
}

}  // namespace weft::net
