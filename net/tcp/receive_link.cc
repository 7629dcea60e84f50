#include "net/tcp/receive_link.h"

#include "base/status.h"

namespace weft::net {

TcpReceiveLink::~TcpReceiveLink() {
  if (on_destroyed_) on_destroyed_(this);
  Finish();
}

void TcpReceiveLink::UseResumption(const LinkParameters& parameters,
                                   const std::vector<FileDescriptor>& sockets) {
  SocketAddress life = RemoteAddress(sockets[0].get());
  life.set_port(parameters.life_port);
  set_resumption(MakeAwait(context(), peer(), parameters, life, *this));
}

void TcpReceiveLink::Start(std::vector<FileDescriptor> sockets) {
  std::vector<std::string> received(sockets.size());
  Attach(std::move(sockets), std::move(received));
}

Posted TcpReceiveLink::PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) {
  if (!status().ok()) {
    request->Begin();
    request->Finish(status(), 0);
    return Posted::kAccepted;
  }
  if (matching_.IsFull()) return Posted::kNotYet;
  SendClearToSend(matching_.Post(key, target, request));
  return Posted::kAccepted;
}

absl::StatusOr<PayloadTarget> TcpReceiveLink::OnLinkFrame(const FrameHeader& header) {
  return matching_.OnFrame(header);
}

absl::Status TcpReceiveLink::OnLinkFrameDone(const FrameHeader& header) {
  WEFT_RETURN_IF_ERROR(matching_.OnFrameDone(header));
  if (matching_.TakeOwesTelling()) OweTelling();
  return absl::OkStatus();
}

}  // namespace weft::net
