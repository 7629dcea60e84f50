#include "net/shm/bringup.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/open_files.h"
#include "base/status.h"

namespace weft::net::shm {
namespace {

// A full backlog empties as soon as its owner makes progress; nothing tells that descriptors may be
// sent again.
constexpr absl::Duration kRetry = absl::Milliseconds(2);
constexpr size_t kHelloFds = 3;
constexpr size_t kVerdictFds = 2;

absl::Status CheckUser(int socket, pid_t* pid) {
  WEFT_ASSIGN_OR_RETURN(PeerCredentials peer, CredentialsOf(socket));
  *pid = peer.pid;
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", peer.pid, " runs as user ", peer.uid, ", this one as ", geteuid()));
}

absl::Status SendRest(int socket, std::string* output, absl::Span<const int> fds) {
  if (output->empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(bool sent, SendPacket(socket, *output, fds));
  if (sent) output->clear();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> DescriptorShortage::CanTake(int count, absl::Time now) {
  if (CanOpen(count)) {
    *this = DescriptorShortage();
    return true;
  }
  if (give_up_ == absl::InfiniteFuture()) give_up_ = now + kDescriptorsWait;
  is_over_ = now >= give_up_;
  if (!is_over_) return false;
  return absl::ResourceExhaustedError(
      absl::StrCat("process ", getpid(), " has no descriptors left for another link: its limit is ",
                   OpenFilesLimit(), "; raise it with ulimit -n"));
}

Connecting::Connecting(absl::string_view address, const HandshakeIdentity& self, Rank peer,
                       const Geometry& geometry, const Doorbell* doorbell, absl::Time give_up)
    : address_(address),
      peer_(peer),
      doorbell_(doorbell),
      give_up_(give_up),
      handshake_(self, peer, "", NewNonce()) {
  absl::StatusOr<Segment> segment = Segment::Create(geometry, &segment_fd_);
  if (segment.ok()) {
    wire_.segment = *std::move(segment);
  } else {
    setup_ = segment.status();
  }
}

Connecting::~Connecting() {
  // The acceptor may hold the link for up already, and wonder why it ends.
  if (wire_.segment.mapped()) {
    wire_.segment.backward_reader()->closed.store(kClosed, std::memory_order_release);
  }
}

absl::Status Connecting::Dial(absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(wire_.socket, ConnectUnix(address_));
  retry_at_ = fd() < 0 ? now + kRetry : absl::InfiniteFuture();
  return fd() < 0 ? absl::OkStatus() : CheckUser(fd(), &wire_.pid);
}

absl::Status Connecting::Flush() {
  if (output_.empty()) output_ = handshake_.TakeOutput();
  std::array<int, kHelloFds> fds = {segment_fd_.get(), doorbell_->event_fd(), doorbell_->page_fd()};
  return SendRest(fd(), &output_, fds);
}

absl::StatusOr<std::optional<Wire>> Connecting::Step(absl::Time now) {
  readable_ = false;
  WEFT_RETURN_IF_ERROR(setup_);
  if (fd() < 0) WEFT_RETURN_IF_ERROR(Dial(now));
  while (fd() >= 0) {
    WEFT_RETURN_IF_ERROR(Flush());
    retry_at_ = output_.empty() ? absl::InfiniteFuture() : now + kRetry;
    if (!output_.empty()) break;
    WEFT_ASSIGN_OR_RETURN(bool can_take, shortage_.CanTake(kVerdictFds, now));
    if (!can_take) break;
    WEFT_ASSIGN_OR_RETURN(Packet packet, ReceivePacket(fd(), kHandshakeBytesMax));
    if (packet.none) break;
    if (packet.hung_up) {
      return absl::UnavailableError("the peer hung up during the handshake");
    }
    handshake_.Feed(packet.bytes);
    if (handshake_.state() == HandshakeState::kFailed) return handshake_.status();
    if (handshake_.state() == HandshakeState::kDone) return Finish(std::move(packet));
  }
  // Last: an answer that came while this process was busy elsewhere is an answer in time.
  if (now >= give_up_) {
    return absl::DeadlineExceededError(
        "no answer within transport.connect_timeout: that process is stopped, or does not make "
        "progress");
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<Wire>> Connecting::Finish(Packet packet) {
  if (packet.fds.size() != kVerdictFds || handshake_.parameters().size() != sizeof(uint32_t)) {
    return absl::InvalidArgumentError("the peer's verdict lacks its doorbell");
  }
  std::memcpy(&wire_.receives_max, handshake_.parameters().data(), sizeof(uint32_t));
  WEFT_ASSIGN_OR_RETURN(wire_.bell, PeerBell::Adopt(std::move(packet.fds[0]), packet.fds[1].get()));
  wire_.peer = handshake_.peer();
  return std::optional<Wire>(std::move(wire_));
}

Arriving::Arriving(FileDescriptor socket, const HandshakeIdentity& self, uint32_t receives_max,
                   const Doorbell* doorbell, absl::Time give_up)
    : doorbell_(doorbell),
      give_up_(give_up),
      handshake_(self, NewNonce()),
      receives_max_(receives_max) {
  wire_.socket = std::move(socket);
  refused_ = CheckUser(fd(), &wire_.pid);
}

absl::Status Arriving::Flush(absl::Span<const int> fds) {
  if (output_.empty()) output_ = handshake_.TakeOutput();
  return SendRest(fd(), &output_, fds);
}

absl::StatusOr<std::optional<Wire>> Arriving::Step(absl::Time now) {
  readable_ = false;
  if (handshake_.state() == HandshakeState::kDone) return Reply(now);
  WEFT_RETURN_IF_ERROR(refused_);
  WEFT_RETURN_IF_ERROR(Flush({}));
  // Descriptors that do not fit would be lost with the packet: rather leave it where it is.
  if (!output_.empty()) return NotYet(now);
  absl::StatusOr<bool> can_take = shortage_.CanTake(kHelloFds, now);
  if (can_take.ok() && !*can_take) return NotYet(now);
  WEFT_ASSIGN_OR_RETURN(Packet packet,
                        ReceivePacket(fd(), kHandshakeBytesMax, /*takes_fds=*/can_take.ok()));
  if (packet.none) return NotYet(now);
  if (packet.hung_up) return absl::UnavailableError("hung up during the handshake");
  handshake_.Feed(packet.bytes);
  if (handshake_.state() == HandshakeState::kFailed) {
    Flush({}).IgnoreError();  // the verdict tells the connector; what counts here is our reason
    return handshake_.status();
  }
  if (handshake_.state() != HandshakeState::kHello) return std::nullopt;
  absl::Status taken = can_take.ok() ? TakeHello(std::move(packet)) : can_take.status();
  if (!taken.ok()) {
    handshake_.Refuse(taken.message());
    Flush({}).IgnoreError();
    return taken;
  }
  handshake_.Accept(
      absl::string_view(reinterpret_cast<const char*>(&receives_max_), sizeof receives_max_));
  return Reply(now);
}

// Asked last, for what came while this process was busy elsewhere came in time.
absl::StatusOr<std::optional<Wire>> Arriving::NotYet(absl::Time now) {
  if (now >= give_up_) return absl::DeadlineExceededError("no whole handshake in time");
  retry_at_ = output_.empty() ? absl::InfiniteFuture() : now + kRetry;
  return std::nullopt;
}

absl::Status Arriving::TakeHello(Packet packet) {
  if (packet.fds.size() != kHelloFds) {
    return absl::InvalidArgumentError(
        absl::StrCat(packet.fds.size(), " descriptors with the hello, ", kHelloFds, " expected"));
  }
  WEFT_ASSIGN_OR_RETURN(wire_.segment, Segment::Adopt(packet.fds[0].get()));
  WEFT_ASSIGN_OR_RETURN(wire_.bell, PeerBell::Adopt(std::move(packet.fds[1]), packet.fds[2].get()));
  wire_.peer = handshake_.hello().rank;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Wire>> Arriving::Reply(absl::Time now) {
  std::array<int, kVerdictFds> fds = {doorbell_->event_fd(), doorbell_->page_fd()};
  WEFT_RETURN_IF_ERROR(Flush(fds));
  if (!output_.empty()) return NotYet(now);
  return std::optional<Wire>(std::move(wire_));
}

}  // namespace weft::net::shm
