#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/shm/copy.h"
#include "net/shm/links.h"
#include "net/shm/shm_transport.h"

namespace weft::net::shm {

ShmReceiveLink::ShmReceiveLink(ShmTransport* transport, Wire wire)
    : Endpoint(transport, Role::kReceiver, wire.peer), requests_max_(transport->requests_max()) {
  Establish(std::move(wire));
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
  ++receive.generation;
  unsent_.push_back(uint64_t{receive.generation} << 32 | index);
  PushClearToSends();
  RingIfPublished();
  transport()->NoteLocalWork();
  return Posted::kAccepted;
}

bool ShmReceiveLink::PushClearToSends() {
  bool moved = false;
  for (; !unsent_.empty() && writer_.Free(1) > 0; unsent_.pop_front(), moved = true) {
    const Receive& receive = receives_[static_cast<uint32_t>(unsent_.front())];
    ClearToSendCell cell;
    cell.receive_id = unsent_.front();
    cell.tag = receive.key.tag;
    cell.check = receive.key.check;
    cell.capacity = receive.target.out.size();
    std::memcpy(writer_.body(), &cell, sizeof cell);
    PublishCell(false);
  }
  return moved;
}

bool ShmReceiveLink::Move() {
  bool moved = ReadCells(kCellsPerTurn);
  if (!alive()) return true;
  if (!unsent_.empty()) moved |= PushClearToSends();
  return moved;
}

bool ShmReceiveLink::CanMove() { return !unsent_.empty() && writer_.Free(1) > 0; }

absl::Status ShmReceiveLink::OnCell(const std::byte* body) {
  switch (static_cast<CellKind>(body[0])) {
    case CellKind::kData:
      return TakeData(body);
    case CellKind::kRefuse:
      return TakeRefusal(body);
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

absl::Status ShmReceiveLink::TakeData(const std::byte* body) {
  DataCell cell;
  CopyOnce(&cell, body, offsetof(DataCell, bytes) + sizeof cell.position);
  Receive* receive = Find(cell.receive_id);
  if (receive == nullptr) {
    return Violation(
        absl::StrCat("a piece for receive ", cell.receive_id, ", which is not posted"));
  }
  bool first = receive->received == 0;
  bool fits = cell.total <= receive->target.out.size() && cell.offset == receive->received &&
              cell.length <= cell.total - cell.offset && (first || cell.total == receive->total) &&
              (cell.length > 0 || cell.total == 0) &&
              (cell.length % 64 == 0 || cell.offset + cell.length == cell.total);
  if (!fits) {
    return Violation(absl::StrCat("a piece of ", cell.length, " bytes at ", cell.offset, " of ",
                                  cell.total, " for a receive of ", receive->target.out.size(),
                                  " that has ", receive->received));
  }
  const std::byte* bytes;
  if (cell.is_inline != 0) {
    if (cell.length > DataCell::kInlineMax) return Violation("too long a piece inside of a cell");
    CopyOnce(cell.bytes, body + offsetof(DataCell, bytes), cell.length);
    bytes = cell.bytes;
  } else {
    uint64_t arena = wire_.segment.geometry().arena_bytes;
    if (cell.position > arena || cell.length > arena - cell.position || cell.position % 64 != 0) {
      return Violation(absl::StrCat("a piece at ", cell.position, " of an arena of ", arena));
    }
    bytes = wire_.segment.arena() + cell.position;
    CountBytes(cell.length);
  }
  receive->total = cell.total;
  Place(*receive, cell, bytes);
  receive->received += cell.length;
  if (receive->received == cell.total) Finish(receive, absl::OkStatus());
  return absl::OkStatus();
}

void ShmReceiveLink::Place(const Receive& receive, const DataCell& cell, const std::byte* bytes) {
  if (cell.length == 0) return;
  const ReceiveTarget& target = receive.target;
  std::byte* out = target.out.data() + cell.offset;
  if (target.combine != nullptr) {
    target.combine(out, target.local + cell.offset, bytes, cell.length);
  } else if (cell.total >= kCopyAroundMin) {
    CopyAround(out, bytes, cell.length);
  } else {
    std::memcpy(out, bytes, cell.length);
  }
}

absl::Status ShmReceiveLink::TakeRefusal(const std::byte* body) {
  RefuseCell cell;
  CopyOnce(&cell, body, sizeof cell);
  Receive* receive = Find(cell.receive_id);
  if (receive == nullptr || receive->received != 0) {
    return Violation(absl::StrCat("a refusal of receive ", cell.receive_id));
  }
  switch (static_cast<RefuseReason>(cell.reason)) {
    case RefuseReason::kCheckDiffers:
      Finish(receive, absl::FailedPreconditionError(
                          absl::StrCat(Describe(), ": message check differs: this rank's is ",
                                       receive->key.check, ", the sender's ", cell.sender_value)));
      return absl::OkStatus();
    case RefuseReason::kTooLong:
      Finish(receive, absl::OutOfRangeError(
                          absl::StrCat(Describe(), ": a message of ", cell.sender_value,
                                       " bytes for a receive of ", receive->target.out.size())));
      return absl::OkStatus();
  }
  return Violation(absl::StrCat("a refusal for reason ", cell.reason));
}

void ShmReceiveLink::Finish(Receive* receive, absl::Status status) {
  Request* request = std::exchange(receive->request, nullptr);
  free_.push_back(static_cast<uint32_t>(receive - receives_.data()));
  --posted_;
  request->Finish(std::move(status), receive->received);
}

void ShmReceiveLink::FailRequests(const absl::Status& status) {
  for (Receive& receive : receives_) {
    if (receive.request != nullptr) Finish(&receive, status);
  }
  unsent_.clear();
}

std::string ShmReceiveLink::Doing() const {
  return posted_ == 0 ? "" : absl::StrCat(posted_, " receives were posted");
}

}  // namespace weft::net::shm
