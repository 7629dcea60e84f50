// The two ends of a multipath link. Its one connection proves who the peer is, says at once when
// its process ends, and tells of the UDP sockets; everything else takes the wire.
//
// A peer that sends nothing for three quarters of tcp.dead_after is asked over the connection,
// where its kernel answers for a process that is busy or stopped; only if that is silent as well it
// is dead. A connection whose way is dead does not matter while datagrams come.
#ifndef WEFT_NET_MULTIPATH_UDP_DATA_PATH_H_
#define WEFT_NET_MULTIPATH_UDP_DATA_PATH_H_

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "net/multipath/udp/wire.h"
#include "net/tcp/data_path.h"
#include "net/tcp/link_session.h"
#include "net/tcp/receive_matching.h"
#include "net/tcp/send_matching.h"

namespace weft::net::multipath {

// What the links of one transport share besides TcpContext.
struct LinkContext {
  OpenLinkPaths open_paths;
  WireOptions wire;
  // Wires of closed links, until their last packets have arrived.
  std::list<std::unique_ptr<Wire>> lingering;
};

// What both ends have of a wire.
class LinkWire {
 public:
  LinkWire(LinkContext& shared, Poller& poller, Rank peer, bool is_connector, WireOwner& owner);

  // For a connection that was just authenticated: the frame to send, and the frame that came.
  absl::StatusOr<std::string> address() { return wire_->OwnAddress(); }
  absl::StatusOr<PayloadTarget> AddressTarget(const FrameHeader& header);
  absl::Status Connect() { return wire_->Connect(peer_address_); }

  // Until Leave(), which has `words` delivered without the link.
  Wire* operator->() { return wire_.get(); }
  std::vector<LaneReport> Lanes() const {
    return wire_ != nullptr ? wire_->Lanes() : std::vector<LaneReport>();
  }
  void AddTo(FlowCounters* counters) const {
    if (wire_ != nullptr) wire_->AddTo(counters);
  }
  void Leave(std::deque<OutFrame> words);
  void Close() {
    if (wire_ != nullptr) wire_->Close();
  }
  uint64_t promised() const { return wire_ != nullptr ? wire_->control_promised() : promised_; }
  uint64_t delivered() const { return wire_ != nullptr ? wire_->control_delivered() : 0; }

 private:
  LinkContext& shared_;
  std::string peer_address_;
  uint64_t promised_ = 0;
  std::unique_ptr<Wire> wire_;
};

// What both ends do alike. `Base` is SendDataPath or ReceiveDataPath.
template <typename Base>
class MultipathDataPath : public Base, protected WireOwner {
 protected:
  MultipathDataPath(LinkSession& session, LinkContext& shared, Rank peer, bool is_connector)
      : session_(session), wire_(shared, session.poller(), peer, is_connector, *this) {}

  absl::Status Start() override;
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& header) override;
  bool Carries(FrameType type) const override;
  bool SendControl(OutFrame& frame) override;
  bool HearsPeer(absl::Time now) override;
  uint64_t promised() const override { return wire_.promised(); }
  bool StillArriving(uint64_t promised) const override { return wire_.delivered() < promised; }
  void Leave() override;
  void Close(const absl::Status& /*why*/) override { wire_.Close(); }

  void OnWireRoom() override { session_.WantTurn(); }
  void OnWireWords(const std::string& words) override;
  void OnWireBroken(const absl::Status& why) override { session_.Break(why); }

  LinkSession& session_;
  LinkWire wire_;
};

class MultipathSendDataPath final : public MultipathDataPath<SendDataPath> {
 public:
  MultipathSendDataPath(LinkSession& session, SendMatching& matching, LinkContext& shared,
                        Rank peer)
      : MultipathDataPath(session, shared, peer, /*is_connector=*/true), matching_(matching) {}
  const Sender* sender() { return wire_->sender(); }  // for measurements; null before it is started

 private:
  void UseIdentity(const ConnectorIdentity& identity) override {
    wire_->set_secret(identity.secret);
  }
  void SendData() override;
  std::vector<LaneReport> Lanes() const override { return wire_.Lanes(); }
  void AddTo(FlowCounters* counters) const override { wire_.AddTo(counters); }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header, absl::string_view notice) override;
  void OnWireSent(uint32_t token) override { matching_.OnSent(token); }
  bool ExpectsData() const override { return false; }

  SendMatching& matching_;
};

class MultipathReceiveDataPath final : public MultipathDataPath<ReceiveDataPath> {
 public:
  MultipathReceiveDataPath(LinkSession& session, ReceiveMatching& matching, LinkContext& shared,
                           Rank peer)
      : MultipathDataPath(session, shared, peer, /*is_connector=*/false), matching_(matching) {}

 private:
  void SendClearToSend(const FrameHeader& header) override { session_.QueueControl(header); }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header, absl::string_view notice) override;
  void OnWireSent(uint32_t) override {}
  bool ExpectsData() const override { return matching_.posted() > 0; }

  ReceiveMatching& matching_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_DATA_PATH_H_
