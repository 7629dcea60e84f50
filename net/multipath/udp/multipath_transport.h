// Multipath: the reliable protocol of net/multipath over UDP, on many paths at once, for fabrics in
// which one flow of tcp gets one cable (docs/multipath.md). A tcp transport whose links have a data
// path of their own for everything but the handshake.
//
//   TcpTransport           connections, handshakes, matching         -> links
//   data paths             what a link's session and matching want   -> frames
//   Wire                   frames as messages of Sender, Receiver    -> packets
//   UdpSockets             packets of all links                      -> system calls
//
// Settings: multipath.*, tcp.interface, tcp.family, tcp.listen_port, tcp.dead_after, transport.*.
#ifndef WEFT_NET_MULTIPATH_UDP_MULTIPATH_TRANSPORT_H_
#define WEFT_NET_MULTIPATH_UDP_MULTIPATH_TRANSPORT_H_

#include <functional>
#include <memory>

#include "net/multipath/udp/data_path.h"
#include "net/tcp/tcp_transport.h"

namespace weft::net::multipath {

class MultipathTransport : public TcpTransport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options);
  ~MultipathTransport() override;

  TransportKind kind() const override { return TransportKind::kMultipath; }
  bool Progress(absl::Time now) override;
  bool PrepareWait() override;

  const SocketStatistics& statistics() const { return sockets_->statistics(); }

 protected:
  explicit MultipathTransport(const TransportOptions& options);
  // Called by derived classes once they are made: listens, and opens the sockets for packets.
  absl::Status OpenAll();
  // shared_.wire and shared_.open_paths.
  virtual absl::Status OpenWire();
  // What both ends must have alike besides whether chunks are authenticated (shared().wire): "uc",
  // and words that `check` takes from the peer.
  void StateTerms(absl::string_view wire, absl::string_view more,
                  std::function<absl::Status(absl::string_view more)> check);
  // Waits, within bounds, until the last words of links that are gone have arrived.
  void Drain();
  LinkContext& shared() { return shared_; }

 private:
  class Alarm;
  std::unique_ptr<SendDataPath> MakeDataPath(LinkSession& session, SendMatching& matching,
                                             Rank peer) override;
  std::unique_ptr<ReceiveDataPath> MakeDataPath(LinkSession& session, ReceiveMatching& matching,
                                                Rank peer) override;
  void SweepLingering();

  std::unique_ptr<UdpSockets> sockets_;
  LinkContext shared_;
  std::unique_ptr<Alarm> alarm_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_MULTIPATH_TRANSPORT_H_
