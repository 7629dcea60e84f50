#include "net/shm/endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"
#include "net/shm/peer_memory.h"
#include "net/shm/shm_transport.h"

namespace weft::net::shm {

Endpoint::Endpoint(ShmTransport* transport, Role role, Rank peer)
    : transport_(transport), role_(role), peer_(peer) {
  transport_->Add(this);
}

Endpoint::~Endpoint() {
  MarkClosed();
  Unwatch();
  HangUp(wire_.socket);
  transport_->Remove(this);
}

// ---- The four lines of the segment, seen from here.

ReaderLine* Endpoint::own_reader_line() const {
  return role_ == Role::kSender ? wire_.segment.backward_reader() : wire_.segment.forward_reader();
}
ReaderLine* Endpoint::peer_reader_line() const {
  return role_ == Role::kSender ? wire_.segment.forward_reader() : wire_.segment.backward_reader();
}
WriterLine* Endpoint::own_writer_line() const {
  return role_ == Role::kSender ? wire_.segment.forward_writer() : wire_.segment.backward_writer();
}
WriterLine* Endpoint::peer_writer_line() const {
  return role_ == Role::kSender ? wire_.segment.backward_writer() : wire_.segment.forward_writer();
}

// ---- Coming up

void Endpoint::StartConnecting(std::unique_ptr<Connecting> connecting) {
  connecting_ = std::move(connecting);
  transport_->NoteLocalWork();
}

bool Endpoint::BringUp(absl::Time now) {
  if (!connecting_->IsDue(now)) return false;
  absl::StatusOr<std::optional<Wire>> wire = connecting_->Step(now);
  if (!wire.ok()) {
    Break(Annotate(wire.status(), absl::StrCat("connect ", DescribeLink())));
    return true;
  }
  if (wire->has_value()) {
    Establish(**std::move(wire));
    return true;
  }
  if (registered_fd_ < 0 && connecting_->fd() >= 0) {
    registered_fd_ = connecting_->fd();
    if (absl::Status watched = transport_->Watch(registered_fd_, this); !watched.ok()) {
      Break(Annotate(watched, DescribeLink()));
    }
  }
  return false;
}

void Endpoint::Establish(Wire wire) {
  wire_ = std::move(wire);
  connecting_.reset();
  const Segment& segment = wire_.segment;
  const Geometry& geometry = segment.geometry();
  CellWriter forward(segment.forward_cells(), geometry.forward_cells, segment.forward_reader());
  CellWriter backward(segment.backward_cells(), geometry.backward_cells, segment.backward_reader());
  writer_ = role_ == Role::kSender ? forward : backward;
  reader_ =
      role_ == Role::kSender
          ? CellReader(segment.backward_cells(), geometry.backward_cells, segment.backward_reader())
          : CellReader(segment.forward_cells(), geometry.forward_cells, segment.forward_reader());
  up_ = true;
  if (registered_fd_ < 0) {
    registered_fd_ = wire_.socket.get();
    if (absl::Status watched = transport_->Watch(registered_fd_, this); !watched.ok()) {
      pending_break_ = Annotate(watched, DescribeLink());
    }
  }
  wire_.process = OpenProcess(wire_.pid);
  // Where that cannot be watched, the socket tells; later, if others hold it.
  if (wire_.process) transport_->Watch(wire_.process.get(), this).IgnoreError();
  OnUp(wire_);
}

// ---- One turn

bool Endpoint::Turn(absl::Time now) {
  if (!alive()) return FlushFailed();
  if (!pending_break_.ok()) {
    Break(pending_break_);
    return true;
  }
  if (!up_) {
    if (connecting_ == nullptr || !BringUp(now) || !alive()) return !alive();
    Move();
    return true;
  }
  bytes_this_turn_ = 0;
  bool moved = Move();
  if (!alive()) return true;
  if (!notices_.empty()) moved |= PushNotices();
  if (writer_.corrupt() || reader_.corrupt()) {
    Break(Violation("an index of a ring that cannot be"));
    return true;
  }
  if (!HasEnded()) return moved;
  // What was written before the end is still good: first everything, then the end.
  if (reader_.Peek() == nullptr) Break(HangUpStatus());
  return true;
}

bool Endpoint::HasEnded() const {
  if (!hung_up_) return false;
  return !KeepsAfterEnd() || peer_reader_line()->closed.load(std::memory_order_acquire) != kClosed;
}

bool Endpoint::ReadCells(int cells) {
  bool moved = false;
  for (; cells > 0 && !TurnIsUp(); --cells) {
    const std::byte* body = reader_.Peek();
    if (body == nullptr) break;
    moved = true;
    absl::Status taken =
        static_cast<CellKind>(body[0]) == CellKind::kNotice ? TakeNotice(body) : OnCell(body);
    if (!taken.ok()) {
      Break(taken);
      return true;
    }
    if (!alive()) return true;
    reader_.Advance();
    // The writer should not have to wait for the rest of our turn.
    if ((reader_.unreleased() * 4 >= reader_.count() || bytes_this_turn_ > 0) &&
        reader_.Release()) {
      released_ = true;
      RingIfAsleep();
    }
  }
  released_ |= reader_.Release();
  return moved;
}

void Endpoint::PublishCell(bool ring_if_quiet) {
  writer_.Publish();
  published_ = true;
  published_loud_ |= ring_if_quiet;
}

void Endpoint::Ring() {
  const bool is_wanted =
      published_loud_ ||
      (published_ && peer_reader_line()->quiet.load(std::memory_order_relaxed) == 0);
  const uint64_t wake_at =
      released_ ? peer_writer_line()->wake_at.load(std::memory_order_relaxed) : 0;
  if (is_wanted || (wake_at != 0 && reader_.next() >= wake_at)) wire_.bell.Ring();
}

// ---- Sleeping

void Endpoint::Arm() {
  if (!up_ || !alive()) return;
  own_reader_line()->quiet.store(QuietWhenAsleep() ? 1 : 0, std::memory_order_relaxed);
  if (!WaitsForSpace() && notices_.empty()) return;
  // To be woken once half of what is out has come back: then there is work for a while.
  uint64_t out = writer_.produced() - writer_.consumed();
  own_writer_line()->wake_at.store(writer_.consumed() + std::max<uint64_t>(1, (out + 1) / 2),
                                   std::memory_order_relaxed);
  armed_space_ = true;
}

void Endpoint::Disarm() {
  if (!armed_space_) return;
  own_writer_line()->wake_at.store(0, std::memory_order_relaxed);
  armed_space_ = false;
}

bool Endpoint::HasWork() {
  if (!alive()) return !failed_.empty();
  if (!pending_break_.ok() || HasEnded()) return true;
  if (!up_) return false;
  if (reader_.Peek() != nullptr || reader_.corrupt()) return true;
  if (armed_space_) {
    uint64_t before = writer_.consumed();
    writer_.Refresh();
    if (writer_.consumed() != before || writer_.corrupt()) return true;
  }
  return CanMove() || (!notices_.empty() && NoticeFits());
}

absl::Time Endpoint::deadline() const {
  return alive() && connecting_ != nullptr ? connecting_->deadline() : absl::InfiniteFuture();
}

// ---- Notices

Posted Endpoint::QueueNotice(absl::string_view bytes) {
  WEFT_CHECK(bytes.size() <= kNoticeBytesMax, "a notice of " << bytes.size() << " bytes");
  if (!alive() || hung_up_) return Posted::kAccepted;  // goes where the other side went
  if (notices_.size() >= kNoticesQueued) return Posted::kNotYet;
  notices_.emplace_back(bytes);
  if (up_) {
    PushNotices();
    RingIfAsleep();
  }
  transport_->NoteLocalWork();
  return Posted::kAccepted;
}

bool Endpoint::PushNotices() {
  bool moved = false;
  for (; !notices_.empty() && NoticeFits(); notices_.pop_front()) {
    const std::string& notice = notices_.front();
    size_t offset = 0;
    do {
      NoticeCell cell;
      cell.length = static_cast<uint8_t>(std::min(notice.size() - offset, NoticeCell::kBytesMax));
      cell.offset = static_cast<uint16_t>(offset);
      cell.total = static_cast<uint16_t>(notice.size());
      std::memcpy(cell.bytes, notice.data() + offset, cell.length);
      std::memcpy(writer_.body(), &cell, offsetof(NoticeCell, bytes) + cell.length);
      OnCellPublished();
      PublishCell(true);
      offset += cell.length;
    } while (offset < notice.size());
    moved = true;
  }
  if (!notices_.empty()) Announce();
  return moved;
}

absl::Status Endpoint::TakeNotice(const std::byte* body) {
  NoticeCell cell;
  CopyOnce(&cell, body, sizeof cell);
  if (cell.total > kNoticeBytesMax || cell.length > NoticeCell::kBytesMax ||
      cell.offset != notice_in_.size() || cell.length > cell.total - cell.offset ||
      (cell.length == 0 && cell.total != 0)) {
    return Violation(absl::StrCat("a notice's fragment of ", cell.length, " bytes at ", cell.offset,
                                  " of ", cell.total));
  }
  notice_in_.append(reinterpret_cast<const char*>(cell.bytes), cell.length);
  if (notice_in_.size() == cell.total) {
    std::string whole = std::exchange(notice_in_, {});
    transport_->events().OnNotice(link(), whole);
  }
  return absl::OkStatus();
}

// ---- Breaking

void Endpoint::OnWatched() {
  if (!up_) {  // Turn() reads the socket itself
    if (connecting_ != nullptr) connecting_->NoteReadable();
    return;
  }
  const bool has_exited = HasExited(wire_.process.get());  // first: then all that it sent is here
  if (DrainSocket() && has_exited) EndWatch();
}

bool Endpoint::DrainSocket() {
  for (size_t i = 0; i < kPacketsPerTurn && alive() && !hung_up_ && pending_break_.ok(); ++i) {
    absl::StatusOr<Packet> packet = ReceivePacket(wire_.socket.get(), 64);
    if (packet.ok() && packet->none) return true;
    // No descriptors left for what a peer shows: it is told when it offers from there.
    if (absl::IsResourceExhausted(packet.status())) continue;
    absl::Status taken = packet.ok() && !packet->hung_up ? OnPacket(*packet) : packet.status();
    if (taken.ok() && !packet->hung_up) continue;
    EndWatch();
    if (!taken.ok()) pending_break_ = Annotate(taken, DescribeLink());
  }
  return false;
}

// Nothing more comes from the other side.
void Endpoint::EndWatch() {
  Unwatch();
  hung_up_ = true;
  notices_.clear();
}

void Endpoint::Unwatch() {
  if (registered_fd_ >= 0) transport_->Unwatch(std::exchange(registered_fd_, -1));
  if (wire_.process) transport_->Unwatch(wire_.process.get());
}

absl::Status Endpoint::OnPacket(const Packet& /*packet*/) {
  return Violation("bytes on a socket that should be silent");
}

void Endpoint::MarkClosed() {
  if (!up_ || !alive()) return;
  own_reader_line()->closed.store(kClosed, std::memory_order_release);
  FullFence();
}

bool Endpoint::PeerHasClosed() const {
  FullFence();
  return peer_reader_line()->closed.load(std::memory_order_acquire) != 0;
}

absl::Status Endpoint::HangUpStatus() const {
  std::string what;
  FailureScope scope = FailureScope::kConnection;
  switch (peer_reader_line()->closed.load(std::memory_order_acquire)) {
    case kClosed:
      what = " closed the link";
      break;
    case kGaveUp:
      what = " gave the link up; its own log says why";
      break;
    default:
      what = absl::StrCat(" (process ", wire_.pid, " on ", transport_->host(),
                          ") has died; its own log says why");
      scope = FailureScope::kProcess;
  }
  std::string doing = Doing();
  return WithFailure(absl::UnavailableError(absl::StrCat(DescribeLink(), ": rank ", peer_.value(),
                                                         what, doing.empty() ? "" : "; ", doing)),
                     {.scope = scope, .rank = peer_.value()});
}

absl::Status Endpoint::Violation(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(DescribeLink(), ": rank ", peer_.value(), " (process ",
                                          wire_.pid, ") wrote ", what,
                                          " into the shared segment; its memory is corrupt"));
}

absl::Status Endpoint::CheckDiffers(uint64_t own, uint64_t theirs) const {
  return absl::FailedPreconditionError(
      absl::StrCat(DescribeLink(), ": message check differs: this rank's is ", own, ", the ",
                   role_ == Role::kSender ? "receiver" : "sender", "'s ", theirs));
}

absl::Status Endpoint::IsTooLong(uint64_t bytes, uint64_t capacity) const {
  return absl::OutOfRangeError(
      absl::StrCat(DescribeLink(), ": a message of ", bytes, " bytes for a receive of ", capacity));
}

void Endpoint::Break(const absl::Status& status) {
  if (!alive()) return;
  status_ = status;
  if (up_) own_reader_line()->closed.store(kGaveUp, std::memory_order_release);
  FullFence();
  Unwatch();
  connecting_.reset();
  HangUp(wire_.socket);
  notices_.clear();
  WEFT_LOG_DEBUG(status.ToString());
  FailRequests(status_);
  transport_->events().OnBroken(link(), status_);
}

bool Endpoint::PostFailed(Request* request) {
  if (alive()) return false;
  request->Begin();
  failed_.push_back(request);
  transport_->NoteLocalWork();
  return true;
}

bool Endpoint::FlushFailed() {
  if (failed_.empty()) return false;
  for (Request* request : std::exchange(failed_, {})) request->Finish(status_, 0);
  return true;
}

void Endpoint::CancelFailed() {
  for (Request* request : std::exchange(failed_, {})) request->Finish(status_, 0);
}

std::string Endpoint::DescribeLink() const {
  std::string self = absl::StrCat("rank ", transport_->self().value());
  std::string peer = absl::StrCat("rank ", peer_.value(),
                                  wire_.pid == 0 ? "" : absl::StrCat(" (process ", wire_.pid, ")"));
  return role_ == Role::kSender ? absl::StrCat("shm ", self, " -> ", peer)
                                : absl::StrCat("shm ", peer, " -> ", self);
}

}  // namespace weft::net::shm
