#include "net/ucx/data_path.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

absl::Status WrongWay(const FrameHeader& header) {
  return absl::InvalidArgumentError(
      absl::StrCat("a frame of type ", static_cast<int>(header.type),
                   " that does not belong on this way of a ucx link"));
}

}  // namespace

// ---- The connecting end

absl::Status UcxSendDataPath::Start() {
  session_.QueueControl(wire_.address_header(), wire_.address());
  return absl::OkStatus();
}

absl::StatusOr<PayloadTarget> UcxSendDataPath::OnFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  return WrongWay(header);
}

void UcxSendDataPath::SendData() {
  OutFrame frame;
  while (matching_.NextData(session_.context().frame_bytes, &frame)) {
    // An empty message has no payload to wait for.
    static const std::byte nothing{};
    wire_.Send(frame.header, frame.payload != nullptr ? frame.payload : &nothing, frame.token);
  }
}

absl::StatusOr<PayloadTarget> UcxSendDataPath::OnWireFrame(const FrameHeader& header) {
  WEFT_RETURN_IF_ERROR(matching_.Admit(header));
  return PayloadTarget{};
}

absl::Status UcxSendDataPath::OnWireFrameDone(const FrameHeader& header) {
  session_.Follow(matching_.OnClearToSend(header));
  return absl::OkStatus();
}

// ---- The accepting end

absl::Status UcxReceiveDataPath::Start() {
  session_.QueueControl(wire_.address_header(), wire_.address());
  return absl::OkStatus();
}

absl::StatusOr<PayloadTarget> UcxReceiveDataPath::OnFrame(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.AddressTarget(header);
  if (header.type == FrameType::kData) return WrongWay(header);
  return matching_.OnFrame(header);  // a mismatch
}

absl::Status UcxReceiveDataPath::OnFrameDone(const FrameHeader& header) {
  if (header.type == FrameType::kAddress) return wire_.Connect(header);
  return matching_.OnFrameDone(header);
}

absl::StatusOr<PayloadTarget> UcxReceiveDataPath::OnWireFrame(const FrameHeader& header) {
  if (header.type != FrameType::kData) return WrongWay(header);
  return matching_.OnFrame(header);
}

absl::Status UcxReceiveDataPath::OnWireFrameDone(const FrameHeader& header) {
  absl::Status done = matching_.OnFrameDone(header);
  if (done.ok() && matching_.posted() == 0) wire_.SayWhatArrived();
  session_.NoteArrival();
  return done;
}

}  // namespace weft::net
