#include "net/ucx/links.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::net {
namespace {

absl::Status WrongWay(const FrameHeader& header) {
  return absl::InvalidArgumentError(
      absl::StrCat("a frame of type ", static_cast<int>(header.type),
                   " that does not belong on this way of a ucx link"));
}

}  // namespace

// ---- The connecting end

void UcxSendLink::OnConnected(std::vector<FileDescriptor> sockets,
                              std::vector<std::string> received, absl::Time now) {
  TcpSendLink::OnConnected(std::move(sockets), std::move(received), now);
  if (status().ok()) QueueControl(wire_.address_header(), wire_.address());
}

absl::StatusOr<PayloadTarget> UcxSendLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  return WrongWay(header);
}

absl::Status UcxSendLink::OnLinkFrameDone(const FrameHeader& header) {
  return wire_.Connect(header);
}

bool UcxSendLink::SendDataElsewhere() {
  OutFrame frame;
  while (NextData(&frame)) {
    // An empty message has no payload to wait for.
    static const std::byte nothing{};
    wire_.Send(frame.header, frame.payload != nullptr ? frame.payload : &nothing, frame.token);
  }
  return true;
}

void UcxSendLink::FailRequests(const absl::Status& why) {
  wire_.Close();
  TcpSendLink::FailRequests(why);
}

absl::StatusOr<PayloadTarget> UcxSendLink::OnWireFrame(const FrameHeader& header) {
  return TcpSendLink::OnLinkFrame(header);  // a clear-to-send, or wrong
}

absl::Status UcxSendLink::OnWireFrameDone(const FrameHeader& header) {
  return TcpSendLink::OnLinkFrameDone(header);
}

// ---- The accepting end

void UcxReceiveLink::Start(std::vector<FileDescriptor> sockets) {
  std::vector<std::string> received(sockets.size());
  Attach(std::move(sockets), std::move(received));
  QueueControl(wire_.address_header(), wire_.address());
}

absl::StatusOr<PayloadTarget> UcxReceiveLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  if (header.type == FrameType::kData) return WrongWay(header);
  return TcpReceiveLink::OnLinkFrame(header);  // a mismatch
}

absl::Status UcxReceiveLink::OnLinkFrameDone(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.Connect(header);
  return TcpReceiveLink::OnLinkFrameDone(header);
}

void UcxReceiveLink::FailRequests(const absl::Status& why) {
  wire_.Close();
  TcpReceiveLink::FailRequests(why);
}

absl::StatusOr<PayloadTarget> UcxReceiveLink::OnWireFrame(const FrameHeader& header) {
  if (header.type != FrameType::kData) return WrongWay(header);
  return TcpReceiveLink::OnLinkFrame(header);
}

absl::Status UcxReceiveLink::OnWireFrameDone(const FrameHeader& header) {
  absl::Status done = TcpReceiveLink::OnLinkFrameDone(header);
  if (done.ok() && posted() == 0) wire_.SayWhatArrived();
  NoteArrival();
  return done;
}

}  // namespace weft::net
