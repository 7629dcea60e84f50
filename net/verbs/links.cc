#include "net/verbs/links.h"

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

std::string VerbsSendLink::Describe() const {
  return wire_.ready() ? absl::StrCat(DescribeLink(), "; ", wire_.lanes().Describe())
                       : DescribeLink();
}

void VerbsSendLink::OnConnected(std::vector<FileDescriptor> sockets,
                                std::vector<std::string> received, absl::Time now) {
  TcpSendLink::OnConnected(std::move(sockets), std::move(received), now);
  if (!status().ok()) return;
  absl::Status begun = wire_.Begin(ports_.For(peer()));
  if (!begun.ok()) Break(begun);
}

absl::StatusOr<PayloadTarget> VerbsSendLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return ControlTarget(header, &control_);
  return WrongWay("a frame", static_cast<int>(header.type));
}

absl::Status VerbsSendLink::OnLinkFrameDone(const FrameHeader&) {
  return wire_.OnControl(control_);
}

void VerbsSendLink::SendControl(std::string bytes) {
  const FrameHeader header = ControlFrame(bytes);
  QueueControl(header, std::move(bytes));
}

absl::Status VerbsSendLink::OnEntry(const EntryHeader& header, const std::byte* payload) {
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
  OnWritable();
  return absl::OkStatus();
}

absl::Status VerbsSendLink::OnClearToSend(const EntryHeader& header) {
  WEFT_RETURN_IF_ERROR(eager_.NoteMatched({header.offset, header.length}));
  if (eager_.TakesClearToSend(header.tag)) return absl::OkStatus();
  FrameHeader frame;
  frame.type = FrameType::kClearToSend;
  CopyFields(header, &frame);
  targets_[static_cast<uint32_t>(header.receive)] = {
      header.address, header.keys, header.reduce != 0, header.place == DataPlace::kTarget};
  absl::StatusOr<PayloadTarget> admitted = TcpSendLink::OnLinkFrame(frame);
  if (!admitted.ok()) return admitted.status();
  WEFT_RETURN_IF_ERROR(TcpSendLink::OnLinkFrameDone(frame));
  // Small ones may have waited behind the send that this was for.
  if (!ordinary_) held_tags_.push_back(header.tag);
  return absl::OkStatus();
}

// Two pieces for each queue pair where there are several, so that a faster one can take more, and
// so small that each can have two on its way (PieceMost); but none smaller or larger than is set,
// and all multiples of 128.
size_t VerbsSendLink::PieceBytes(uint64_t receive, size_t total) const {
  const VerbsOptions& options = wire_.rails().options();
  const auto target = targets_.find(static_cast<uint32_t>(receive));
  const auto pieces =
      wire_.lanes().wanted() <= 1 ? 1 : static_cast<size_t>(wire_.lanes().wanted()) * 2;
  const size_t even = (total / pieces + 127) / 128 * 128;
  const size_t most = target != targets_.end() && target->second.reduce
                          ? std::min(options.piece_max, kStagingSlotBytes)
                          : options.piece_max;
  return std::clamp(std::min(even, LargestPiece(wire_.lanes().lanes())),
                    std::min(options.piece_min, most), most);
}

bool VerbsSendLink::SendDataElsewhere() {
  while (wire_.HasRoom()) {
    if (!held_.has_value()) {
      OutFrame frame;
      if (!NextData(&frame)) break;
      held_ = std::move(frame);
    }
    if (!SendPiece(*held_)) break;
    held_.reset();
  }
  return true;
}

bool VerbsSendLink::SendPiece(const OutFrame& frame) {
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
  if (from.length <= kEntryPayloadMax && !beside) {
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

void VerbsSendLink::OnDelivered(uint32_t token) {
  ++data_delivered_;
  if (token == kAgainToken) return;
  if ((token & kEagerBit) == 0) return OnSent(token);
  const uint32_t slot = token & ~kEagerBit;
  const Eager one = std::exchange(on_their_way_[slot], {});
  on_their_way_.Release(slot);
  counters_.Finish(one.bytes);
  one.request->Finish(absl::OkStatus(), one.bytes);
}

void VerbsSendLink::OnRoom() {
  if (!sending_failed_.ok()) return Break(sending_failed_);
  SendQueued();
  SendHeldEagerly();
  if (HasData() || held_.has_value()) OnWritable();
}

void VerbsSendLink::FailRequests(const absl::Status& why) {
  wire_.Close();
  held_.reset();
  for (uint32_t slot = 0; slot < on_their_way_.size(); ++slot) {
    Request* request = std::exchange(on_their_way_[slot].request, nullptr);
    if (request != nullptr) request->Finish(why, 0);
  }
  TcpSendLink::FailRequests(why);
}

// ---- The accepting end

VerbsReceiveLink::~VerbsReceiveLink() {
  LinkCore::Finish();
  shared_.flush->Cancel(this, absl::CancelledError("the link is closed"));
  wire_.Close();
  if (staging_keys_ != nullptr) wire_.rails().memory().Release(staging_keys_);
}

std::string VerbsReceiveLink::Describe() const {
  return wire_.ready() ? absl::StrCat(DescribeLink(), "; ", wire_.lanes().Describe())
                       : DescribeLink();
}

void VerbsReceiveLink::Start(std::vector<FileDescriptor> sockets) {
  std::vector<std::string> received(sockets.size());
  Attach(std::move(sockets), std::move(received));
  absl::Status begun = wire_.Begin(ports_.For(peer()));
  if (!begun.ok()) Break(begun);
}

absl::StatusOr<PayloadTarget> VerbsReceiveLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return ControlTarget(header, &control_);
  return WrongWay("a frame", static_cast<int>(header.type));
}

absl::Status VerbsReceiveLink::OnLinkFrameDone(const FrameHeader&) {
  return wire_.OnControl(control_);
}

void VerbsReceiveLink::SendControl(std::string bytes) {
  const FrameHeader header = ControlFrame(bytes);
  QueueControl(header, std::move(bytes));
}

absl::StatusOr<EntryHeader> VerbsReceiveLink::ClearToSendOf(uint64_t receive) {
  const MessageKey& key = *KeyOf(receive);
  const ReceiveTarget& target = *TargetOf(receive);
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
  if (entry.total > 0 && entry.reduce == 0) {
    WEFT_RETURN_IF_ERROR(SayWhere(target.out, &entry));
  }
  FillTaken(&entry);
  return entry;
}

// An error breaks the link at the wire's next turn.
void VerbsReceiveLink::WriteClears() {
  while (urgent_ > 0 && wire_.HasRoom() && posting_failed_.ok()) {
    const uint64_t receive = clears_.front().receive;
    if (KeyOf(receive) == nullptr) {
      posting_failed_ = absl::InvalidArgumentError(
          absl::StrCat("the other side has ended receive ", receive, " before it was told of it"));
      break;
    }
    const ReceiveTarget& target = *TargetOf(receive);
    if (target.reduce != nullptr && target.out.size() > kEntryPayloadMax && staging_ == nullptr) {
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

absl::Status VerbsReceiveLink::SayWhere(const RegionView& out, EntryHeader* entry) const {
  const MemoryCache::Entry* memory = wire_.rails().memory().Find(out.data(), out.size());
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

void VerbsReceiveLink::Flush(const RegionView& where, Request* request) {
  const MemoryCache::Entry* entry =
      where.size() == 0 ? nullptr : wire_.rails().memory().Find(where.data(), where.size());
  const bool needed = entry != nullptr && entry->is_device && wire_.rails().options().flush;
  if (!needed || !status().ok()) {
    request->Begin();
    return request->Finish(status(), 0);
  }
  shared_.flush->Start(this, entry, where.data(), request, shared_.now);
}

absl::Status VerbsReceiveLink::AnnounceStaging() {
  auto staging = std::make_unique_for_overwrite<Staging>();
  WEFT_ASSIGN_OR_RETURN(staging_keys_,
                        wire_.rails().memory().Acquire(staging.get(), sizeof(Staging)));
  staging_ = std::move(staging);
  EntryHeader entry;
  entry.kind = EntryKind::kStaging;
  entry.total = kStagingSlots;
  entry.length = kStagingSlotBytes;
  entry.address = reinterpret_cast<uintptr_t>(staging_->slots.data());
  for (size_t rail = 0; rail < kVerbsRailsMax; ++rail) {
    entry.keys[rail] = staging_keys_->keys[rail].remote_key;
  }
  wire_.Send(entry, nullptr, VerbsWire::kNoToken);
  return absl::OkStatus();
}

void VerbsReceiveLink::OnRoom() {
  if (!posting_failed_.ok()) return Break(posting_failed_);
  if (ClosedThere()) wire_.FallSilent();
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

absl::Status VerbsReceiveLink::OnEntry(const EntryHeader& header, const std::byte* payload) {
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
      absl::StatusOr<PayloadTarget> admitted = TcpReceiveLink::OnLinkFrame(frame);
      return admitted.ok() ? TcpReceiveLink::OnLinkFrameDone(frame) : admitted.status();
    }
    case EntryKind::kData:
      break;
    default:
      return WrongWay("an entry", static_cast<int>(header.kind));
  }
  eager_.RemovePosted(header.tag, header.receive);
  absl::StatusOr<PayloadTarget> target = TcpReceiveLink::OnLinkFrame(frame);
  if (!target.ok()) return target.status();
  WEFT_RETURN_IF_ERROR(PutInPlace(header, payload, *target));
  ++data_arrived_;
  absl::Status done = TcpReceiveLink::OnLinkFrameDone(frame);
  NoteArrival();
  return done;
}

absl::Status VerbsReceiveLink::PutInPlace(const EntryHeader& header, const std::byte* payload,
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
      from = staging_->slots[header.staging_slot].data();
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

void VerbsReceiveLink::FailRequests(const absl::Status& why) {
  shared_.flush->Cancel(this, why);
  wire_.Close();
  eager_.Clear();
  clears_.clear();
  urgent_ = 0;
  TcpReceiveLink::FailRequests(why);
}

}  // namespace weft::net
