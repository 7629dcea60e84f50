// Entries: numbering, posting, taking. Lanes are in wire_lanes.cc.
#include "net/verbs/wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/verbs/explain.h"

namespace weft::net {
namespace {

constexpr int kReplenishAt = 16;  // receives are posted so many at once
// The other side is told what was taken when a quarter of its ring waits for that, or so late that
// it is nearly always told by what goes there anyway. Only room in the ring depends on it.
constexpr uint64_t kTellAt = kRingSlots / 4;
constexpr absl::Duration kTellAfter = absl::Milliseconds(10);
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
    : Handler(poller),
      shared_(shared),
      owner_(owner),
      leads_(leads),
      peer_(peer),
      look_every_(std::clamp(rails().options().stall_after / 4, absl::Milliseconds(1),
                             absl::Milliseconds(250))),
      token_(NewToken()) {}

VerbsWire::~VerbsWire() { Close(); }

void VerbsWire::Close() {
  if (std::exchange(closed_, true)) return;
  SetDeadline(absl::InfiniteFuture());
  for (Lane& lane : lanes_) lane.Reset();
  if (ring_keys_ != nullptr) rails().memory().Release(std::exchange(ring_keys_, nullptr));
  ring_.reset();
  queue_.clear();
}

// ---- Sending

EntryHeader* VerbsWire::image(uint64_t number) {
  std::byte* out = ring_[0].bytes.data() + kRingSlots * in_slot_;
  return reinterpret_cast<EntryHeader*>(out + number % kRingSlots * out_slot_);
}

const std::byte* VerbsWire::arrived(uint64_t number) const {
  return ring_[0].bytes.data() + number % kRingSlots * in_slot_;
}

void VerbsWire::Send(EntryHeader header, const std::byte* payload, uint32_t token) {
  Enqueue(header, payload, payload != nullptr ? header.length : 0, {}, token);
}

void VerbsWire::SendSmall(EntryHeader header, absl::string_view small, uint32_t token) {
  Enqueue(header, nullptr, 0, small, token);
}

void VerbsWire::SendCopy(const EntryHeader& header, absl::string_view small, uint32_t token) {
  if (closed_) return;
  auto* place = reinterpret_cast<std::byte*>(image(next_) + 1);
  std::memcpy(place, small.data(), small.size());
  Enqueue(header, place, small.size(), {}, token);
}

void VerbsWire::PostAtOnce() {
  if (closed_ || !failure_.ok() || queue_.size() != 1 || !lost_.empty()) return;
  Flush(/*in_turn=*/false);
}

void VerbsWire::Enqueue(const EntryHeader& header, const std::byte* payload, uint64_t length,
                        absl::string_view small, uint32_t token) {
  if (closed_) return;
  const size_t small_most =
      header.kind == EntryKind::kEager ? out_slot_ - kEagerHeaderBytes : kEntryPayloadMax;
  WEFT_CHECK(next_ - taken_ < kRingSlots && small.size() <= small_most,
             "next=" << next_ << " taken=" << taken_ << " small=" << small.size());
  const uint64_t number = next_++;
  // Old trouble is no reason to give up on something new.
  if (number == taken_ && LiveLanes() > 0) trouble_since_ = absl::InfiniteFuture();
  EntryHeader* to = image(number);
  std::memcpy(to, &header, HeaderBytes(header.kind));
  to->number = number;
  to->link = hello_.link;
  if (!small.empty()) {
    std::memcpy(reinterpret_cast<std::byte*>(to) + HeaderBytes(header.kind), small.data(),
                small.size());
  }
  out(number) = Out{payload, length, token, -1, false, false, shared_.now};
  queue_.push_back(number);
  WantTurn();
}

// Outside of a turn requests are not to be completed, so that what fails waits for the next.
void VerbsWire::Flush(bool in_turn) {
  while (!queue_.empty() && !closed_ && failure_.ok()) {
    const uint64_t number = queue_.front();
    if (number < taken_ || out(number).arrived) {  // came after all, before it was sent again
      queue_.pop_front();
      continue;
    }
    const int lane = ChooseLane(out(number).length);
    if (lane < 0) return;
    // Also what could not be posted may be on its way in part, until the record tells.
    queue_.pop_front();
    absl::Status posted = Post(number, lane);
    if (absl::IsUnavailable(posted)) {
      if (in_turn) {
        LaneFailed(lane, std::string(posted.message()));
      } else {
        return lost_.emplace_back(lane, std::string(posted.message())), WantTurn();
      }
    } else if (!posted.ok()) {
      return Fail(posted);
    }
  }
}

absl::Status VerbsWire::Post(uint64_t number, int index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  Out& entry = out(number);
  EntryHeader* header = image(number);
  header->taken = in_.base;
  header->epoch = lane.epoch;
  header->lane = static_cast<uint8_t>(index);
  const auto rail = static_cast<size_t>(lane.pair->rail());
  const size_t remote_rail = lane.remote.rail;
  std::array<NicWrite, 2> writes;
  uint32_t count = 0;
  const bool small = CarriesPayload(*header);
  const size_t header_bytes = HeaderBytes(header->kind);
  const uint64_t slot = hello_.ring + number % kRingSlots * remote_slot_;
  uint64_t bytes = header_bytes + (small ? header->length : 0);
  const auto* image_bytes = reinterpret_cast<const std::byte*>(header);
  if (entry.length > 0) {
    const MemoryCache::Entry* memory = rails().memory().Find(entry.payload, entry.length);
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
    data.local_key = ring_keys_->keys[rail].local_key;
    data.remote = slot + header_bytes;
    data.remote_key = hello_.ring_keys[remote_rail];
    data.id = lane.pair->SendId(lane.next_send);
    bytes = header_bytes;
  }
  NicWrite& write = writes[count++];
  write.id = lane.pair->SendId(lane.next_send);
  write.local = image_bytes;
  write.length = static_cast<uint32_t>(bytes);
  write.local_key = ring_keys_->keys[rail].local_key;
  write.remote = slot;
  write.remote_key = hello_.ring_keys[remote_rail];
  write.has_immediate = true;
  write.immediate = static_cast<uint32_t>(number);
  write.signaled = true;
  write.in_line = write.length <= lane.pair->inline_bytes();
  // Counted first: a device may complete it while it is posted.
  bytes = write.length + (count > 1 ? writes[0].length : 0);
  lane.NotePosted(count, number, bytes, shared_.now);
  entry.lane = index;
  entry.delivered = false;
  entry.since = shared_.now;
  told_ = in_.base;
  word_due_ = absl::InfiniteFuture();
  return lane.pair->pair().PostWrites(absl::MakeConstSpan(writes.data(), count));
}

bool VerbsWire::MaySayWord() const {
  return ready_ && !silent_ && (in_.base != told_ || word_wanted_) && queue_.empty() &&
         next_ - taken_ < kRingSlots && LiveLanes() > 0;
}

// What was taken travels with whatever goes the other way. If nothing does for long, alone.
void VerbsWire::SayWhatWasTaken() {
  if (in_.base - told_ < kTellAt && shared_.now < word_due_ && !word_wanted_) return;
  if (!MaySayWord()) return;
  word_wanted_ = false;
  EntryHeader header;
  header.kind = EntryKind::kTaken;
  owner_.FillTaken(&header);
  Enqueue(header, nullptr, 0, {}, kNoToken);
  Flush(/*in_turn=*/true);
}

absl::Status VerbsWire::NoteTaken(uint64_t below) {
  if (below > next_) {
    return absl::InvalidArgumentError(
        absl::StrCat("it says that it took entry ", below, " of ", next_));
  }
  if (below <= taken_) return absl::OkStatus();
  trouble_since_ = absl::InfiniteFuture();
  while (taken_ < below && !closed_) NoteDelivered(out(taken_++));
  WantTurn();
  return absl::OkStatus();
}

void VerbsWire::NoteDelivered(Out& entry) {
  const uint32_t token = std::exchange(entry.token, kNoToken);
  if (token != kNoToken) owner_.OnDelivered(token);
}

bool VerbsWire::OnTurn(absl::Time now) {
  if (closed_ || !failure_.ok()) return false;
  shared_.now = std::max(shared_.now, now);
  for (const auto& [lane, why] : std::exchange(lost_, {})) LaneFailed(lane, why);
  owner_.OnRoom();
  if (closed_ || !failure_.ok()) return true;
  const size_t before = queue_.size();
  if (asked_ != 0) Tell();
  // Posting takes its time, and a clear-to-send is for what comes later: what other links of this
  // process have to send now goes first.
  if (!leads_ && before > 0 && rounds_behind_ < kRoundsBehind) {
    ++rounds_behind_;
    WantTurn();
    return false;
  }
  rounds_behind_ = 0;
  MaintainLanes();
  Flush(/*in_turn=*/true);
  if (closed_ || !failure_.ok()) return true;
  Search();
  SayWhatWasTaken();
  Watch();
  return queue_.size() != before;
}

// ---- Receiving

void VerbsWire::OnCompletion(int index, bool receive, uint32_t number, const NicCompletion& what) {
  if (closed_ || !failure_.ok()) return;
  Lane& lane = lanes_[static_cast<size_t>(index)];
  if (what.status != NicStatus::kOk) {
    if (what.status != NicStatus::kFlushed) last_status_ = what.status;
    return LaneFailed(
        index,
        absl::StrCat(StatusText(what.status), what.vendor_error != 0 ? ", vendor's number " : "",
                     what.vendor_error != 0 ? absl::StrCat(what.vendor_error) : ""));
  }
  if (receive) {
    lane.NoteReceived(number);
    if (!Replenish(lane)) return LaneFailed(index, "receives could not be posted");
    OnArrival(what.immediate);
  } else {
    bool any = false;
    lane.NoteCompleted(number, shared_.now, [&](uint64_t entry) {
      any = true;
      if (entry < taken_ || out(entry).lane != index) return;
      out(entry).delivered = true;
      out(entry).since = shared_.now;
      NoteDelivered(out(entry));
    });
    if (any) lane.failures = 0, trouble_since_ = absl::InfiniteFuture();
  }
  WantTurn();
}

void VerbsWire::OnQueuePairLost(int lane, const std::string& why) { LaneFailed(lane, why); }

bool VerbsWire::Replenish(Lane& lane) {
  const uint32_t there = lane.receives_posted - lane.receives_used;
  const int missing = static_cast<int>(kReceiveDepth) - static_cast<int>(there);
  if (missing < kReplenishAt) return true;
  absl::Status posted = lane.pair->PostReceives(lane.receives_posted, missing);
  lane.receives_posted += static_cast<uint32_t>(missing);
  if (!posted.ok()) WEFT_LOG_DEBUG("verbs: ", posted.message());
  return posted.ok();
}

void VerbsWire::OnArrival(uint32_t immediate) {
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
  std::memcpy(&kind, arrived(number) + offsetof(EntryHeader, kind), sizeof kind);
  return kind == EntryKind::kEager || kind == EntryKind::kMismatch;
}

absl::Status VerbsWire::Take(uint64_t number) {
  const std::byte* slot = arrived(number);
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
  WEFT_RETURN_IF_ERROR(NoteTaken(header.taken));
  if (header.kind == EntryKind::kTaken) {
    return leads_ ? owner_.OnEntry(header, nullptr) : absl::OkStatus();
  }
  word_due_ = std::min(word_due_, shared_.now + kTellAfter);
  const size_t small_most = header.kind == EntryKind::kEager ? eager_max_ : kEntryPayloadMax;
  if (CarriesPayload(header) && header.length > small_most) {
    return absl::InvalidArgumentError(
        absl::StrCat("an entry with ", header.length, " bytes of payload"));
  }
  return owner_.OnEntry(header, slot + header_bytes);
}

// Takes the entries that a queue pair which has ended has written without a completion, as
// completions are lost with it. The device may have acknowledged them. An entry is written after
// its payload, and the queue pair writes no more, so every entry found is complete.
void VerbsWire::TakeUnreported(int lane, int rail) {
  if (ring_ == nullptr) return;
  const uint32_t epoch = lanes_[static_cast<size_t>(lane)].epoch;
  const uint64_t end = in_.base + kRingSlots;
  for (uint64_t number = in_.base; number < end && !closed_ && failure_.ok(); ++number) {
    if (in_.Has(number)) continue;
    EntryHeader header;
    std::memcpy(static_cast<void*>(&header), arrived(number), kEagerHeaderBytes);
    if (header.magic == kEntryMagic && header.number == number && header.link == token_ &&
        header.epoch == epoch && header.lane == lane) {
      ++rails()[rail].arrivals;
      Arrived(number);
    }
  }
}

}  // namespace weft::net
