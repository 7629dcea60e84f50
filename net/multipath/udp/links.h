// The two ends of a multipath link: those of tcp, whose one connection proves who the peer is, says
// at once when its process ends, and tells of the UDP sockets; everything else takes the wire.
//
// A peer that sends nothing for three quarters of tcp.dead_after is asked over the connection,
// where its kernel answers for a process that is busy or stopped; only if that is silent as well it
// is dead. A connection whose way is dead does not matter while datagrams come.
#ifndef WEFT_NET_MULTIPATH_UDP_LINKS_H_
#define WEFT_NET_MULTIPATH_UDP_LINKS_H_

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "net/multipath/udp/wire.h"
#include "net/tcp/receive_link.h"
#include "net/tcp/send_link.h"

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

class MultipathSendLink final : public TcpSendLink, private WireOwner {
 public:
  MultipathSendLink(TcpContext& context, LinkContext& shared, Rank peer);
  ~MultipathSendLink() override;
  const Sender* sender() { return wire_->sender(); }  // for measurements; null before it is started
  std::vector<LaneReport> Lanes() const override { return wire_.Lanes(); }
  FlowCounters Counters() const override {
    FlowCounters counters = TcpSendLink::Counters();
    wire_.AddTo(&counters);
    return counters;
  }
  void UseIdentity(const ConnectorIdentity& identity) override;

 private:
  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  bool SendDataElsewhere() override;
  void FailRequests(const absl::Status& why) override;
  bool GoesElsewhere(FrameType type) const override;
  bool SendElsewhere(OutFrame& frame) override;
  bool HeardElsewhere(absl::Time now) override;
  uint64_t sent_elsewhere() const override { return wire_.promised(); }
  bool StillArriving(uint64_t sent) const override { return wire_.delivered() < sent; }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header, absl::string_view notice) override;
  void OnWireSent(uint32_t token) override { OnSent(token); }
  bool ExpectsData() const override { return false; }
  void OnWireRoom() override { WantTurn(); }
  void OnWireWords(const std::string& words) override;
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  LinkWire wire_;
};

class MultipathReceiveLink final : public TcpReceiveLink, private WireOwner {
 public:
  MultipathReceiveLink(TcpContext& context, LinkContext& shared, Rank peer,
                       OnDestroyed on_destroyed);
  ~MultipathReceiveLink() override;
  void Start(std::vector<FileDescriptor> sockets) override;

 private:
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void SendClearToSend(const FrameHeader& header) override;
  void FailRequests(const absl::Status& why) override;
  bool GoesElsewhere(FrameType type) const override;
  bool SendElsewhere(OutFrame& frame) override;
  bool HeardElsewhere(absl::Time now) override;
  uint64_t sent_elsewhere() const override { return wire_.promised(); }
  bool StillArriving(uint64_t sent) const override { return wire_.delivered() < sent; }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header, absl::string_view notice) override;
  void OnWireSent(uint32_t) override {}
  bool ExpectsData() const override { return posted() > 0; }
  void OnWireRoom() override { WantTurn(); }
  void OnWireWords(const std::string& words) override;
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  LinkWire wire_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_LINKS_H_
