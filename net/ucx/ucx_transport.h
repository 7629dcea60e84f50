// The transport of ucx.h: a tcp transport with a data path of its own.
#ifndef WEFT_NET_UCX_UCX_TRANSPORT_H_
#define WEFT_NET_UCX_UCX_TRANSPORT_H_

#include <memory>

#include "base/epoll.h"
#include "net/tcp/tcp_transport.h"
#include "net/ucx/worker.h"

namespace weft::net {

class UcxTransport final : public TcpTransport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options);

  TransportKind kind() const override { return TransportKind::kUcx; }
  bool Progress(absl::Time now) override;
  int wait_fd() const override { return wait_.fd(); }
  bool PrepareWait() override { return TcpTransport::PrepareWait() && worker_->Arm(); }

 private:
  explicit UcxTransport(const TransportOptions& options);
  absl::Status OpenWorker();
  std::unique_ptr<SendDataPath> MakeDataPath(LinkSession& session, SendMatching& matching,
                                             Rank peer) override;
  std::unique_ptr<ReceiveDataPath> MakeDataPath(LinkSession& session, ReceiveMatching& matching,
                                                Rank peer) override;

  std::unique_ptr<UcxWorker> worker_;
  Epoll wait_;  // over the poller's and the worker's
  int turns_without_sockets_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_UCX_UCX_TRANSPORT_H_
