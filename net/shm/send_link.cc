#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/shm/links.h"
#include "net/shm/shm_transport.h"

namespace weft::net::shm {
namespace {

// A message is cut so that the two copies overlap; below kPieceMin a cell a piece costs more than
// the overlap saves. A multiple of 64, as reducing wants it.
constexpr uint64_t kPieceMin = 16 << 10;
constexpr uint64_t kPiecesWanted = 4;

uint64_t PieceBytes(uint64_t total, uint64_t piece_max) {
  uint64_t piece = (total / kPiecesWanted + 4095) & ~uint64_t{4095};
  return std::min(std::max(piece, kPieceMin), piece_max);
}

}  // namespace

ShmSendLink::ShmSendLink(ShmTransport* transport, Rank peer, std::unique_ptr<Connecting> connecting)
    : Endpoint(transport, Role::kSender, peer),
      offer_min_(transport->single_copy_min()),
      eager_max_(transport->eager_max()),
      requests_max_(transport->requests_max()) {
  StartConnecting(std::move(connecting));
}

ShmSendLink::~ShmSendLink() {
  CancelFailed();
  MarkClosed();
  if (alive()) FailRequests(absl::CancelledError(absl::StrCat(Describe(), ": the link is closed")));
}

void ShmSendLink::OnUp(const Wire& wire) {
  const Geometry& geometry = wire.segment.geometry();
  arena_ = ArenaWriter(geometry.arena_bytes, geometry.forward_cells);
  eager_max_ = std::min(eager_max_, geometry.piece_bytes);
}

Posted ShmSendLink::PostSend(MessageKey key, const SendSource& source, Request* request) {
  if (PostFailed(request)) return Posted::kAccepted;
  if (posted_ >= requests_max_) return Posted::kNotYet;
  counters_.Post(source.data.size());
  request->Begin();
  Send send{source.data.data(), source.data.size(), key, source.warm, source.urgency, request};
  transport()->NoteLocalWork();
  if (!source.waits && SendEagerly(send)) return Posted::kAccepted;
  ++posted_;
  if (auto clear = matcher_.OfferB(key.tag, send)) Pair(send, *clear);
  return Posted::kAccepted;
}

// Publishes a cell with cell.length bytes, inside of it or in the arena. False: that is full.
template <typename PayloadCell>
bool ShmSendLink::WriteCell(PayloadCell& cell, const std::byte* bytes, bool is_inline) {
  constexpr size_t kHead = offsetof(PayloadCell, bytes);
  std::byte* const body = writer_.body();
  if (is_inline) {
    cell.is_inline = 1;
    std::memcpy(body, &cell, kHead);
    if (cell.length > 0) std::memcpy(body + kHead, bytes, cell.length);
  } else {
    cell.position = AllocateArena(cell.length);
    if (cell.position == ArenaWriter::kNone) return false;
    std::memcpy(wire_.segment.arena() + cell.position, bytes, cell.length);
    std::memcpy(body, &cell, kHead + sizeof cell.position);
  }
  OnCellPublished();
  PublishCell(true);
  return true;
}

// For the cell that is published next; kNone: the arena is full.
uint64_t ShmSendLink::AllocateArena(uint64_t length) {
  SyncArena();
  const uint64_t position = arena_.Allocate(length);
  if (position != ArenaWriter::kNone) return position;
  writer_.Refresh();
  SyncArena();
  return arena_.Allocate(length);
}

// Nothing of its tag may be on this side any more that the receiver has not seen: it takes the
// message for the first receive of the tag that it knows none for.
bool ShmSendLink::SendEagerly(const Send& send) {
  if (!up() || send.bytes > eager_max_ || !eager_.HasCredit() || matcher_.Waits(send.key.tag) ||
      std::any_of(ready_.begin(), ready_.end(),
                  [&](const Ready& pair) { return pair.send.key.tag == send.key.tag; }) ||
      writer_.Free(1) == 0) {
    return false;
  }
  EagerCell cell;
  cell.length = static_cast<uint32_t>(send.bytes);
  cell.number = eager_.next();
  cell.tag = send.key.tag;
  cell.check = send.key.check;
  if (!WriteCell(cell, send.data, send.bytes <= EagerCell::kInlineMax)) return false;
  RingIfAsleep();
  eager_.Sent(send.key.tag);
  counters_.Match(send.bytes);  // it waits for no receive
  counters_.Transmit(send.bytes);
  counters_.Finish(send.bytes);
  send.request->Finish(absl::OkStatus(), send.bytes);
  return true;
}

absl::Status ShmSendLink::OnCell(const std::byte* body) {
  switch (static_cast<CellKind>(body[0])) {
    case CellKind::kClearToSend: {
      ClearToSendCell cell;
      CopyOnce(&cell, body, sizeof cell);
      return TakeClearToSend(cell);
    }
    case CellKind::kAnswer:
      return TakeAnswer(body);
    case CellKind::kMatched: {
      MatchedCell cell;
      CopyOnce(&cell, body, sizeof cell);
      return TakeMatched(cell.matched);
    }
    case CellKind::kDiffers: {
      DiffersCell cell;
      CopyOnce(&cell, body, sizeof cell);
      TakeDifference(cell);
      return absl::OkStatus();
    }
    default:
      return Violation(absl::StrCat("a backward cell of kind ", static_cast<int>(body[0])));
  }
}

absl::Status ShmSendLink::TakeMatched(const EagerRecord& matched) {
  const absl::Status taken = eager_.NoteMatched(matched);
  return taken.ok() ? taken : Violation(taken.message());
}

void ShmSendLink::TakeDifference(const DiffersCell& cell) {
  const bool differs = static_cast<RefuseReason>(cell.reason) == RefuseReason::kCheckDiffers;
  const absl::Status status = differs ? CheckDiffers(cell.sender_value, cell.receiver_value)
                                      : IsTooLong(cell.sender_value, cell.receiver_value);
  WEFT_LOG_ERROR(status.message(), "; the send had completed before");
  transport()->events().OnMismatch(*this, status);
}

absl::Status ShmSendLink::TakeClearToSend(const ClearToSendCell& cell) {
  WEFT_RETURN_IF_ERROR(TakeMatched(cell.matched));
  if (eager_.TakesClearToSend(cell.tag)) return absl::OkStatus();
  if (matcher_.waiting_a() >= wire_.receives_max) {
    return Violation(absl::StrCat("more than ", wire_.receives_max, " clear-to-sends"));
  }
  ClearToSend clear{cell.receive_id, cell.check, cell.capacity, cell.may_read != 0,
                    cell.may_map != 0};
  if (auto send = matcher_.OfferA(cell.tag, clear)) Pair(*send, clear);
  return absl::OkStatus();
}

void ShmSendLink::Pair(const Send& send, const ClearToSend& clear) {
  counters_.Match(send.bytes);
  Ready pair{send, clear};
  if (clear.may_map && !shares_.refused() && offer_min_ > 0 && send.bytes >= offer_min_) {
    pair.shared = SharedMemory::Find(send.data, send.bytes);
  }
  AddReady(std::move(pair));
}

// Pieces name their receive, so that one pair may come between those of another.
void ShmSendLink::AddReady(Ready pair) {
  const auto place = std::upper_bound(
      ready_.begin(), ready_.end(), pair.send.urgency,
      [](uint8_t urgency, const Ready& other) { return urgency > other.send.urgency; });
  ready_.insert(place, std::move(pair));
}

std::optional<uint32_t> ShmSendLink::Show(const std::byte* data, size_t bytes) {
  if (!alive() || !up()) return std::nullopt;
  const auto memory = SharedMemory::Find(data, bytes);
  if (memory == nullptr || !shares_.CanShow(*memory)) return kNotShown;
  const auto place = shares_.Show(memory, data, wire_.socket.get());
  return place.has_value() ? std::optional<uint32_t>(place->share) : std::nullopt;
}

void ShmSendLink::WakePeer() {
  if (alive() && up()) Announce();
}

bool ShmSendLink::Move() {
  bool moved = ReadCells(kCellsPerTurn);
  if (!alive()) return true;
  moved |= PushUnshares();
  uint64_t bytes = 0;
  int cells = 0;
  while (!ready_.empty() && cells < kCellsPerTurn && bytes < kBytesPerTurn) {
    uint64_t before = ready_.front().offset;
    size_t left = ready_.size();
    if (!PushPiece()) break;
    moved = true;
    ++cells;
    if (ready_.size() == left) bytes += ready_.front().offset - before;
  }
  return moved;
}

// Tells the receiver which memory it may unmap.
bool ShmSendLink::PushUnshares() {
  bool moved = false;
  while (writer_.Free(1) > 0) {
    UnshareCell cell;
    cell.share = shares_.TakeGone();
    if (cell.share == 0) break;
    std::memcpy(writer_.body(), &cell, sizeof cell);
    OnCellPublished();
    PublishCell(false);
    moved = true;
  }
  return moved;
}

bool ShmSendLink::CanMove() {
  if (ready_.empty()) return false;
  const Ready& next = ready_.front();
  if (writer_.Free(1) == 0) return false;
  SyncArena();
  uint64_t left = next.send.bytes - next.offset;
  if (next.send.bytes <= DataCell::kInlineMax || MayOffer(next)) return true;
  return arena_.CanAllocate(
      std::min(left, PieceBytes(next.send.bytes, wire_.segment.geometry().piece_bytes)));
}

// One cell of the pair in front; false when the ring or the arena is full.
bool ShmSendLink::PushPiece() {
  Ready& pair = ready_.front();
  if (writer_.Free(1) == 0) return false;
  const Send& send = pair.send;
  if (pair.offset == 0) {
    if (send.key.check != pair.clear.check || send.bytes > pair.clear.capacity) return Refuse(pair);
    if (MayOffer(pair) && MakeOffer(pair)) return true;
    pair.piece = PieceBytes(send.bytes, wire_.segment.geometry().piece_bytes);
  }
  DataCell cell;
  cell.receive_id = pair.clear.receive_id;
  cell.offset = pair.offset;
  cell.total = send.bytes;
  uint64_t length = std::min(send.bytes - pair.offset, pair.piece);
  cell.length = static_cast<uint32_t>(length);
  if (!WriteCell(cell, send.data + pair.offset, send.bytes <= DataCell::kInlineMax)) return false;
  pair.offset += length;
  counters_.Transmit(length);
  // A large piece takes long to copy: whoever sleeps may start on the last one meanwhile.
  if (length >= kPieceMin) RingIfAsleep();
  if (pair.offset == send.bytes) Done(absl::OkStatus(), send.bytes);
  return true;
}

// Offers the pair in front. False: the receiver cannot read it where it lies; it takes the arena.
bool ShmSendLink::MakeOffer(Ready& pair) {
  SharedPlace place;
  if (pair.shared != nullptr) {
    const auto shown = shares_.Show(pair.shared, pair.send.data, wire_.socket.get());
    if (!shown.has_value()) {
      pair.shared = nullptr;
      return MayOffer(pair) && MakeOffer(pair);
    }
    place = *shown;
  }
  if (closed_offers_.empty()) {
    closed_offers_.push_back(static_cast<uint32_t>(offers_.size()));
    offers_.emplace_back();
  }
  const uint32_t index = closed_offers_.back();
  closed_offers_.pop_back();
  Offer& offer = offers_[index];
  offer.open = true;
  offer.pair = pair;
  offer.is_shared = place.share != 0;
  offer.pair.shared = nullptr;  // the receiver's mapping keeps it, or the descriptor under way
  OfferCell cell;
  cell.urgency = pair.send.urgency;
  cell.receive_id = pair.clear.receive_id;
  cell.offer_id = uint64_t{++offer.generation} << 32 | index;
  cell.share = place.share;
  cell.address = offer.is_shared ? place.offset : reinterpret_cast<uintptr_t>(pair.send.data);
  cell.total = pair.send.bytes;
  std::memcpy(writer_.body(), &cell, sizeof cell);
  OnCellPublished();
  PublishCell(true);
  RingIfAsleep();
  ready_.pop_front();
  return true;
}

absl::Status ShmSendLink::TakeAnswer(const std::byte* body) {
  AnswerCell cell;
  CopyOnce(&cell, body, sizeof cell);
  const uint64_t index = cell.offer_id & 0xffffffff;
  if (index >= offers_.size() || !offers_[index].open ||
      offers_[index].generation != cell.offer_id >> 32) {
    return Violation(absl::StrCat("an answer to offer ", cell.offer_id, ", which is not open"));
  }
  Offer& offer = offers_[index];
  offer.open = false;
  closed_offers_.push_back(static_cast<uint32_t>(index));
  if (cell.was_read == 0) {
    if (offer.is_shared) {
      shares_.Refuse();
    } else {
      offer.pair.clear.may_read = false;
    }
    AddReady(offer.pair);
    return absl::OkStatus();
  }
  --posted_;
  counters_.Transmit(offer.pair.send.bytes);
  counters_.Finish(offer.pair.send.bytes);
  offer.pair.send.request->Finish(absl::OkStatus(), offer.pair.send.bytes);
  return absl::OkStatus();
}

bool ShmSendLink::Refuse(const Ready& pair) {
  const uint64_t own_check = pair.send.key.check;
  bool check = own_check != pair.clear.check;
  RefuseCell cell;
  cell.reason = static_cast<uint8_t>(check ? RefuseReason::kCheckDiffers : RefuseReason::kTooLong);
  cell.receive_id = pair.clear.receive_id;
  cell.sender_value = check ? own_check : pair.send.bytes;
  std::memcpy(writer_.body(), &cell, sizeof cell);
  OnCellPublished();
  PublishCell(true);
  counters_.bytes_matched -= pair.send.bytes;  // no receiver waits for them
  Done(check ? CheckDiffers(own_check, pair.clear.check)
             : IsTooLong(pair.send.bytes, pair.clear.capacity),
       0);
  return true;
}

void ShmSendLink::Done(const absl::Status& status, uint64_t bytes) {
  Request* request = ready_.front().send.request;
  ready_.pop_front();
  --posted_;
  counters_.Finish(status.ok() ? bytes : 0);
  request->Finish(status, bytes);
}

void ShmSendLink::FailRequests(const absl::Status& status) {
  for (Ready& pair : std::exchange(ready_, {})) pair.send.request->Finish(status, pair.offset);
  for (Offer& offer : offers_) {
    if (std::exchange(offer.open, false)) offer.pair.send.request->Finish(status, 0);
  }
  matcher_.DrainB([&](const Send& send) { send.request->Finish(status, 0); });
  posted_ = 0;
  counters_.FinishAll();
}

std::string ShmSendLink::Doing() const {
  return posted_ == 0 ? "" : absl::StrCat(posted_, " sends were under way");
}

}  // namespace weft::net::shm
