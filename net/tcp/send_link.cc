#include "net/tcp/send_link.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::net {

SessionSendLink::SessionSendLink(TcpContext& context, Rank peer, const MakeSendDataPath& make_path)
    : SessionLink(context, peer),
      path_(make_path != nullptr ? make_path(session_, matching_) : nullptr),
      path_takes_posts_(path_ != nullptr && path_->TakesPosts()) {
  session_.UsePath(path_.get());
}

SessionSendLink::~SessionSendLink() {
  if (connector_ != nullptr) connector_->Cancel();
  connector_.reset();
  session_.Finish();
}

void SessionSendLink::UseIdentity(const ConnectorIdentity& identity) {
  identity_ = identity;
  if (path_ != nullptr) path_->UseIdentity(identity);
}

void SessionSendLink::Start(absl::string_view address, absl::Time now) {
  session_.set_description(absl::StrCat(context_.name, ", connecting to \"", address, "\""));
  const TransportOptions& own = context_.options;
  if (!identity_.has_value()) identity_ = ConnectorIdentity{own.self, own.secret};
  address_ = std::string(address);
  connector_ = std::make_unique<Connector>(context_, *identity_, peer(), *this);
  connector_->Start(address, now);
}

void SessionSendLink::OnConnected(std::vector<FileDescriptor> sockets,
                                  std::vector<std::string> received, absl::Time now) {
  if (context_.book != nullptr) {
    session_.set_resumption(MakeRedial(context_, *identity_, peer(), address_,
                                       connector_->parameters(), connector_->planned_ways(),
                                       connector_->ways(), session_, now));
  }
  context_.poller->DeferDelete(std::move(connector_));
  session_.Attach(std::move(sockets), std::move(received));
}

void SessionSendLink::OnConnectFailed(const absl::Status& why, absl::Time /*now*/) {
  context_.poller->DeferDelete(std::move(connector_));
  session_.Break(why);
}

Posted SessionSendLink::PostSend(MessageKey key, const SendSource& source, Request* request) {
  if (Refuses(request)) return Posted::kAccepted;
  if (path_takes_posts_) return path_->PostSend(key, source, request);
  if (matching_.IsFull()) return Posted::kNotYet;
  const SendMatching::Outcome outcome = matching_.Post(key, source, request);
  if (outcome == SendMatching::Outcome::kWaits) session_.NoteAwaiting();
  session_.Follow(outcome);
  return Posted::kAccepted;
}

}  // namespace weft::net
