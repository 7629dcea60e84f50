#include "net/ucx/ucx_transport.h"

#include <utility>

#include "base/status.h"
#include "net/ucx/data_path.h"
#include "net/ucx/ucx.h"

namespace weft::net {
namespace {

// While UCX has work, the sockets beside it, which cost a system call, are looked at this rarely.
constexpr int kTurnsWithoutSockets = 8;

}  // namespace

UcxTransport::UcxTransport(const TransportOptions& options) : TcpTransport(options) {
  context_.purpose = HandshakePurpose::kUcxLink;
  context_.name = "ucx";
  context_.sockets = 1;
  context_.frame_growth = 1;
}

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Create(const TransportOptions& options) {
  std::unique_ptr<UcxTransport> out(new UcxTransport(options));
  WEFT_RETURN_IF_ERROR(out->Open());
  WEFT_RETURN_IF_ERROR(Annotate(out->OpenWorker(), "ucx transport"));
  return out;
}

absl::Status UcxTransport::OpenWorker() {
  WEFT_ASSIGN_OR_RETURN(worker_, UcxWorker::Create(context_.options.settings));
  context_.frame_bytes = worker_->piece_bytes();
  WEFT_ASSIGN_OR_RETURN(wait_, Epoll::Watching({context_.poller->fd(), worker_->event_fd()}));
  return absl::OkStatus();
}

bool UcxTransport::Progress(absl::Time now) {
  const bool moved = worker_->Progress();
  if (moved && !context_.poller->HasTurns() && ++turns_without_sockets_ < kTurnsWithoutSockets) {
    return true;
  }
  turns_without_sockets_ = 0;
  return TcpTransport::Progress(now) || moved;
}

std::unique_ptr<SendDataPath> UcxTransport::MakeDataPath(LinkSession& session,
                                                         SendMatching& matching, Rank /*peer*/) {
  return std::make_unique<UcxSendDataPath>(session, matching, *worker_);
}

std::unique_ptr<ReceiveDataPath> UcxTransport::MakeDataPath(LinkSession& session,
                                                            ReceiveMatching& matching,
                                                            Rank /*peer*/) {
  return std::make_unique<UcxReceiveDataPath>(session, matching, *worker_);
}

extern "C" __attribute__((visibility("default"))) void weft_ucx_transport_1(
    const TransportOptions& options, absl::StatusOr<std::unique_ptr<Transport>>* out) {
  *out = UcxTransport::Create(options);
}

}  // namespace weft::net
