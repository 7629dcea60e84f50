#include "net/tcp/receive_link.h"

#include "base/status.h"

namespace weft::net {

TcpReceiveLink::TcpReceiveLink(TcpContext& context, Rank peer, OnDestroyed on_destroyed,
                               const MakeReceiveDataPath& make_path)
    : LinkCore(context, peer),
      on_destroyed_(std::move(on_destroyed)),
      matching_(context.options.self, peer, context.requests_max, counters_),
      path_(make_path != nullptr ? make_path(*this, matching_) : nullptr) {
  set_path(path_.get());
}

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

void TcpReceiveLink::Flush(const RegionView& where, Request* request) {
  if (path_ != nullptr && status().ok()) return path_->Flush(where, request);
  request->Begin();
  request->Finish(path_ != nullptr ? status() : absl::OkStatus(), 0);
}

void TcpReceiveLink::FailRequests(const absl::Status& why) {
  if (path_ != nullptr) path_->Close(why);
  matching_.Fail(why);
}

absl::StatusOr<PayloadTarget> TcpReceiveLink::OnLinkFrame(const FrameHeader& header) {
  if (path_ != nullptr) return path_->OnFrame(header);
  return matching_.OnFrame(header);
}

absl::Status TcpReceiveLink::OnLinkFrameDone(const FrameHeader& header) {
  if (path_ != nullptr) return path_->OnFrameDone(header);
  WEFT_RETURN_IF_ERROR(matching_.OnFrameDone(header));
  if (matching_.TakeOwesTelling()) OweTelling();
  return absl::OkStatus();
}

}  // namespace weft::net
