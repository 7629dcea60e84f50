#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/shm/copy.h"
#include "net/shm/links.h"
#include "net/shm/shm_transport.h"

namespace weft::net::shm {
namespace {

// What one system call reads: enough that the call costs little beside the copy.
constexpr uint64_t kReadBytes = 256 << 10;

}  // namespace

ShmReceiveLink::ShmReceiveLink(ShmTransport* transport, Wire wire)
    : Endpoint(transport, Role::kReceiver, wire.peer),
      requests_max_(transport->requests_max()),
      may_map_(transport->single_copy_min() > 0) {
  Establish(std::move(wire));
  if (transport->single_copy_min() > 0) memory_ = PeerMemory(wire_.pid, wire_.process.get());
}

ShmReceiveLink::~ShmReceiveLink() {
  CancelFailed();
  if (alive()) FailRequests(absl::CancelledError(absl::StrCat(Describe(), ": the link is closed")));
}

Posted ShmReceiveLink::PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) {
  if (PostFailed(request)) return Posted::kAccepted;
  if (posted_ >= requests_max_) return Posted::kNotYet;
  ++posted_;
  request->Begin();
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(receives_.size()));
    receives_.emplace_back();
  }
  uint32_t index = free_.back();
  free_.pop_back();
  Receive& receive = receives_[index];
  receive.request = request;
  receive.key = key;
  receive.target = target;
  receive.received = receive.total = 0;
  receive.offered = receive.matched = false;
  counters_.Post(target.out.size());
  ++receive.generation;
  transport()->NoteLocalWork();
  if (auto kept = eager_.keeps() ? eager_.TakeKept(key.tag) : std::nullopt) {
    Deliver(receive, kept->number, kept->check, kept->bytes);
    PushMatched();
  } else {
    eager_.AddPosted(key.tag, IdOf(receive));
    unsent_.push_back(IdOf(receive));
    PushClearToSends();
  }
  RingIfAsleep();
  return Posted::kAccepted;
}

void ShmReceiveLink::DropUnwanted() {
  if (!alive()) return;
  eager_.DropKept([this](uint64_t tag) { return transport()->events().Wants(tag); });
  PushMatched();
  RingIfAsleep();
  transport()->NoteLocalWork();  // a link that waited for receives may end
}

bool ShmReceiveLink::MayRead(const Receive& receive) const {
  return memory_.usable() && receive.target.reduce == nullptr &&
         receive.target.out.size() >= transport()->single_copy_min() && transport()->ReadsPeers();
}

bool ShmReceiveLink::PushClearToSends() {
  bool moved = false;
  for (; !unsent_.empty() && writer_.Free(1) > 0; unsent_.pop_front(), moved = true) {
    const Receive& receive = receives_[static_cast<uint32_t>(unsent_.front())];
    ClearToSendCell cell;
    cell.may_read = MayRead(receive) ? 1 : 0;
    cell.may_map = may_map_ ? 1 : 0;
    cell.receive_id = unsent_.front();
    cell.tag = receive.key.tag;
    cell.check = receive.key.check;
    cell.capacity = receive.target.out.size();
    cell.matched = eager_.Tell();
    std::memcpy(writer_.body(), &cell, sizeof cell);
    PublishCell(false);
  }
  return moved;
}

// Before the sender has as many eager messages out as may be.
bool ShmReceiveLink::PushMatched() {
  if (!eager_.HasUnreported() || writer_.Free(1) == 0) return false;
  MatchedCell cell;
  cell.matched = eager_.Tell();
  std::memcpy(writer_.body(), &cell, sizeof cell);
  PublishCell(false);
  return true;
}

bool ShmReceiveLink::Move() {
  bool moved = ReadCells(kCellsPerTurn);
  if (!alive()) return true;
  if (!reading_.empty()) moved |= ReadOffers();
  if (!alive()) return true;
  if (!answers_.empty()) moved |= PushAnswers();
  if (!unsent_.empty()) moved |= PushClearToSends();
  moved |= PushMatched();
  return moved;
}

bool ShmReceiveLink::CanMove() {
  if (!reading_.empty()) return true;
  return (!unsent_.empty() || !answers_.empty()) && writer_.Free(1) > 0;
}

absl::Status ShmReceiveLink::OnCell(const std::byte* body) {
  switch (static_cast<CellKind>(body[0])) {
    case CellKind::kData:
      return TakeData(body);
    case CellKind::kEager:
      return TakeEager(body);
    case CellKind::kRefuse:
      return TakeRefusal(body);
    case CellKind::kOffer:
      return TakeOffer(body);
    case CellKind::kUnshare: {
      UnshareCell cell;
      CopyOnce(&cell, body, sizeof cell);
      shares_.Drop(cell.share);
      return absl::OkStatus();
    }
    default:
      return Violation(absl::StrCat("a forward cell of kind ", static_cast<int>(body[0])));
  }
}

ShmReceiveLink::Receive* ShmReceiveLink::Find(uint64_t receive_id) {
  uint64_t index = receive_id & 0xffffffff;
  if (index >= receives_.size()) return nullptr;
  Receive& receive = receives_[index];
  bool known = receive.request != nullptr && receive.generation == receive_id >> 32;
  return known ? &receive : nullptr;
}

void ShmReceiveLink::Match(Receive& receive) {
  if (std::exchange(receive.matched, true)) return;
  counters_.Match(receive.total);
  eager_.RemovePosted(receive.key.tag, IdOf(receive));
}

// The cell.length bytes of a cell, whose head has been copied: inside of `cell`, or in the arena.
template <typename PayloadCell>
absl::StatusOr<const std::byte*> ShmReceiveLink::BytesOf(PayloadCell& cell, const std::byte* body) {
  if (cell.is_inline != 0) {
    if (cell.length > PayloadCell::kInlineMax) {
      return Violation(absl::StrCat(cell.length, " bytes inside of a cell"));
    }
    CopyOnce(cell.bytes, body + offsetof(PayloadCell, bytes), cell.length);
    return cell.bytes;
  }
  const uint64_t arena = wire_.segment.geometry().arena_bytes;
  if (cell.position > arena || cell.length > arena - cell.position || cell.position % 64 != 0) {
    return Violation(
        absl::StrCat(cell.length, " bytes at ", cell.position, " of an arena of ", arena));
  }
  CountBytes(cell.length);
  return wire_.segment.arena() + cell.position;
}

absl::Status ShmReceiveLink::TakeEager(const std::byte* body) {
  alignas(16) EagerCell cell;  // for reducing loops, as its bytes are at a multiple of 16
  CopyOnce(&cell, body, offsetof(EagerCell, bytes) + sizeof cell.position);
  if (cell.length > kEagerBytesMax) {
    return Violation(absl::StrCat("an eager message of ", cell.length, " bytes"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::byte* bytes, BytesOf(cell, body));
  uint64_t number = 0;
  const absl::Status arrived = eager_.NoteArrived(&number);
  if (!arrived.ok()) return Violation(arrived.message());
  if (cell.number != number) {
    return Violation(absl::StrCat("eager message ", cell.number, " in place of ", number));
  }
  const absl::Span<const std::byte> message(bytes, cell.length);
  const std::optional<uint64_t> posted = eager_.TakePosted(cell.tag);
  if (!posted.has_value()) {
    if (transport()->events().Wants(cell.tag)) {
      eager_.Keep(number, cell.tag, cell.check, message);
    } else {
      eager_.NoteMatched(number);
    }
    return absl::OkStatus();
  }
  std::erase(unsent_, *posted);  // its clear-to-send is not needed any more
  Deliver(*Find(*posted), number, cell.check, message);
  return absl::OkStatus();
}

void ShmReceiveLink::Deliver(Receive& receive, uint64_t number, uint64_t check,
                             absl::Span<const std::byte> bytes) {
  eager_.NoteMatched(number);
  const uint64_t capacity = receive.target.out.size();
  const bool differs = check != receive.key.check;
  if (differs || bytes.size() > capacity) {
    DiffersCell cell;
    cell.reason =
        static_cast<uint8_t>(differs ? RefuseReason::kCheckDiffers : RefuseReason::kTooLong);
    cell.sender_value = differs ? check : bytes.size();
    cell.receiver_value = differs ? receive.key.check : capacity;
    PushAnswer(cell);
    Match(receive);
    return Finish(&receive, differs ? CheckDiffers(receive.key.check, check)
                                    : IsTooLong(bytes.size(), capacity));
  }
  receive.total = bytes.size();
  Match(receive);
  if (!bytes.empty()) Place(receive, 0, bytes.size(), bytes.data());
  receive.received = bytes.size();
  counters_.Transmit(bytes.size());
  Finish(&receive, absl::OkStatus());
}

absl::Status ShmReceiveLink::TakeData(const std::byte* body) {
  alignas(16) DataCell cell;
  CopyOnce(&cell, body, offsetof(DataCell, bytes) + sizeof cell.position);
  Receive* receive = Find(cell.receive_id);
  if (receive == nullptr) {
    return Violation(
        absl::StrCat("a piece for receive ", cell.receive_id, ", which is not posted"));
  }
  bool first = receive->received == 0;
  bool fits = !receive->offered && cell.total <= receive->target.out.size() &&
              cell.offset == receive->received && cell.length <= cell.total - cell.offset &&
              (first || cell.total == receive->total) && (cell.length > 0 || cell.total == 0) &&
              (cell.length % 64 == 0 || cell.offset + cell.length == cell.total);
  if (!fits) {
    return Violation(absl::StrCat("a piece of ", cell.length, " bytes at ", cell.offset, " of ",
                                  cell.total, " for a receive of ", receive->target.out.size(),
                                  " that has ", receive->received));
  }
  WEFT_ASSIGN_OR_RETURN(const std::byte* bytes, BytesOf(cell, body));
  receive->total = cell.total;
  Match(*receive);
  if (cell.length > 0) Place(*receive, cell.offset, cell.length, bytes);
  receive->received += cell.length;
  counters_.Transmit(cell.length);
  if (receive->received == cell.total) Finish(receive, absl::OkStatus());
  return absl::OkStatus();
}

absl::Status ShmReceiveLink::TakeOffer(const std::byte* body) {
  OfferCell cell;
  CopyOnce(&cell, body, sizeof cell);
  Receive* receive = Find(cell.receive_id);
  if (receive == nullptr || receive->received != 0 || receive->offered) {
    return Violation(absl::StrCat("an offer for receive ", cell.receive_id,
                                  ", which is not posted or has its message"));
  }
  const ReceiveTarget& target = receive->target;
  const bool is_shared = cell.share != 0;
  if (cell.total == 0 || cell.total > target.out.size() ||
      (!is_shared && target.reduce != nullptr) || (is_shared && !may_map_)) {
    return Violation(
        absl::StrCat("an offer of ", cell.total, " bytes for a receive of ", target.out.size()));
  }
  receive->offer_id = cell.offer_id;
  receive->shared = nullptr;
  // Also where it cannot be read: its pieces come for this receive, which is no eager message's.
  receive->total = cell.total;
  Match(*receive);
  if (is_shared) {
    receive->shared = FindShown(cell.share);
    if (receive->shared == nullptr) {
      Answer(*receive, false);
      return absl::OkStatus();
    }
    const uint64_t bytes = receive->shared->bytes();
    if (cell.address > bytes || cell.total > bytes - cell.address) {
      return Violation(absl::StrCat("an offer of ", cell.total, " bytes at ", cell.address, " of ",
                                    bytes, " shared ones"));
    }
  }
  receive->offered = true;
  receive->address = cell.address;
  receive->urgency = cell.urgency;
  const auto place = std::upper_bound(
      reading_.begin(), reading_.end(), cell.urgency,
      [this](uint8_t urgency, uint32_t other) { return urgency > receives_[other].urgency; });
  reading_.insert(place, static_cast<uint32_t>(receive - receives_.data()));
  return absl::OkStatus();
}

// What says the number in the ring was written after the packet on the socket. Others may lie
// before that packet, more than one look at the socket takes.
std::shared_ptr<const Mapping> ShmReceiveLink::FindShown(uint32_t share) {
  auto shown = shares_.Find(share);
  for (size_t i = 0; shown == nullptr && i < SharesSeen::kMost / kPacketsPerTurn; ++i) {
    const bool is_drained = DrainSocket();
    shown = shares_.Find(share);
    if (is_drained) break;
  }
  return shown;
}

ShownMemory ShmReceiveLink::Shown(uint32_t number) {
  const std::shared_ptr<const Mapping> mapping = alive() ? FindShown(number) : nullptr;
  if (mapping == nullptr) return {};
  return {{mapping, mapping->data()}, mapping->bytes()};
}

bool ShmReceiveLink::ReadOffers() {
  while (!reading_.empty() && !TurnIsUp()) {
    Receive& receive = receives_[reading_.front()];
    const bool is_shared = receive.shared != nullptr;
    // A more urgent one that was refused takes nothing from one that is partly read.
    const bool may_read = is_shared || memory_.usable() || receive.received > 0;
    const ReadResult result = may_read ? ReadPiece(receive) : ReadResult::kRefused;
    if (result == ReadResult::kRefused && receive.received == 0) {
      if (memory_.usable()) {
        WEFT_LOG_DEBUG(DescribeLink(), ": its memory cannot be read (", std::strerror(errno),
                       "); messages go through the arena");
      }
      memory_.GiveUp();
      reading_.pop_front();
      receive.offered = false;
      Answer(receive, false);
      continue;
    }
    if (result == ReadResult::kRead && receive.received < receive.total) continue;
    // A sender that has gone may have used its memory for something else meanwhile.
    if (result != ReadResult::kRead || PeerHasClosed() || (!is_shared && !memory_.Lives())) {
      BreakRead(result);
      return true;
    }
    reading_.pop_front();
    receive.shared = nullptr;
    Answer(receive, true);
    Finish(&receive, absl::OkStatus());
  }
  return true;
}

void ShmReceiveLink::BreakRead(ReadResult result) {
  if (result != ReadResult::kRefused) return Break(HangUpStatus());
  Break(
      absl::DataLossError(absl::StrCat(DescribeLink(), ": the memory of rank ", peer_rank().value(),
                                       " cannot be read any more: ", std::strerror(errno))));
}

ReadResult ShmReceiveLink::ReadPiece(Receive& receive) {
  const uint64_t bytes = std::min(receive.total - receive.received, kReadBytes);
  const uint64_t from = receive.address + receive.received;
  ReadResult result = ReadResult::kRead;
  if (receive.shared != nullptr) {
    Place(receive, receive.received, bytes, receive.shared->data() + from);
  } else {
    result = memory_.Read(from, receive.target.out.data() + receive.received, bytes);
  }
  if (result == ReadResult::kRead) {
    receive.received += bytes;
    counters_.Transmit(bytes);
  }
  CountBytes(bytes);
  return result;
}

void ShmReceiveLink::Answer(Receive& receive, bool was_read) {
  AnswerCell cell;
  cell.was_read = was_read ? 1 : 0;
  cell.offer_id = receive.offer_id;
  PushAnswer(cell);
}

void ShmReceiveLink::PushAnswer(const std::variant<AnswerCell, DiffersCell>& cell) {
  answers_.push_back(cell);
  PushAnswers();
  RingIfAsleep();
}

bool ShmReceiveLink::PushAnswers() {
  bool moved = false;
  for (; !answers_.empty() && writer_.Free(1) > 0; answers_.pop_front(), moved = true) {
    std::visit([&](const auto& cell) { std::memcpy(writer_.body(), &cell, sizeof cell); },
               answers_.front());
    PublishCell(true);
  }
  if (!answers_.empty()) Announce();
  return moved;
}

void ShmReceiveLink::Place(const Receive& receive, uint64_t offset, uint64_t length,
                           const std::byte* bytes) {
  const ReceiveTarget& target = receive.target;
  std::byte* out = target.out.data() + offset;
  if (target.reduce != nullptr) {
    target.reduce(out, target.local + offset, bytes, length);
  } else if (receive.total >= kCopyAroundMin) {
    CopyAround(out, bytes, length);
  } else {
    std::memcpy(out, bytes, length);
  }
}

absl::Status ShmReceiveLink::TakeRefusal(const std::byte* body) {
  RefuseCell cell;
  CopyOnce(&cell, body, sizeof cell);
  Receive* receive = Find(cell.receive_id);
  if (receive == nullptr || receive->received != 0 || receive->offered) {
    return Violation(absl::StrCat("a refusal of receive ", cell.receive_id));
  }
  Match(*receive);
  switch (static_cast<RefuseReason>(cell.reason)) {
    case RefuseReason::kCheckDiffers:
      Finish(receive, CheckDiffers(receive->key.check, cell.sender_value));
      return absl::OkStatus();
    case RefuseReason::kTooLong:
      Finish(receive, IsTooLong(cell.sender_value, receive->target.out.size()));
      return absl::OkStatus();
  }
  return Violation(absl::StrCat("a refusal for reason ", cell.reason));
}

void ShmReceiveLink::Finish(Receive* receive, absl::Status status) {
  Request* request = std::exchange(receive->request, nullptr);
  free_.push_back(static_cast<uint32_t>(receive - receives_.data()));
  --posted_;
  counters_.Finish(status.ok() ? receive->received : 0);
  request->Finish(std::move(status), receive->received);
}

void ShmReceiveLink::FailRequests(const absl::Status& status) {
  for (Receive& receive : receives_) {
    if (receive.request != nullptr) Finish(&receive, status);
  }
  counters_.FinishAll();
  unsent_.clear();
  reading_.clear();
  answers_.clear();
  eager_.Clear();
}

std::string ShmReceiveLink::Doing() const {
  return posted_ == 0 ? "" : absl::StrCat(posted_, " receives were posted");
}

}  // namespace weft::net::shm
