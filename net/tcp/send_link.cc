#include "net/tcp/send_link.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {

TcpSendLink::TcpSendLink(TcpContext& context, Rank peer, const MakeSendDataPath& make_path)
    : LinkCore(context, peer),
      matching_(context.options.self, peer, context.requests_max, counters_),
      path_(make_path != nullptr ? make_path(*this, matching_) : nullptr),
      path_takes_posts_(path_ != nullptr && path_->TakesPosts()) {
  set_path(path_.get());
}

TcpSendLink::~TcpSendLink() {
  if (connector_ != nullptr) connector_->Cancel();
  connector_.reset();
  Finish();
}

void TcpSendLink::UseIdentity(const ConnectorIdentity& identity) {
  identity_ = identity;
  if (path_ != nullptr) path_->UseIdentity(identity);
}

void TcpSendLink::Start(absl::string_view address, absl::Time now) {
  set_description(absl::StrCat(context().name, ", connecting to \"", address, "\""));
  const TransportOptions& own = context().options;
  if (!identity_.has_value()) identity_ = ConnectorIdentity{own.self, own.secret};
  address_ = std::string(address);
  connector_ = std::make_unique<Connector>(context(), *identity_, peer(), *this);
  connector_->Start(address, now);
}

void TcpSendLink::OnConnected(std::vector<FileDescriptor> sockets,
                              std::vector<std::string> received, absl::Time now) {
  if (context().book != nullptr) {
    set_resumption(MakeRedial(context(), *identity_, peer(), address_, connector_->parameters(),
                              connector_->planned_ways(), connector_->ways(), *this, now));
  }
  poller().DeferDelete(std::move(connector_));
  Attach(std::move(sockets), std::move(received));
}

void TcpSendLink::FailRequests(const absl::Status& why) {
  if (path_ != nullptr) path_->Close(why);
  matching_.Fail(why);
}

void TcpSendLink::OnConnectFailed(const absl::Status& why, absl::Time /*now*/) {
  poller().DeferDelete(std::move(connector_));
  Break(why);
}

Posted TcpSendLink::PostSend(MessageKey key, const SendSource& source, Request* request) {
  if (!status().ok()) {
    request->Begin();
    request->Finish(status(), 0);
    return Posted::kAccepted;
  }
  if (path_takes_posts_) return path_->PostSend(key, source, request);
  if (matching_.IsFull()) return Posted::kNotYet;
  const SendMatching::Outcome outcome = matching_.Post(key, source.data, request);
  if (outcome == SendMatching::Outcome::kWaits) NoteAwaiting();
  Follow(outcome);
  return Posted::kAccepted;
}

void TcpSendLink::Follow(SendMatching::Outcome outcome) {
  if (outcome == SendMatching::Outcome::kMatched) WantTurn();
  if (outcome == SendMatching::Outcome::kMismatch) SendMismatch(matching_.mismatch());
}

// A socket's share of what waits, from one frame to a few.
uint64_t TcpSendLink::WriteBytes() const {
  const uint64_t frame = context().frame_bytes, growth = context().frame_growth;
  const uint64_t most = std::max(frame, std::min(frame, kFrameBytesMax / growth) * growth);
  const uint64_t share = matching_.bytes_left() / std::max<size_t>(OpenStreams(), 1) / 64 * 64;
  return std::clamp(share, frame, most);
}

absl::StatusOr<PayloadTarget> TcpSendLink::OnLinkFrame(const FrameHeader& header) {
  if (path_ != nullptr) return path_->OnFrame(header);
  WEFT_RETURN_IF_ERROR(matching_.Admit(header));
  return PayloadTarget{};
}

absl::Status TcpSendLink::OnLinkFrameDone(const FrameHeader& header) {
  if (path_ != nullptr) return path_->OnFrameDone(header);
  Follow(matching_.OnClearToSend(header));
  return absl::OkStatus();
}

}  // namespace weft::net
