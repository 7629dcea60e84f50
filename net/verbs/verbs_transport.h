// The transport of verbs.h over any Nic: a tcp transport with a data path of its own.
#ifndef WEFT_NET_VERBS_VERBS_TRANSPORT_H_
#define WEFT_NET_VERBS_VERBS_TRANSPORT_H_

#include <memory>

#include "net/tcp/source_ports.h"
#include "net/tcp/tcp_transport.h"
#include "net/verbs/flush.h"
#include "net/verbs/nic.h"
#include "net/verbs/opening.h"
#include "net/verbs/rails.h"
#include "net/verbs/wire.h"

namespace weft::net {

class VerbsTransport final : public TcpTransport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                           std::unique_ptr<Nic> nic);
  ~VerbsTransport() override;

  TransportKind kind() const override { return TransportKind::kVerbs; }
  absl::StatusOr<Region> Register(void* data, size_t size) override;
  absl::StatusOr<Region> RegisterDevice(const DeviceMemory& memory) override;
  bool Progress(absl::Time now) override;
  int wait_fd() const override { return watch_->fd(); }
  bool PrepareWait() override { return TcpTransport::PrepareWait() && shared_.rails->Arm(); }
  void FinishWait() override {
    TcpTransport::FinishWait();
    turns_without_sockets_ = kTurnsWithoutSockets;
  }
  Rails& rails() const { return *shared_.rails; }

 private:
  // The sockets, which cost a system call each time, are looked at this rarely: what is urgent does
  // not come by them. After sleeping at once.
  static constexpr int kTurnsWithoutSockets = 64;
  static constexpr absl::Duration kTimeWithoutSockets = absl::Microseconds(100);

  explicit VerbsTransport(const TransportOptions& options);
  absl::Status OpenRails(std::unique_ptr<Nic> nic);
  void StateTerms();
  absl::Status WatchDevices();
  Region RegionOf(void* data, size_t size, const MemoryCache::Entry* entry);
  std::unique_ptr<SendDataPath> MakeDataPath(LinkSession& session, SendMatching& matching,
                                             Rank peer) override;
  std::unique_ptr<ReceiveDataPath> MakeDataPath(LinkSession& session, ReceiveMatching& matching,
                                                Rank peer) override;

  VerbsShared shared_;
  SourcePorts ports_;
  std::unique_ptr<RailWatch> watch_;
  std::unique_ptr<VerbsFlush> flush_;
  int turns_without_sockets_ = 0;
  absl::Time sockets_seen_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_VERBS_TRANSPORT_H_
