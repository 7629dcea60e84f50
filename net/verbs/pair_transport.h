// multipath.wire=uc and rc: the multipath transport whose links' packets go over connected queue
// pairs (pair_paths.h), unreliable or reliable ones, instead of UDP sockets. Everything else is the
// multipath transport.
//
// Settings: multipath.*, of which mtu, segments and port belong to sockets; verbs.* that choose
// devices, GIDs and classes; tcp.* and transport.* for the connection.
#ifndef WEFT_NET_VERBS_PAIR_TRANSPORT_H_
#define WEFT_NET_VERBS_PAIR_TRANSPORT_H_

#include <memory>

#include "net/multipath/udp/multipath_transport.h"
#include "net/verbs/opening.h"
#include "net/verbs/pair_port.h"

namespace weft::net::multipath {

class PairTransport final : public MultipathTransport {
 public:
  // `clock`: null is the system's.
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                           std::unique_ptr<Nic> nic,
                                                           const Clock* clock = nullptr);
  ~PairTransport() override;

  bool Progress(absl::Time now) override;
  int wait_fd() const override { return watch_->fd(); }
  bool PrepareWait() override;
  const PairStatistics& pair_statistics() const { return port_->statistics(); }
  Rails& rails() { return *rails_; }

 private:
  PairTransport(const TransportOptions& options, std::unique_ptr<Nic> nic, const Clock* clock)
      : MultipathTransport(options), clock_(clock), nic_(std::move(nic)) {}
  absl::Status OpenWire() override;

  const Clock* const clock_;
  std::unique_ptr<Nic> nic_;  // until the rails are opened
  std::shared_ptr<Rails> rails_;
  std::unique_ptr<PairPort> port_;
  std::unique_ptr<RailWatch> watch_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_VERBS_PAIR_TRANSPORT_H_
