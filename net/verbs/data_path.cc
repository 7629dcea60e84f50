#include "net/verbs/data_path.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/verbs/flush.h"
#include "net/verbs/striping.h"

namespace weft::net {
namespace {

absl::Status WrongWay(const char* what, int kind) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of kind ", kind, " that does not belong on this way of a verbs link"));
}

// A control is the payload of a kAddress frame.
absl::StatusOr<PayloadTarget> ControlTarget(const FrameHeader& header, std::string* into) {
  if (header.length > sizeof(Control) + kControlTextMax) {
    return absl::InvalidArgumentError(absl::StrCat("a control of ", header.length, " bytes"));
  }
  into->assign(header.length, '\0');
  PayloadTarget target;
  target.out = reinterpret_cast<std::byte*>(into->data());
  return target;
}

FrameHeader ControlFrame(const std::string& bytes) {
  FrameHeader header;
  header.type = FrameType::kAddress;
  header.length = bytes.size();
  return header;
}

void CopyFields(const EntryHeader& from, FrameHeader* to) {
  to->receive = from.receive;
  to->tag = from.tag;
  to->check = from.check;
  to->offset = from.offset;
  to->total = from.total;
  to->length = from.length;
}

}  // namespace

EntryHeader EntryOf(EntryKind kind, const FrameHeader& frame) {
  EntryHeader header;
  header.kind = kind;
  header.receive = frame.receive;
  header.tag = frame.tag;
  header.check = frame.check;
  header.offset = frame.offset;
  header.total = frame.total;
  return header;
}

// ---- The connecting end

std::string VerbsSendDataPath::Describe() const {
  return wire_.ready() ? wire_.lanes().Describe() : "";
}

absl::StatusOr<PayloadTarget> VerbsSendDataPath::OnFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return ControlTarget(header, &control_);
  return WrongWay("a frame", static_cast<int>(header.type));
}

void VerbsSendDataPath::SendControl(std::string bytes) {
  const FrameHeader header = ControlFrame(bytes);
  session_.QueueControl(header, std::move(bytes));
}

absl::Status VerbsSendDataPath::OnEntry(const EntryHeader& header, const std::byte* payload) {
  switch (header.kind) {
    case EntryKind::kClearToSend:
      return OnClearToSend(header);
    case EntryKind::kTaken:
      return eager_.NoteMatched({header.offset, header.length});
    case EntryKind::kStaging:
      if (header.total != kStagingSlots || header.length != kStagingSlotBytes ||
          staging_.address != 0) {
        return absl::InvalidArgumentError("staging memory of another shape, or a second one");
      }
      staging_ = {header.address, header.keys, true};
      for (int slot = kStagingSlots; slot-- > 0;) {
        staging_free_.push_back(static_cast<uint8_t>(slot));
      }
      break;
    case EntryKind::kRelease:
      for (size_t i = 0; i < header.length; ++i) {
        const auto slot = static_cast<uint8_t>(payload[i]);
        if (slot >= kStagingSlots || staging_free_.size() == kStagingSlots) {
          return absl::InvalidArgumentError(absl::StrCat("staging slot ", slot, " is given back"));
        }
        staging_free_.push_back(slot);
      }
      break;
    case EntryKind::kAgain:
      return SendAgain(header, payload);
    case EntryKind::kOrdinary:
      ordinary_ = true;
      break;
    default:
      return WrongWay("an entry", static_cast<int>(header.kind));
  }
  session_.WantTurn();
  return absl::OkStatus();
}

absl::Status VerbsSendDataPath::OnClearToSend(const EntryHeader& header) {
  WEFT_RETURN_IF_ERROR(eager_.NoteMatched({header.offset, header.length}));
  if (eager_.TakesClearToSend(header.tag)) return absl::OkStatus();
  FrameHeader frame;
  frame.type = FrameType::kClearToSend;
  CopyFields(header, &frame);
  targets_[static_cast<uint32_t>(header.receive)] = {
      header.address, header.keys, header.reduce != 0, header.place == DataPlace::kTarget};
  WEFT_RETURN_IF_ERROR(matching_.Admit(frame));
  Follow(matching_.OnClearToSend(frame));
  // Small ones may have waited behind the send that this was for.
  if (!ordinary_) held_tags_.push_back(header.tag);
  return absl::OkStatus();
}

void VerbsSendDataPath::Follow(SendMatching::Outcome outcome) {
  if (outcome != SendMatching::Outcome::kMismatch) return session_.Follow(outcome);
  SendMismatch(matching_.mismatch());
}

// Two pieces for each queue pair where there are several, so that a faster one can take more, and
// so small that each can have two on its way (LargestPiece); but none smaller or larger than is
// set, and all multiples of 128.
size_t VerbsSendDataPath::PieceBytes(const SendMatching::Head& head) const {
  const VerbsOptions& options = wire_.rails().options();
  const auto target = targets_.find(static_cast<uint32_t>(head.receive));
  const auto pieces =
      wire_.lanes().wanted() <= 1 ? 1 : static_cast<size_t>(wire_.lanes().wanted()) * 2;
  const size_t even = (head.total / pieces + 127) / 128 * 128;
  const size_t most = target != targets_.end() && target->second.reduce
                          ? std::min(options.piece_max, kStagingSlotBytes)
                          : options.piece_max;
  return std::clamp(std::min(even, LargestPiece(wire_.lanes().lanes())),
                    std::min(options.piece_min, most), most);
}

void VerbsSendDataPath::SendData() {
  while (wire_.HasRoom()) {
    if (!held_.has_value()) {
      if (!matching_.HasData()) break;
      OutFrame frame;
      matching_.NextData(PieceBytes(matching_.head()), &frame);
      held_ = std::move(frame);
    }
    if (!SendPiece(*held_)) break;
    held_.reset();
  }
}

bool VerbsSendDataPath::SendPiece(const OutFrame& frame) {
  const FrameHeader& from = frame.header;
  EntryHeader header = EntryOf(EntryKind::kData, from);
  header.length = from.length;
  const Target& target = targets_[static_cast<uint32_t>(from.receive)];
  // What travels in an entry is copied there and out of it by the processors.
  const bool beside = from.length > 0 && (target.direct || wire_.rails().memory().IsDevice(
                                                               frame.payload, from.length));
  if (beside && (target.reduce ? staging_.address : target.address) == 0) {
    sending_failed_ = absl::InvalidArgumentError(
        absl::StrCat("a send of ", from.total, " bytes of a device's memory to a receive that ",
                     target.reduce ? "reduces" : "is not into registered memory"));
    wire_.WakeUp();
    return false;
  }
  const bool is_small = from.length <= kEntryPayloadMax || from.total <= wire_.eager_max();
  if (is_small && !beside) {
    header.place = DataPlace::kEntry;
    wire_.SendSmall(header, {reinterpret_cast<const char*>(frame.payload), from.length},
                    frame.token);
    return true;
  }
  if (!target.reduce) {
    header.place = DataPlace::kTarget;
    header.address = target.address + from.offset;
    header.keys = target.keys;
  } else {
    if (staging_free_.empty()) return false;
    header.place = DataPlace::kStagingSlot;
    header.staging_slot = staging_free_.back();
    header.address = staging_.address + header.staging_slot * kStagingSlotBytes;
    header.keys = staging_.keys;
    staging_free_.pop_back();
  }
  wire_.Send(header, frame.payload, frame.token);
  return true;
}

void VerbsSendDataPath::OnDelivered(uint32_t token) {
  ++data_delivered_;
  if (token == kAgainToken) return;
  if ((token & kEagerBit) == 0) return matching_.OnSent(token);
  const uint32_t slot = token & ~kEagerBit;
  const Eager one = std::exchange(on_their_way_[slot], {});
  on_their_way_.Release(slot);
  matching_.counters().Finish(one.bytes);
  one.request->Finish(absl::OkStatus(), one.bytes);
}

void VerbsSendDataPath::OnRoom() {
  if (!sending_failed_.ok()) return session_.Break(sending_failed_);
  SendQueued();
  SendHeldEagerly();
  if (matching_.HasData() || held_.has_value()) session_.WantTurn();
}

void VerbsSendDataPath::Close(const absl::Status& why) {
  wire_.Close();
  held_.reset();
  for (uint32_t slot = 0; slot < on_their_way_.size(); ++slot) {
    Request* request = std::exchange(on_their_way_[slot].request, nullptr);
    if (request != nullptr) request->Finish(why, 0);
  }
}

// ---- The accepting end

VerbsReceiveDataPath::~VerbsReceiveDataPath() {
  shared_.flush->Cancel(this, absl::CancelledError("the link is closed"));
  wire_.Close();
  if (staging_keys_ != nullptr) {
    wire_.rails().memory().Release(staging_keys_, staging_.get(), kStagingBytes);
  }
}

std::string VerbsReceiveDataPath::Describe() const {
  return wire_.ready() ? wire_.lanes().Describe() : "";
}

absl::StatusOr<PayloadTarget> VerbsReceiveDataPath::OnFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return ControlTarget(header, &control_);
  return WrongWay("a frame", static_cast<int>(header.type));
}

void VerbsReceiveDataPath::SendControl(std::string bytes) {
  const FrameHeader header = ControlFrame(bytes);
  session_.QueueControl(header, std::move(bytes));
}

absl::StatusOr<EntryHeader> VerbsReceiveDataPath::ClearToSendOf(uint64_t receive) {
  const MessageKey& key = *matching_.KeyOf(receive);
  const ReceiveTarget& target = *matching_.TargetOf(receive);
  EntryHeader entry;
  entry.kind = EntryKind::kClearToSend;
  entry.receive = receive;
  entry.tag = key.tag;
  entry.check = key.check;
  entry.total = target.out.size();
  entry.reduce = target.reduce != nullptr ? 1 : 0;
  entry.place = DataPlace::kEntry;
  if (entry.reduce != 0 && wire_.rails().memory().IsDevice(target.out.data(), entry.total)) {
    return absl::InvalidArgumentError("a receive that reduces into a device's memory");
  }
  const bool is_needed = entry.reduce == 0 && !ComesInEntry(target);
  if (entry.total > 0 && is_needed) WEFT_RETURN_IF_ERROR(SayWhere(target.out, &entry));
  FillTaken(&entry);
  return entry;
}

// Then neither end registers anything for it.
bool VerbsReceiveDataPath::ComesInEntry(const ReceiveTarget& target) const {
  return target.sender_waits && target.out.size() <= wire_.eager_max() &&
         !wire_.rails().memory().IsDevice(target.out.data(), target.out.size());
}

// An error breaks the link at the wire's next turn.
void VerbsReceiveDataPath::WriteClears() {
  while (urgent_ > 0 && wire_.HasRoom() && posting_failed_.ok()) {
    const uint64_t receive = clears_.front().receive;
    if (matching_.KeyOf(receive) == nullptr) {
      posting_failed_ = absl::InvalidArgumentError(
          absl::StrCat("the other side has ended receive ", receive, " before it was told of it"));
      break;
    }
    const ReceiveTarget& target = *matching_.TargetOf(receive);
    if (target.reduce != nullptr && target.out.size() > kEntryPayloadMax && !ComesInEntry(target) &&
        staging_ == nullptr) {
      posting_failed_ = AnnounceStaging();
      continue;
    }
    absl::StatusOr<EntryHeader> entry = ClearToSendOf(receive);
    if (!entry.ok()) {
      posting_failed_ = entry.status();
      break;
    }
    wire_.Send(*entry, nullptr, VerbsWire::kNoToken);
    clears_.pop_front();
    --urgent_;
  }
  if (!posting_failed_.ok()) wire_.WakeUp();  // an idle link has no other turn
}

absl::Status VerbsReceiveDataPath::SayWhere(const RegionView& out, EntryHeader* entry) const {
  WEFT_ASSIGN_OR_RETURN(const MemoryCache::Entry* memory,
                        wire_.rails().memory().FindRegistered(out.data(), out.size()));
  if (memory == nullptr && entry->total > kEntryPayloadMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a receive of ", entry->total, " bytes into memory that is not registered here"));
  }
  if (memory == nullptr) return absl::OkStatus();
  entry->address = reinterpret_cast<uintptr_t>(out.data());
  if (memory->is_device) entry->place = DataPlace::kTarget;
  for (size_t rail = 0; rail < kVerbsRailsMax; ++rail) {
    entry->keys[rail] = memory->keys[rail].remote_key;
  }
  return absl::OkStatus();
}

void VerbsReceiveDataPath::Flush(const RegionView& where, Request* request) {
  const MemoryCache::Entry* entry =
      where.size() == 0 ? nullptr : wire_.rails().memory().Find(where.data(), where.size());
  const bool needed = entry != nullptr && entry->is_device && wire_.rails().options().flush;
  if (!needed) {
    request->Begin();
    return request->Finish(absl::OkStatus(), 0);
  }
  shared_.flush->Start(this, entry, where.data(), request, shared_.now);
}

absl::Status VerbsReceiveDataPath::AnnounceStaging() {
  WEFT_ASSIGN_OR_RETURN(OwnPages staging, MapOwnPages(kStagingBytes));
  WEFT_ASSIGN_OR_RETURN(staging_keys_,
                        wire_.rails().memory().Acquire(staging.get(), kStagingBytes));
  staging_ = std::move(staging);
  EntryHeader entry;
  entry.kind = EntryKind::kStaging;
  entry.total = kStagingSlots;
  entry.length = kStagingSlotBytes;
  entry.address = reinterpret_cast<uintptr_t>(staging_.get());
  for (size_t rail = 0; rail < kVerbsRailsMax; ++rail) {
    entry.keys[rail] = staging_keys_->keys[rail].remote_key;
  }
  wire_.Send(entry, nullptr, VerbsWire::kNoToken);
  return absl::OkStatus();
}

void VerbsReceiveDataPath::OnRoom() {
  if (!posting_failed_.ok()) return session_.Break(posting_failed_);
  if (session_.ClosedThere()) wire_.FallSilent();
  if (!clears_.empty() && urgent_ == 0) {
    if (clears_.front().due <= shared_.now) urgent_ = clears_.size();
    wire_.WakeAt(clears_.front().due);
  }
  if (urgent_ > 0) WriteClears();
  SendQueued();
  if (eager_.HasUnreported()) wire_.SendTaken();
  while (!released_.empty() && wire_.HasRoom()) {
    EntryHeader entry;
    entry.kind = EntryKind::kRelease;
    entry.length = std::min(released_.size(), kEntryPayloadMax);
    wire_.SendSmall(entry, absl::string_view(released_).substr(0, entry.length),
                    VerbsWire::kNoToken);
    released_.erase(0, entry.length);
  }
}

absl::Status VerbsReceiveDataPath::OnEntry(const EntryHeader& header, const std::byte* payload) {
  FrameHeader frame;
  frame.type = FrameType::kData;
  CopyFields(header, &frame);
  switch (header.kind) {
    case EntryKind::kEager:
      ++data_arrived_;
      return OnEager(header, payload);
    case EntryKind::kOrdinary:
      ordinary_ = true;
      urgent_ = clears_.size();
      return absl::OkStatus();
    case EntryKind::kMismatch: {
      eager_.RemovePosted(header.tag, header.receive);
      frame.type = FrameType::kMismatch;
      absl::StatusOr<PayloadTarget> admitted = matching_.OnFrame(frame);
      return admitted.ok() ? matching_.OnFrameDone(frame) : admitted.status();
    }
    case EntryKind::kData:
      break;
    default:
      return WrongWay("an entry", static_cast<int>(header.kind));
  }
  eager_.RemovePosted(header.tag, header.receive);
  absl::StatusOr<PayloadTarget> target = matching_.OnFrame(frame);
  if (!target.ok()) return target.status();
  WEFT_RETURN_IF_ERROR(PutInPlace(header, payload, *target));
  ++data_arrived_;
  absl::Status done = matching_.OnFrameDone(frame);
  session_.NoteArrival();
  return done;
}

absl::Status VerbsReceiveDataPath::PutInPlace(const EntryHeader& header, const std::byte* payload,
                                              const PayloadTarget& target) {
  const std::byte* from = nullptr;
  switch (header.place) {
    case DataPlace::kTarget:
      if (target.reduce == nullptr) return absl::OkStatus();
      break;
    case DataPlace::kEntry:
      if (!wire_.rails().memory().IsDevice(target.out, header.length)) from = payload;
      break;
    case DataPlace::kStagingSlot:
      if (staging_ == nullptr || header.staging_slot >= kStagingSlots ||
          header.length > kStagingSlotBytes) {
        break;
      }
      from = staging_.get() + header.staging_slot * kStagingSlotBytes;
      released_ += static_cast<char>(header.staging_slot);
      break;
  }
  if (from == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a piece of ", header.length, " bytes at place ", static_cast<int>(header.place), ", slot ",
        static_cast<int>(header.staging_slot), " that the receive does not allow"));
  }
  if (header.length == 0) return absl::OkStatus();
  if (target.reduce != nullptr) {
    target.reduce(target.out, target.local, from, header.length);
  } else {
    std::memcpy(target.out, from, header.length);
  }
  return absl::OkStatus();
}

void VerbsReceiveDataPath::Close(const absl::Status& why) {
  shared_.flush->Cancel(this, why);
  wire_.Close();
  eager_.Clear();
  clears_.clear();
  urgent_ = 0;
}

}  // namespace weft::net
