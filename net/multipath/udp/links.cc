#include "net/multipath/udp/links.h"

#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::net::multipath {
namespace {

constexpr uint64_t kAddressBytes = 4096;

bool IsControl(FrameType type) {
  return type == FrameType::kNotice || type == FrameType::kMismatch ||
         type == FrameType::kClearToSend;
}

// The kernel asks no idle connection whether it stands: datagrams show that the peer lives, and
// where they do not, the link itself asks.
void SilenceKeepAlive(const std::vector<FileDescriptor>& sockets) {
  int off = 0;
  for (const FileDescriptor& fd : sockets) {
    setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off));
  }
}

FrameHeader AliveHeader() {
  FrameHeader header;
  header.type = FrameType::kAlive;
  return header;
}

absl::Status WrongWay(const FrameHeader& header) {
  return absl::InvalidArgumentError(
      absl::StrCat("a frame of type ", static_cast<int>(header.type),
                   " that does not belong on this way of a multipath link"));
}

FrameHeader AddressHeader(absl::string_view address) {
  FrameHeader header;
  header.type = FrameType::kAddress;
  header.length = address.size();
  return header;
}

}  // namespace

LinkWire::LinkWire(LinkContext& shared, Poller& poller, Rank peer, bool is_connector,
                   WireOwner& owner)
    : shared_(shared) {
  WireOptions options = shared.wire;
  options.sender.peer = absl::StrCat("rank ", peer.value());
  options.sender.policy.seed ^= static_cast<uint64_t>(peer.value()) << 1 | (is_connector ? 1 : 0);
  const auto open = [&](DatagramOwner& of) {
    return shared.open_paths(of, LinkEnds{peer, is_connector});
  };
  wire_ = std::make_unique<Wire>(poller, open, options, is_connector, owner);
}

absl::StatusOr<PayloadTarget> LinkWire::AddressTarget(const FrameHeader& header) {
  if (header.length > kAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a multipath address of ", header.length, " bytes"));
  }
  peer_address_.resize(header.length);
  PayloadTarget target;
  target.out = reinterpret_cast<std::byte*>(peer_address_.data());
  return target;
}

void LinkWire::Leave(std::deque<OutFrame> words) {
  if (!wire_->is_started()) return;  // then they go by the stream
  for (OutFrame& frame : words) wire_->SendControl(std::move(frame));
  wire_->Linger();
  promised_ = wire_->control_promised();
  shared_.lingering.push_back(std::move(wire_));
}

// ---- The connecting end

MultipathSendLink::MultipathSendLink(TcpContext& context, LinkContext& shared, Rank peer)
    : TcpSendLink(context, peer), wire_(shared, poller(), peer, /*is_connector=*/true, *this) {}

MultipathSendLink::~MultipathSendLink() {
  if (status().ok() && wire_->is_started()) wire_.Leave(TakeElsewhere());
  LinkCore::Finish();
}

void MultipathSendLink::UseIdentity(const ConnectorIdentity& identity) {
  TcpSendLink::UseIdentity(identity);
  wire_->set_secret(identity.secret);
}

void MultipathSendLink::OnConnected(std::vector<FileDescriptor> sockets,
                                    std::vector<std::string> received, absl::Time now) {
  SilenceKeepAlive(sockets);
  TcpSendLink::OnConnected(std::move(sockets), std::move(received), now);
  if (!status().ok()) return;
  absl::StatusOr<std::string> address = wire_.address();
  if (!address.ok()) return Break(address.status());
  QueueControl(AddressHeader(*address), *address);
}

absl::StatusOr<PayloadTarget> MultipathSendLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  if (header.type == FrameType::kAlive) return PayloadTarget{};
  return WrongWay(header);
}

absl::Status MultipathSendLink::OnLinkFrameDone(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.Connect();
  return absl::OkStatus();
}

bool MultipathSendLink::SendDataElsewhere() {
  OutFrame frame;
  while (NextData(&frame)) wire_->SendData(frame);
  return true;
}

void MultipathSendLink::FailRequests(const absl::Status& why) {
  wire_.Close();
  TcpSendLink::FailRequests(why);
}

bool MultipathSendLink::GoesElsewhere(FrameType type) const {
  if (type == FrameType::kNotice && context().options.notices_by_tcp) return false;
  return IsControl(type);
}

bool MultipathSendLink::SendElsewhere(OutFrame& frame) {
  if (!wire_->HasRoom()) return false;
  wire_->SendControl(std::move(frame));
  return true;
}

bool MultipathSendLink::HeardElsewhere(absl::Time now) {
  if (now - wire_->heard_at() < context().tuning.dead_after * 3 / 4) return true;
  QueueControl(AliveHeader());
  return false;
}

absl::StatusOr<PayloadTarget> MultipathSendLink::OnWireFrame(const FrameHeader& header) {
  if (header.type == FrameType::kNotice) return PayloadTarget{};
  return TcpSendLink::OnLinkFrame(header);  // a clear-to-send, or wrong
}

absl::Status MultipathSendLink::OnWireFrameDone(const FrameHeader& header,
                                                absl::string_view notice) {
  if (header.type == FrameType::kNotice) return OnFrameDone(header, notice);
  absl::Status done = TcpSendLink::OnLinkFrameDone(header);
  NoteArrival();
  return done;
}

void MultipathSendLink::OnWireWords(const std::string& words) {
  QueueControl(AddressHeader(words), words);
}

// ---- The accepting end

MultipathReceiveLink::MultipathReceiveLink(TcpContext& context, LinkContext& shared, Rank peer,
                                           OnDestroyed on_destroyed)
    : TcpReceiveLink(context, peer, std::move(on_destroyed)),
      wire_(shared, poller(), peer, /*is_connector=*/false, *this) {}

MultipathReceiveLink::~MultipathReceiveLink() {
  if (status().ok() && wire_->is_started()) wire_.Leave(TakeElsewhere());
  LinkCore::Finish();
}

void MultipathReceiveLink::Start(std::vector<FileDescriptor> sockets) {
  SilenceKeepAlive(sockets);
  TcpReceiveLink::Start(std::move(sockets));
  absl::StatusOr<std::string> address = wire_.address();
  if (!address.ok()) return Break(address.status());
  QueueControl(AddressHeader(*address), *address);
}

absl::StatusOr<PayloadTarget> MultipathReceiveLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  if (header.type == FrameType::kAlive) return PayloadTarget{};
  return WrongWay(header);
}

absl::Status MultipathReceiveLink::OnLinkFrameDone(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.Connect();
  return absl::OkStatus();
}

void MultipathReceiveLink::SendClearToSend(const FrameHeader& header) { QueueControl(header); }

void MultipathReceiveLink::FailRequests(const absl::Status& why) {
  wire_.Close();
  TcpReceiveLink::FailRequests(why);
}

bool MultipathReceiveLink::GoesElsewhere(FrameType type) const {
  if (type == FrameType::kNotice && context().options.notices_by_tcp) return false;
  return IsControl(type);
}

bool MultipathReceiveLink::SendElsewhere(OutFrame& frame) {
  if (!wire_->HasRoom()) return false;
  wire_->SendControl(std::move(frame));
  return true;
}

bool MultipathReceiveLink::HeardElsewhere(absl::Time now) {
  if (now - wire_->heard_at() < context().tuning.dead_after * 3 / 4) return true;
  QueueControl(AliveHeader());
  return false;
}

absl::StatusOr<PayloadTarget> MultipathReceiveLink::OnWireFrame(const FrameHeader& header) {
  if (header.type == FrameType::kNotice) return PayloadTarget{};
  return TcpReceiveLink::OnLinkFrame(header);  // data, a mismatch, or wrong
}

absl::Status MultipathReceiveLink::OnWireFrameDone(const FrameHeader& header,
                                                   absl::string_view notice) {
  if (header.type == FrameType::kNotice) {
    absl::Status done = OnFrameDone(header, notice);
    NoteArrival();
    return done;
  }
  absl::Status done = TcpReceiveLink::OnLinkFrameDone(header);
  NoteArrival();
  return done;
}

void MultipathReceiveLink::OnWireWords(const std::string& words) {
  QueueControl(AddressHeader(words), words);
}

}  // namespace weft::net::multipath
