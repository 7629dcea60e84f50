// Tcp: for processes of different hosts, and wherever shared memory does not reach. Everything runs
// in the thread that calls Progress(): one epoll for the listener and all sockets.
//
//   Acceptor, Connector   sockets, handshakes (net/handshake.h)     -> links
//   SendMatching,         which send goes to which receive          -> pieces of messages
//   ReceiveMatching
//   LinkSession           control, notices, lost sockets, the end   -> frames
//   Stream                frames on one socket                      -> system calls
//
// Transports that carry data another way derive from it, and give each link a DataPath.
//
// Settings: tcp.*, transport.connect_timeout, transport.requests. Frames: docs/wire-format.md.
#ifndef WEFT_NET_TCP_TCP_TRANSPORT_H_
#define WEFT_NET_TCP_TCP_TRANSPORT_H_

#include <map>
#include <memory>
#include <string>

#include "net/tcp/acceptor.h"
#include "net/tcp/link_session.h"
#include "net/tcp/receive_link.h"
#include "net/tcp/send_link.h"
#include "net/transport.h"

namespace weft::net {

class TcpTransport : public Transport, private AcceptorOwner {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options);
  ~TcpTransport() override;

  TransportKind kind() const override { return TransportKind::kTcp; }
  const std::string& address() const override { return address_; }
  std::unique_ptr<SendLink> Connect(absl::string_view address, Rank peer, absl::Time now) override;
  std::unique_ptr<SendLink> ConnectAs(const ConnectorIdentity& identity, absl::string_view address,
                                      Rank peer, absl::Time now) override;
  absl::StatusOr<Region> Register(void* data, size_t size) override;
  bool Progress(absl::Time now) override { return context_.poller->Turn(now); }
  int wait_fd() const override { return context_.poller->fd(); }
  bool PrepareWait() override { return !context_.poller->HasTurns(); }
  void FinishWait() override {}
  absl::Time NextDeadline() const override { return context_.poller->NextDeadline(); }

 protected:
  explicit TcpTransport(const TransportOptions& options);
  absl::Status Open();  // once the context is as it should be
  // Accepts no more links; peers that probe whether this process lives see that it does.
  void StopListening() {
    if (acceptor_ != nullptr) acceptor_->StopAccepting();
  }
  // What carries the data of a new link to or from `peer`; null: its sockets.
  virtual std::unique_ptr<SendDataPath> MakeDataPath(LinkSession& /*session*/,
                                                     SendMatching& /*matching*/, Rank /*peer*/) {
    return nullptr;
  }
  virtual std::unique_ptr<ReceiveDataPath> MakeDataPath(LinkSession& /*session*/,
                                                        ReceiveMatching& /*matching*/,
                                                        Rank /*peer*/) {
    return nullptr;
  }
  TcpContext context_;

 private:
  absl::Status Listen();
  std::unique_ptr<SessionSendLink> MakeSendLink(Rank peer);
  void OnPeer(Rank peer, const LinkParameters& parameters, std::vector<FileDescriptor> sockets,
              absl::Time now) override;

  std::string address_;
  std::unique_ptr<Acceptor> acceptor_;
  std::map<Rank, SessionReceiveLink*> accepted_;  // the newest of each peer that still exists
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_TCP_TRANSPORT_H_
