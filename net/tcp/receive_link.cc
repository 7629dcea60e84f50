#include "net/tcp/receive_link.h"

#include <utility>

namespace weft::net {

SessionReceiveLink::SessionReceiveLink(TcpContext& context, Rank peer, OnDestroyed on_destroyed,
                                       const MakeReceiveDataPath& make_path)
    : SessionLink(context, peer),
      on_destroyed_(std::move(on_destroyed)),
      path_(make_path != nullptr ? make_path(session_, matching_) : nullptr) {
  session_.UsePath(path_.get());
}

SessionReceiveLink::~SessionReceiveLink() {
  if (on_destroyed_) on_destroyed_(this);
  session_.Finish();
}

void SessionReceiveLink::UseResumption(const LinkParameters& parameters,
                                       const std::vector<FileDescriptor>& sockets) {
  SocketAddress life = RemoteAddress(sockets[0].get());
  life.set_port(parameters.life_port);
  session_.set_resumption(MakeAwait(context_, peer(), parameters, life, session_));
}

void SessionReceiveLink::Start(std::vector<FileDescriptor> sockets) {
  std::vector<std::string> received(sockets.size());
  session_.Attach(std::move(sockets), std::move(received));
}

Posted SessionReceiveLink::PostReceive(MessageKey key, const ReceiveTarget& target,
                                       Request* request) {
  if (Refuses(request)) return Posted::kAccepted;
  if (matching_.IsFull()) return Posted::kNotYet;
  const FrameHeader clear = matching_.Post(key, target, request);
  path_ != nullptr ? path_->SendClearToSend(clear) : session_.QueueControl(clear);
  return Posted::kAccepted;
}

void SessionReceiveLink::Flush(const RegionView& where, Request* request) {
  if (path_ == nullptr) return ReceiveLink::Flush(where, request);
  if (!Refuses(request)) path_->Flush(where, request);
}

}  // namespace weft::net
