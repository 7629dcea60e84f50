// Eager messages at both ends of a link: which go, and what becomes of those that come.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/data_path.h"

namespace weft::net {
namespace {

// A clear-to-send that eager messages will probably make needless is held back for so long: for a
// sender that cannot send eagerly, or must be told that its message is too long.
constexpr absl::Duration kHoldBack = absl::Milliseconds(10);

absl::string_view View(const std::byte* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

// ---- The connecting end

// As far as can be said of the message alone; before the wire is ready, of what this side wants.
bool VerbsSendDataPath::MayGoEagerly(const RegionView& data) const {
  const size_t most = wire_.ready() ? wire_.eager_max() : wire_.rails().options().eager_max;
  return !ordinary_ && most > 0 && data.size() <= most;
}

Posted VerbsSendDataPath::PostSend(const MessageKey& key, const SendSource& source,
                                   Request* request) {
  if (!MayGoEagerly(source.data)) return PostOrdinarily(key, source, request);
  if (source.data.size() > 0 &&
      wire_.rails().memory().IsDevice(source.data.data(), source.data.size())) {
    TurnOrdinary();
    return PostOrdinarily(key, source, request);
  }
  if (source.waits) return PostOrdinarily(key, source, request);
  if (matching_.IsIdle(key.tag) && SendEagerly(key, source.data, request)) {
    matching_.counters().Post(source.data.size());
    wire_.PostAtOnce();
    return Posted::kAccepted;
  }
  const Posted posted = PostOrdinarily(key, source, request);
  if (posted == Posted::kAccepted) held_tags_.push_back(key.tag), wire_.WakeUp();
  return posted;
}

// With a clear-to-send.
Posted VerbsSendDataPath::PostOrdinarily(const MessageKey& key, const SendSource& source,
                                         Request* request) {
  if (matching_.IsFull()) return Posted::kNotYet;
  const SendMatching::Outcome outcome = matching_.Post(key, source, request);
  if (outcome == SendMatching::Outcome::kWaits) session_.NoteAwaiting();
  Follow(outcome);
  return Posted::kAccepted;
}

// Nothing before it of its tag may be on this side any more: the receiver takes it for the first
// receive of its tag that it knows no message for.
bool VerbsSendDataPath::SendEagerly(const MessageKey& key, const RegionView& data,
                                    Request* request) {
  if (!wire_.ready() || !wire_.HasRoom() || !eager_.HasCredit() || !queued_.empty() ||
      (held_.has_value() && held_->header.tag == key.tag)) {
    return false;
  }
  const uint32_t slot = on_their_way_.Acquire();
  on_their_way_[slot] = {request, data.size()};
  request->Begin();
  EntryHeader header;
  header.kind = EntryKind::kEager;
  header.tag = key.tag;
  header.check = key.check;
  header.length = data.size();
  eager_.Sent(key.tag);
  matching_.counters().Match(data.size());  // it waits for no receive
  matching_.counters().Transmit(data.size());
  wire_.SendSmall(header, View(data.data(), data.size()), kEagerBit | slot);
  return true;
}

// Sends at most one message of each of these tags, in turn. A long one, and one that has to wait,
// holds up the small ones behind it until its clear-to-send has come.
void VerbsSendDataPath::SendHeldEagerly() {
  for (size_t left = held_tags_.size(); left > 0; --left) {
    if (!wire_.HasRoom() || !eager_.HasCredit()) return;
    const uint64_t tag = held_tags_.front();
    held_tags_.pop_front();
    bool waits = true;
    const SendMatching::TakenOver taken = matching_.TakeFirstWaiting(
        tag, [&](const MessageKey& key, const RegionView& data, Request* request) {
          waits = MayGoEagerly(data);
          return waits && SendEagerly(key, data, request);
        });
    if (taken == SendMatching::TakenOver::kTaken ||
        (taken == SendMatching::TakenOver::kNotYet && waits)) {
      held_tags_.push_back(tag);
    }
  }
}

void VerbsSendDataPath::TurnOrdinary() {
  ordinary_ = true;
  EntryHeader header;
  header.kind = EntryKind::kOrdinary;
  queued_.push_back({header, {}});
  wire_.WakeUp();
}

// It follows all that was sent, and no eager message overtakes it.
void VerbsSendDataPath::SendMismatch(const FrameHeader& frame) {
  queued_.push_back({EntryOf(EntryKind::kMismatch, frame), {}});
  wire_.WakeUp();
}

// A part of an eager message that the other side's processor cannot put in place.
absl::Status VerbsSendDataPath::SendAgain(const EntryHeader& from, const std::byte* payload) {
  if (from.length == 0 || from.address == 0) {
    return absl::InvalidArgumentError("an eager message is given back without bytes or a place");
  }
  EntryHeader header = from;
  header.kind = EntryKind::kData;
  header.place = DataPlace::kTarget;
  queued_.push_back({header, std::string(View(payload, from.length))});
  return absl::OkStatus();
}

void VerbsSendDataPath::SendQueued() {
  while (!queued_.empty() && wire_.HasRoom()) {
    const Queued& one = queued_.front();
    if (one.payload.empty()) {
      wire_.Send(one.header, nullptr, VerbsWire::kNoToken);
    } else {
      wire_.SendCopy(one.header, one.payload, kAgainToken);
    }
    queued_.pop_front();
  }
}

void VerbsSendDataPath::OnEagerDiffers(bool too_long, const std::string& why) {
  const absl::Status status =
      too_long ? absl::OutOfRangeError(why) : absl::FailedPreconditionError(why);
  WEFT_LOG_ERROR("verbs: ", why, "; the send had completed before");
  session_.TellMismatch(status);
}

// ---- The accepting end

void VerbsReceiveDataPath::SendClearToSend(const FrameHeader& header) {
  if (auto kept = eager_.TakeKept(header.tag); kept.has_value()) {
    absl::Status delivered = Deliver(header.receive, kept->number, kept->check, kept->bytes);
    if (!delivered.ok()) posting_failed_ = std::move(delivered);
    return wire_.WakeUp();
  }
  eager_.AddPosted(header.tag, header.receive);
  const bool is_device =
      header.total > 0 &&
      wire_.rails().memory().IsDevice(matching_.TargetOf(header.receive)->out.data(), header.total);
  if (is_device) TurnOrdinary();
  clears_.push_back({header.receive, shared_.now + kHoldBack});
  if (ordinary_ || wire_.eager_max() == 0 || header.total > wire_.eager_max() || eager_.keeps() ||
      matching_.TargetOf(header.receive)->sender_waits) {
    urgent_ = clears_.size();
    WriteClears();
  } else if (clears_.size() == 1) {
    wire_.WakeAt(clears_.front().due);
  }
}

void VerbsReceiveDataPath::DropUnwanted() {
  eager_.DropKept([this](uint64_t tag) { return Wants(tag); });
  wire_.WakeUp();
}

absl::Status VerbsReceiveDataPath::OnEager(const EntryHeader& header, const std::byte* payload) {
  uint64_t number = 0;
  WEFT_RETURN_IF_ERROR(eager_.NoteArrived(&number));
  const auto bytes = absl::MakeConstSpan(payload, header.length);
  const std::optional<uint64_t> receive = eager_.TakePosted(header.tag);
  if (!receive.has_value() && !Wants(header.tag)) {
    eager_.NoteMatched(number);
    wire_.WakeUp();  // to tell, where it is time for that
    return absl::OkStatus();
  }
  if (!receive.has_value()) {
    eager_.Keep(number, header.tag, header.check, bytes);
    urgent_ = clears_.size();  // the sender's credit may run out
    return absl::OkStatus();
  }
  const auto clear = std::find_if(clears_.begin(), clears_.end(),
                                  [&](const Clear& one) { return one.receive == *receive; });
  if (clear != clears_.end()) {
    if (clear < clears_.begin() + static_cast<std::ptrdiff_t>(urgent_)) --urgent_;
    clears_.erase(clear);
  }
  return Deliver(*receive, number, header.check, bytes);
}

absl::Status VerbsReceiveDataPath::Deliver(uint64_t receive, uint64_t number, uint64_t check,
                                           absl::Span<const std::byte> bytes) {
  const MessageKey* key = matching_.KeyOf(receive);
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("an eager message for receive ", receive, ", which has ended"));
  }
  eager_.NoteMatched(number);
  const size_t capacity = matching_.TargetOf(receive)->out.size();
  FrameHeader frame;
  frame.receive = receive;
  frame.tag = key->tag;
  frame.check = check;
  frame.total = bytes.size();
  const bool differs = check != key->check;
  if (differs || bytes.size() > capacity) {
    Control control;
    control.kind = ControlKind::kDiffers;
    control.rail = differs ? 0 : 1;
    SendControl(
        EncodeControl(control, MismatchStatus(!differs, key->tag, peer_, check, bytes.size(),
                                              session_.context().options.self, key->check, capacity)
                                   .message()));
    frame.type = FrameType::kMismatch;
    frame.offset = differs ? 0 : 1;
    absl::Status failed = matching_.OnFrameDone(frame);
    session_.NoteArrival();
    return failed;
  }
  if (!bytes.empty() &&
      wire_.rails().memory().IsDevice(matching_.TargetOf(receive)->out.data(), bytes.size())) {
    return GiveBack(receive, bytes);
  }
  frame.type = FrameType::kData;
  frame.length = bytes.size();
  WEFT_ASSIGN_OR_RETURN(const PayloadTarget target, matching_.OnFrame(frame));
  if (!bytes.empty() && target.reduce != nullptr) {
    target.reduce(target.out, target.local, bytes.data(), bytes.size());
  } else if (!bytes.empty()) {
    std::memcpy(target.out, bytes.data(), bytes.size());
  }
  absl::Status done = matching_.OnFrameDone(frame);
  session_.NoteArrival();
  return done;
}

absl::Status VerbsReceiveDataPath::GiveBack(uint64_t receive, absl::Span<const std::byte> bytes) {
  TurnOrdinary();
  const ReceiveTarget& target = *matching_.TargetOf(receive);
  if (target.reduce != nullptr) {
    return absl::InvalidArgumentError("a receive that reduces into a device's memory");
  }
  EntryHeader header;
  header.kind = EntryKind::kAgain;
  header.receive = receive;
  header.tag = matching_.KeyOf(receive)->tag;
  header.check = matching_.KeyOf(receive)->check;
  header.total = bytes.size();
  WEFT_RETURN_IF_ERROR(SayWhere(target.out, &header));
  const uint64_t address = header.address;
  for (; header.offset < bytes.size(); header.offset += header.length) {
    header.length = std::min<uint64_t>(bytes.size() - header.offset, kEntryPayloadMax);
    header.address = address + header.offset;
    queued_.push_back({header, std::string(View(bytes.data() + header.offset, header.length))});
  }
  wire_.WakeUp();
  return absl::OkStatus();
}

void VerbsReceiveDataPath::TurnOrdinary() {
  if (std::exchange(ordinary_, true)) return;
  EntryHeader header;
  header.kind = EntryKind::kOrdinary;
  queued_.push_back({header, {}});
  urgent_ = clears_.size();
  wire_.WakeUp();
}

void VerbsReceiveDataPath::SendQueued() {
  while (!queued_.empty() && wire_.HasRoom()) {
    wire_.SendSmall(queued_.front().header, queued_.front().payload, VerbsWire::kNoToken);
    queued_.pop_front();
  }
}

void VerbsReceiveDataPath::FillTaken(EntryHeader* taken) {
  const EagerRecord matched = eager_.Tell();
  taken->offset = matched.base;
  taken->length = matched.bits;
}

}  // namespace weft::net
