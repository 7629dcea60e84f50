#include "net/multipath/udp/data_path.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/plan/path_reports.h"

namespace weft::net::multipath {
namespace {

// An address, which is shorter, or reports about paths.
constexpr uint64_t kAddressBytes = topology::PathReports::kTextBytesMax;
static_assert(kAddressBytes <= kWorkerAddressBytesMax, "CheckFrame() lets them pass");

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

// ---- Both ends

template <typename Base>
absl::Status MultipathDataPath<Base>::Start() {
  WEFT_ASSIGN_OR_RETURN(const std::string address, wire_.address());
  session_.QueueControl(AddressHeader(address), address);
  return absl::OkStatus();
}

template <typename Base>
absl::StatusOr<PayloadTarget> MultipathDataPath<Base>::OnFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  if (header.type == FrameType::kAlive) return PayloadTarget{};
  return WrongWay(header);
}

template <typename Base>
absl::Status MultipathDataPath<Base>::OnFrameDone(const FrameHeader& header) {
  return header.type == FrameType::kAddress ? wire_.Connect() : absl::OkStatus();
}

template <typename Base>
bool MultipathDataPath<Base>::Carries(FrameType type) const {
  if (type == FrameType::kNotice) return !session_.context().options.notices_by_tcp;
  return type == FrameType::kMismatch || type == FrameType::kClearToSend;
}

template <typename Base>
bool MultipathDataPath<Base>::SendControl(OutFrame& frame) {
  if (!wire_->HasRoom()) return false;
  wire_->SendControl(std::move(frame));
  return true;
}

template <typename Base>
bool MultipathDataPath<Base>::HearsPeer(absl::Time now) {
  if (now - wire_->heard_at() < session_.context().tuning.dead_after * 3 / 4) return true;
  FrameHeader alive;
  alive.type = FrameType::kAlive;
  session_.QueueControl(alive);
  return false;
}

template <typename Base>
void MultipathDataPath<Base>::Leave() {
  if (wire_->is_started()) wire_.Leave(session_.TakeElsewhere());
}

template <typename Base>
void MultipathDataPath<Base>::OnWireWords(const std::string& words) {
  session_.QueueControl(AddressHeader(words), words);
}

template class MultipathDataPath<SendDataPath>;
template class MultipathDataPath<ReceiveDataPath>;

// ---- The connecting end

void MultipathSendDataPath::SendData() {
  OutFrame frame;
  while (matching_.NextData(session_.context().frame_bytes, &frame)) wire_->SendData(frame);
}

absl::StatusOr<PayloadTarget> MultipathSendDataPath::OnWireFrame(const FrameHeader& header) {
  if (header.type != FrameType::kNotice) WEFT_RETURN_IF_ERROR(matching_.Admit(header));
  return PayloadTarget{};
}

absl::Status MultipathSendDataPath::OnWireFrameDone(const FrameHeader& header,
                                                    absl::string_view notice) {
  if (header.type == FrameType::kNotice) return session_.OnFrameDone(header, notice);
  session_.Follow(matching_.OnClearToSend(header));
  session_.NoteArrival();
  return absl::OkStatus();
}

// ---- The accepting end

absl::StatusOr<PayloadTarget> MultipathReceiveDataPath::OnWireFrame(const FrameHeader& header) {
  if (header.type == FrameType::kNotice) return PayloadTarget{};
  return matching_.OnFrame(header);  // data, a mismatch, or wrong
}

absl::Status MultipathReceiveDataPath::OnWireFrameDone(const FrameHeader& header,
                                                       absl::string_view notice) {
  absl::Status done = header.type == FrameType::kNotice ? session_.OnFrameDone(header, notice)
                                                        : matching_.OnFrameDone(header);
  session_.NoteArrival();
  return done;
}

}  // namespace weft::net::multipath
