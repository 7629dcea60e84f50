// Entries: numbering, posting, taking. What becomes of them when a queue pair is lost is in
// wire_repair.cc.
#include "net/verbs/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/verbs/striping.h"

namespace weft::net {
namespace {

// The other side is told what was taken when a quarter of its ring waits for that, or so late that
// it is nearly always told by what goes there anyway. Only room in the ring depends on it.
constexpr uint64_t kTakenAt = kRingSlots / 4;
constexpr absl::Duration kTakenAfter = absl::Milliseconds(10);
// A link's turn hands its messages over, the next round posts them.
constexpr int kRoundsBehind = 2;

bool CarriesPayload(const EntryHeader& header) {
  switch (header.kind) {
    case EntryKind::kRelease:
    case EntryKind::kEager:
    case EntryKind::kAgain:
      return true;
    default:
      return header.kind == EntryKind::kData && header.place == DataPlace::kEntry;
  }
}

uint64_t NewToken() {
  const Nonce nonce = NewNonce();
  uint64_t out = 0;
  std::memcpy(&out, nonce.data(), sizeof out);
  return out;
}

}  // namespace

VerbsWire::VerbsWire(Poller& poller, VerbsShared& shared, VerbsWireOwner& owner, bool leads,
                     int peer)
    : PollHandler(poller),
      shared_(shared),
      owner_(owner),
      leads_(leads),
      look_every_(std::clamp(rails().options().stall_after / 4, absl::Milliseconds(1),
                             absl::Milliseconds(250))),
      token_(NewToken()),
      ring_(rails()),
      lanes_(shared, *this, trouble_, leads, peer, token_),
      selection_(shared, lanes_, trouble_) {}

VerbsWire::~VerbsWire() { Close(); }

void VerbsWire::Close() {
  if (std::exchange(closed_, true)) return;
  if (shared_.news != nullptr) shared_.news->Remove(*this);
  SetDeadline(absl::InfiniteFuture());
  lanes_.End();
  ring_.Close();
  sent_.DropWaiting();
}

// ---- The first words, and what both sides say

absl::Status VerbsWire::Begin(absl::Span<const uint16_t> ports) {
  WEFT_RETURN_IF_ERROR(lanes_.setup().SetPorts(ports));
  WEFT_RETURN_IF_ERROR(ring_.Open(leads_));
  Control hello;
  hello.kind = ControlKind::kHello;
  hello.lanes = static_cast<uint8_t>(rails().options().queue_pairs);
  hello.rails = static_cast<uint8_t>(rails().size());
  hello.eager_max = static_cast<uint32_t>(rails().options().eager_max);
  ring_.Describe(&hello);
  hello.link = token_;
  std::string text = absl::StrCat("host ", shared_.host, ", ");
  for (int rail = 0; rail < rails().size(); ++rail) {
    absl::StrAppend(&text, rail > 0 ? "+" : "", rails()[rail].device->name());
  }
  Say(hello, text);
  return absl::OkStatus();
}

void VerbsWire::Say(const Control& control, absl::string_view text) {
  owner_.SendControl(EncodeControl(control, text));
}

absl::Status VerbsWire::OnControl(absl::string_view bytes) {
  if (ended()) return absl::OkStatus();
  std::string text;
  WEFT_ASSIGN_OR_RETURN(const Control control, DecodeControl(bytes, &text));
  WantTurn();
  if (control.kind == ControlKind::kHello) return OnHello(control, text);
  if (!ready_ || control.lane >= lanes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("lane ", control.lane, " of ", lanes_.size()));
  }
  switch (control.kind) {
    case ControlKind::kAsk:
      asked_ = control.epoch;
      asked_mark_ = rails().Mark();
      return absl::OkStatus();
    case ControlKind::kTell:
      return OnTell(control);
    case ControlKind::kDiffers:
      if (leads_) owner_.OnEagerDiffers(control.rail != 0, text);
      return absl::OkStatus();
    case ControlKind::kPaths:
      return OnPaths(text);
    case ControlKind::kGiveUp:
      Fail(absl::UnavailableError(absl::StrCat("the other side says: ", text)));
      return absl::OkStatus();
    default:
      return lanes_.OnControl(control, text);
  }
}

absl::Status VerbsWire::OnHello(const Control& control, const std::string& text) {
  if (ready_ || control.lanes == 0 || control.rails == 0) {
    return absl::InvalidArgumentError("a hello that is a second one, or names no queue pair");
  }
  eager_max_ = std::min<size_t>(rails().options().eager_max, control.eager_max);
  peer_token_ = control.link;
  ring_.SetRemote(control, leads_);
  ready_ = true;
  lanes_.Start(control, text);
  if (shared_.news != nullptr) shared_.news->Add(*this);
  return absl::OkStatus();
}

void VerbsWire::TellOfPaths() {
  if (!shared_.ways || !ready_ || silent_) return;
  const uint64_t version = shared_.ways->reports_version();
  if (leads_) lanes_.FollowPaths(version != paths_told_);
  if (version == paths_told_) return;
  paths_told_ = version;
  Control control;
  control.kind = ControlKind::kPaths;
  std::string part;  // of whole lines
  for (absl::string_view line : absl::StrSplit(shared_.ways->Reports(), '\n', absl::SkipEmpty())) {
    if (part.size() + line.size() + 1 > kControlTextMax) Say(control, std::exchange(part, ""));
    absl::StrAppend(&part, line, "\n");
  }
  Say(control, part);
}

absl::Status VerbsWire::OnPaths(absl::string_view reports) {
  if (!shared_.ways) return absl::OkStatus();  // there may be a plan on the other side alone
  WEFT_RETURN_IF_ERROR(shared_.ways->Hear(reports));
  if (shared_.news != nullptr) shared_.news->Tell();
  return absl::OkStatus();
}

// ---- Sending

void VerbsWire::Send(EntryHeader header, const std::byte* payload, uint32_t token) {
  Enqueue(header, payload, payload != nullptr ? header.length : 0, {}, token);
}

void VerbsWire::SendSmall(EntryHeader header, absl::string_view small, uint32_t token) {
  Enqueue(header, nullptr, 0, small, token);
}

void VerbsWire::SendCopy(const EntryHeader& header, absl::string_view small, uint32_t token) {
  if (closed_) return;
  auto* place = reinterpret_cast<std::byte*>(ring_.Image(sent_.next()) + 1);
  std::memcpy(place, small.data(), small.size());
  Enqueue(header, place, small.size(), {}, token);
}

void VerbsWire::PostAtOnce() {
  if (ended() || sent_.waiting() != 1 || !lost_.empty()) return;
  Flush(/*in_turn=*/false);
}

size_t VerbsWire::PayloadMost(EntryKind kind) const {
  if (kind == EntryKind::kEager) return eager_max_;
  return kind == EntryKind::kData ? std::max(eager_max_, kEntryPayloadMax) : kEntryPayloadMax;
}

void VerbsWire::Enqueue(const EntryHeader& header, const std::byte* payload, uint64_t length,
                        absl::string_view small, uint32_t token) {
  if (closed_) return;
  WEFT_CHECK(sent_.outstanding() < kRingSlots && small.size() <= PayloadMost(header.kind),
             "next=" << sent_.next() << " taken=" << sent_.taken() << " small=" << small.size());
  // Old trouble is no reason to give up on something new.
  if (sent_.outstanding() == 0 && lanes_.Live() > 0) trouble_.End();
  const uint64_t number =
      sent_.Add({.payload = payload, .length = length, .token = token, .since = shared_.now});
  EntryHeader* to = ring_.Image(number);
  std::memcpy(to, &header, HeaderBytes(header.kind));
  to->number = number;
  to->link = peer_token_;
  if (!small.empty()) {
    std::memcpy(reinterpret_cast<std::byte*>(to) + HeaderBytes(header.kind), small.data(),
                small.size());
  }
  WantTurn();
}

// Outside of a turn requests are not to be completed, so that what fails waits for the next.
void VerbsWire::Flush(bool in_turn) {
  while (!ended()) {
    const std::optional<uint64_t> number = sent_.FirstWaiting();
    if (!number.has_value()) return;
    const int lane =
        ChooseLane(std::as_const(lanes_).lanes(), rails(), sent_, sent_[*number].length);
    if (lane < 0) return;
    // Also what could not be posted may be on its way in part, until the record tells.
    sent_.DropFirstWaiting();
    absl::Status posted = Post(*number, lane);
    if (absl::IsUnavailable(posted)) {
      if (in_turn) {
        lanes_.Fail(lane, std::string(posted.message()));
      } else {
        return lost_.emplace_back(lane, std::string(posted.message())), WantTurn();
      }
    } else if (!posted.ok()) {
      return Fail(posted);
    }
  }
}

absl::Status VerbsWire::Post(uint64_t number, int index) {
  Lane& lane = lanes_[index];
  SentEntry& entry = sent_[number];
  EntryHeader* header = ring_.Image(number);
  header->taken = in_.base;
  header->epoch = lane.epoch;
  header->lane = static_cast<uint8_t>(index);
  const auto rail = static_cast<size_t>(lane.pair->rail());
  const size_t remote_rail = lane.remote.rail;
  std::array<NicWrite, 2> writes;
  uint32_t count = 0;
  const bool small = CarriesPayload(*header);
  const size_t header_bytes = HeaderBytes(header->kind);
  const uint64_t slot = ring_.RemoteSlot(number);
  uint64_t bytes = header_bytes + (small ? header->length : 0);
  const auto* image_bytes = reinterpret_cast<const std::byte*>(header);
  if (entry.length > 0) {
    auto found = rails().memory().FindRegistered(entry.payload, entry.length);
    // Whatever the device's error is, another lane would not help.
    if (!found.ok()) return absl::ResourceExhaustedError(found.status().message());
    const MemoryCache::Entry* memory = *found;
    if (memory == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message of ", entry.length,
                       " bytes lies in memory that is not registered (any more)"));
    }
    NicWrite& data = writes[count++];
    data.local = entry.payload;
    data.length = static_cast<uint32_t>(entry.length);
    data.local_key = memory->keys[rail].local_key;
    data.remote = header->address;
    data.remote_key = header->keys[remote_rail];
    data.id = lane.pair->SendId(lane.next_send);
  } else if (bytes > std::max<size_t>(lane.mtu, kEntryBytes)) {
    // An entry is one packet, so that one which is found without a completion is whole.
    NicWrite& data = writes[count++];
    data.local = image_bytes + header_bytes;
    data.length = static_cast<uint32_t>(header->length);
    data.local_key = ring_.ImageKey(rail);
    data.remote = slot + header_bytes;
    data.remote_key = ring_.RemoteKey(remote_rail);
    data.id = lane.pair->SendId(lane.next_send);
    bytes = header_bytes;
  }
  NicWrite& write = writes[count++];
  write.id = lane.pair->SendId(lane.next_send);
  write.local = image_bytes;
  write.length = static_cast<uint32_t>(bytes);
  write.local_key = ring_.ImageKey(rail);
  write.remote = slot;
  write.remote_key = ring_.RemoteKey(remote_rail);
  write.has_immediate = true;
  write.immediate = static_cast<uint32_t>(number);
  write.signaled = true;
  write.in_line = write.length <= lane.pair->inline_bytes();
  entry.lane = index;
  entry.delivered = false;
  entry.since = shared_.now;
  told_ = in_.base;
  taken_due_ = absl::InfiniteFuture();
  return lanes_.Post(index, absl::MakeConstSpan(writes.data(), count), number);
}

bool VerbsWire::MaySendTaken() const {
  return ready_ && !silent_ && (in_.base != told_ || taken_wanted_) && sent_.waiting() == 0 &&
         sent_.outstanding() < kRingSlots && lanes_.Live() > 0;
}

// What was taken travels with whatever goes the other way. If nothing does for long, alone.
void VerbsWire::SendTakenWhenDue() {
  if (in_.base - told_ < kTakenAt && shared_.now < taken_due_ && !taken_wanted_) return;
  if (!MaySendTaken()) return;
  taken_wanted_ = false;
  EntryHeader header;
  header.kind = EntryKind::kTaken;
  owner_.FillTaken(&header);
  Enqueue(header, nullptr, 0, {}, kNoToken);
  Flush(/*in_turn=*/true);
}

absl::Status VerbsWire::OnTaken(uint64_t below) {
  if (below > sent_.next()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it says that it took entry ", below, " of ", sent_.next()));
  }
  if (below <= sent_.taken()) return absl::OkStatus();
  trouble_.End();
  while (sent_.taken() < below && !closed_) NoteDelivered(sent_.TakeFirst());
  WantTurn();
  return absl::OkStatus();
}

void VerbsWire::NoteDelivered(SentEntry& entry) {
  const uint32_t token = entry.TakeToken();
  if (token != kNoToken) owner_.OnDelivered(token);
}

bool VerbsWire::OnTurn(absl::Time now) {
  if (ended()) return false;
  shared_.now = std::max(shared_.now, now);
  for (const auto& [lane, why] : std::exchange(lost_, {})) lanes_.Fail(lane, why);
  owner_.OnRoom();
  if (ended()) return true;
  const size_t before = sent_.waiting();
  if (asked_ != 0) Tell();
  // Posting takes its time, and a clear-to-send is for what comes later: what other links of this
  // process have to send now goes first.
  if (!leads_ && before > 0 && rounds_behind_ < kRoundsBehind) {
    ++rounds_behind_;
    WantTurn();
    return false;
  }
  rounds_behind_ = 0;
  TellOfPaths();
  if (leads_ && ready_) selection_.Maintain();
  Flush(/*in_turn=*/true);
  if (ended()) return true;
  if (leads_ && ready_) selection_.Search(sent_.waiting() > 0);
  SendTakenWhenDue();
  Watch();
  return sent_.waiting() != before;
}

// ---- Receiving

void VerbsWire::OnDeviceDelivered(int lane, uint64_t number) {
  SentEntry& entry = sent_[number];
  if (number < sent_.taken() || entry.lane != lane) return;
  entry.delivered = true;
  entry.since = shared_.now;
  NoteDelivered(entry);
}

void VerbsWire::OnWritten(uint32_t immediate) {
  const auto ahead = static_cast<int32_t>(immediate - static_cast<uint32_t>(in_.base));
  if (ahead < 0) return;  // again
  const uint64_t number = in_.base + static_cast<uint32_t>(ahead);
  if (number >= in_.base + kRingSlots) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("entry ", number, " came when ", in_.base, " was the next")));
  }
  if (!in_.Has(number)) Arrived(number);
}

void VerbsWire::Arrived(uint64_t number) {
  uint64_t next = in_.base;
  in_.Add(number);
  absl::Status taken;
  if (!ComesInOrder(number)) taken = Take(number);
  for (; next < in_.base && taken.ok() && !closed_; ++next) {
    if (ComesInOrder(next)) taken = Take(next);
  }
  if (!taken.ok()) Fail(taken);
}

// Clear-to-sends of one tag are matched in the order of posting, and so are eager messages; a piece
// says itself what it belongs to.
bool VerbsWire::ComesInOrder(uint64_t number) const {
  if (leads_) return true;
  EntryKind kind{};
  std::memcpy(&kind, ring_.Arrived(number) + offsetof(EntryHeader, kind), sizeof kind);
  return kind == EntryKind::kEager || kind == EntryKind::kMismatch;
}

absl::Status VerbsWire::Take(uint64_t number) {
  const std::byte* slot = ring_.Arrived(number);
  EntryHeader header;
  std::memcpy(static_cast<void*>(&header), slot,
              kEagerHeaderBytes);  // the rest only where there is one
  const size_t header_bytes = HeaderBytes(header.kind);
  if (header_bytes > kEagerHeaderBytes) std::memcpy(&header, slot, sizeof header);
  if (header.magic != kEntryMagic || header.number != number || header.link != token_) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", number % kRingSlots, " holds no entry ", number,
                     " of this link: magic ", absl::Hex(header.magic), ", number ", header.number));
  }
  WEFT_RETURN_IF_ERROR(OnTaken(header.taken));
  if (header.kind == EntryKind::kTaken) {
    return leads_ ? owner_.OnEntry(header, nullptr) : absl::OkStatus();
  }
  taken_due_ = std::min(taken_due_, shared_.now + kTakenAfter);
  if (CarriesPayload(header) && header.length > PayloadMost(header.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an entry with ", header.length, " bytes of payload"));
  }
  return owner_.OnEntry(header, slot + header_bytes);
}

}  // namespace weft::net
